"""D6: a Redis server that is killed in mid-run loses nothing that it acknowledged, and says at open if it could."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from recollect.stores.redis import RedisStore
from recollect.stores.redis.server import Patience
from tests.crash.errands import Errand, all_faults, saved_again
from tests.crash.table import Table
from tests.servers.redis import RedisServer

CRASHES = int(os.environ.get("CRASH_REDIS", "12"))
WRITERS = 4
PATIENCE = Patience(answer=2, altogether=30)


async def crashes(server: RedisServer, chance: random.Random, times: int, *, forgetful: bool = False) -> list[str]:
    """Kill the server again and again while errands are run; what is then wrong."""
    errands = [Errand(f"w{number}") for number in range(WRITERS)]
    store = await RedisStore.open(server.url, patience=PATIENCE)
    if forgetful:
        with server.client() as client:
            client.config_set("appendonly", "no")
    running = [asyncio.create_task(errand.run(store, 100_000)) for errand in errands]
    for _ in range(times):
        await saved_again(errands)
        await asyncio.sleep(chance.uniform(0, 0.2))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    if not forgetful:  # which knows nothing of their leases any more
        await saved_again(errands)
    for errand in errands:
        errand.enough = 0
    await asyncio.gather(*running)
    found = await all_faults(errands, store)
    await store.close()
    return found


@pytest.mark.timeout(60 + 10 * CRASHES)
async def test_a_crash_of_the_server_loses_nothing(tmp_path: Path, chance: random.Random, table: Table) -> None:
    server = RedisServer(tmp_path / "redis").start()
    try:
        found = await crashes(server, chance, CRASHES)
    finally:
        server.kill()
    table.held("D6", f"{CRASHES} kills of a Redis server, {WRITERS} writers", len(found))
    assert found == []


async def test_a_server_that_may_lose_a_second_to_a_power_cut_loses_nothing_to_a_crash(
    tmp_path: Path, chance: random.Random, table: Table
) -> None:
    """It hands its log to the system before it answers, and the system outlives it."""
    server = RedisServer(tmp_path / "redis", "--appendfsync", "everysec").start()
    try:
        found = await crashes(server, chance, 3)
    finally:
        server.kill()
    table.held("D6", f"3 kills of a Redis server with appendfsync everysec, {WRITERS} writers", len(found))
    assert found == []


async def test_without_its_log_a_crash_is_seen(tmp_path: Path, chance: random.Random, table: Table) -> None:
    server = RedisServer(tmp_path / "redis").start()
    try:
        found = await crashes(server, chance, 1, forgetful=True)
    finally:
        server.kill()
    table.seen("D6", "appendonly no", len(found))
    assert found
