"""D6: a killed Redis server loses no acknowledged write, and opening a store rejects settings that could."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from recollect.stores.redis import RedisStore
from recollect.stores.redis.client import RedisTimeouts
from tests.crash.result_table import Table
from tests.crash.workload import Writer, find_all_faults, wait_for_saves
from tests.servers.redis import RedisServer

CRASHES = int(os.environ.get("CRASH_REDIS", "12"))
WRITERS = 4
PATIENCE = RedisTimeouts(response=2, total=30)


async def run_with_crashes(server: RedisServer, rng: random.Random, times: int, *, lossy: bool = False) -> list[str]:
    """Kill and restart the server while writers run, and return the faults afterwards."""
    writers = [Writer(f"w{number}") for number in range(WRITERS)]
    store = await RedisStore.open(server.url, patience=PATIENCE)
    if lossy:
        with server.client() as client:
            client.config_set("appendonly", "no")
    running = [asyncio.create_task(writer.run(store, 100_000)) for writer in writers]
    for _ in range(times):
        await wait_for_saves(writers)
        await asyncio.sleep(rng.uniform(0, 0.2))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    if not lossy:  # a lossy server has lost their leases
        await wait_for_saves(writers)
    for writer in writers:
        writer.enough = 0
    await asyncio.gather(*running)
    found = await find_all_faults(writers, store)
    await store.close()
    return found


@pytest.mark.promise("D6")
@pytest.mark.timeout(60 + 10 * CRASHES)
async def test_server_crash_loses_no_acknowledged_write(tmp_path: Path, rng: random.Random, table: Table) -> None:
    server = RedisServer(tmp_path / "redis").start()
    try:
        found = await run_with_crashes(server, rng, CRASHES)
    finally:
        server.kill()
    table.add_result("D6", f"{CRASHES} kills of a Redis server, {WRITERS} writers", len(found))
    assert found == []


@pytest.mark.promise("D6")
async def test_server_crash_with_everysec_fsync_loses_nothing(tmp_path: Path, rng: random.Random, table: Table) -> None:
    # The server passes its log to the kernel before it replies, and the kernel survives the crash.
    server = RedisServer(tmp_path / "redis", "--appendfsync", "everysec").start()
    try:
        found = await run_with_crashes(server, rng, 3)
    finally:
        server.kill()
    table.add_result("D6", f"3 kills of a Redis server with appendfsync everysec, {WRITERS} writers", len(found))
    assert found == []


@pytest.mark.mutant("D6")
async def test_server_crash_without_aof_is_detected(tmp_path: Path, rng: random.Random, table: Table) -> None:
    server = RedisServer(tmp_path / "redis").start()
    try:
        found = await run_with_crashes(server, rng, 1, lossy=True)
    finally:
        server.kill()
    table.add_mutant("D6", "appendonly no", len(found))
    assert found
