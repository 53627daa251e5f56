"""D8 on Redis: a write with an unknown outcome is neither duplicated nor lost."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from recollect.stores.redis import RedisStore, commit
from recollect.stores.redis.client import RedisTimeouts
from tests.crash.fault_proxy import FAULTS, Fault, FaultProxy
from tests.crash.result_table import Table
from tests.crash.workload import Writer, find_all_faults, run_all, wait_for_saves
from tests.servers.redis import RedisServer

WRITERS, TIMES = 4, 40
GONE = 10
# Seconds; each black hole costs one response timeout.
PATIENCE = RedisTimeouts(response=0.2, total=20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    started = RedisServer(tmp_path / "redis").start()
    yield started
    started.stop()


@asynccontextmanager
async def open_proxy(server: RedisServer, fault: Fault, rng: random.Random) -> AsyncIterator[tuple[FaultProxy, int]]:
    proxy = FaultProxy(server.port, fault, rng)
    port = await proxy.start()
    try:
        yield proxy, port
    finally:
        await proxy.stop()


async def run_writers(server: RedisServer, fault: Fault, rng: random.Random) -> tuple[list[str], int]:
    """Run writers through a faulty proxy; return the faults of the store and the number of network faults."""
    writers = [Writer(f"w{number}") for number in range(WRITERS)]
    async with open_proxy(server, fault, rng) as (proxy, port):
        store = await RedisStore.open(f"redis://127.0.0.1:{port}/0", patience=PATIENCE)
        proxy.active = True
        await run_all(writers, store, TIMES)
        proxy.active = False
        found = await find_all_faults(writers, store)
        await store.close()
    assert sum(writer.saved for writer in writers) > WRITERS * TIMES // 2
    return found, proxy.failures


@pytest.mark.promise("D8")
@pytest.mark.parametrize("fault", FAULTS)
async def test_network_fault_neither_duplicates_nor_loses_writes(
    server: RedisServer, fault: Fault, rng: random.Random, table: Table
) -> None:
    found, failures = await run_writers(server, fault, rng)
    assert failures >= 10
    table.add_result("D8", f"{fault}: {failures} of {2 * WRITERS * TIMES} writes on Redis", len(found))
    assert found == []


@pytest.mark.promise("D8")
async def test_server_outage_delays_writes_or_raises(server: RedisServer, table: Table) -> None:
    # With the default timeouts the outage ends before some calls time out; the others raise StoreUnavailable.
    writers = [Writer(f"w{number}") for number in range(WRITERS)]
    store = await RedisStore.open(server.url)
    running = [asyncio.create_task(writer.run(store, 100_000)) for writer in writers]
    await wait_for_saves(writers)
    began = time.monotonic()
    await asyncio.to_thread(server.stop)
    await asyncio.sleep(GONE)
    before = [writer.saved for writer in writers]
    await asyncio.to_thread(server.start)
    outage_seconds = time.monotonic() - began
    for writer, saved in zip(writers, before, strict=True):
        writer.enough = saved + 20
    await asyncio.gather(*running)
    found = await find_all_faults(writers, store)
    await store.close()
    failed, done = sum(writer.doubtful for writer in writers), sum(writer.saved for writer in writers)
    table.add_result("D8", f"a Redis server gone for {GONE} s: {done} saves, {failed} calls failed", len(found))
    assert found == []
    # One failure per writer, if the server is back before the second call times out.
    assert WRITERS <= failed <= WRITERS * (outage_seconds // (RedisTimeouts().total - 1))


@pytest.mark.mutant("D8")
async def test_retry_without_batch_results_duplicates_writes(
    server: RedisServer, rng: random.Random, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "_RESULT_TTL_MS", b"")
    found, _ = await run_writers(server, "reset", rng)
    table.add_mutant("D8", "no stored results of batches", len(found))
    assert found


@pytest.mark.mutant("D8")
async def test_plain_rpush_retry_duplicates_entries(server: RedisServer, rng: random.Random, table: Table) -> None:
    async with open_proxy(server, "reset", rng) as (proxy, port):
        client = redis.asyncio.Redis(port=port, retry=Retry(ConstantBackoff(0.01), 20))
        await client.ping()
        proxy.active = True
        for number in range(WRITERS * TIMES):
            await client.rpush("plain", number)
        await client.aclose()
    with server.client() as direct:
        doubled = int(direct.llen("plain")) - WRITERS * TIMES
    table.add_mutant("D8", "a plain RPUSH with the client's own retries", doubled)
    assert doubled > 0
