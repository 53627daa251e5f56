"""D8: when nobody can tell whether a write arrived, it is never doubled and never lost."""

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

from recollect.stores.redis import RedisStore, commits
from recollect.stores.redis.server import Patience
from tests.crash.errands import Errand, all_faults, run_all, saved_again
from tests.crash.proxy import FAULTS, Fault, FaultProxy
from tests.crash.table import Table
from tests.servers.redis import RedisServer

WRITERS, TIMES = 4, 40
GONE = 10
# A black hole costs one wait for an answer each time.
PATIENCE = Patience(answer=0.2, altogether=20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    started = RedisServer(tmp_path / "redis").start()
    yield started
    started.stop()


@asynccontextmanager
async def weather(server: RedisServer, fault: Fault, chance: random.Random) -> AsyncIterator[tuple[FaultProxy, int]]:
    proxy = FaultProxy(server.port, fault, chance)
    port = await proxy.start()
    try:
        yield proxy, port
    finally:
        await proxy.stop()


async def violations(server: RedisServer, fault: Fault, chance: random.Random) -> tuple[list[str], int]:
    """What was wrong after errands in bad weather, and how often it struck."""
    errands = [Errand(f"w{number}") for number in range(WRITERS)]
    async with weather(server, fault, chance) as (proxy, port):
        store = await RedisStore.open(f"redis://127.0.0.1:{port}/0", patience=PATIENCE)
        proxy.calm = False
        await run_all(errands, store, TIMES)
        proxy.calm = True
        found = await all_faults(errands, store)
        await store.close()
    assert sum(errand.saved for errand in errands) > WRITERS * TIMES // 2
    return found, proxy.failures


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_ambiguous_outcome_neither_doubles_nor_loses(
    server: RedisServer, fault: Fault, chance: random.Random, table: Table
) -> None:
    found, struck = await violations(server, fault, chance)
    assert struck >= 10
    table.held("D8", f"{fault}: {struck} of {2 * WRITERS * TIMES} writes on Redis", len(found))
    assert found == []


async def test_a_server_that_is_gone_for_ten_seconds_is_waited_for_or_told_of(
    server: RedisServer, table: Table
) -> None:
    """With the patience that everybody has: it is over before some calls have ended, and others are told."""
    errands = [Errand(f"w{number}") for number in range(WRITERS)]
    store = await RedisStore.open(server.url)
    running = [asyncio.create_task(errand.run(store, 100_000)) for errand in errands]
    await saved_again(errands)
    began = time.monotonic()
    await asyncio.to_thread(server.stop)
    await asyncio.sleep(GONE)
    before = [errand.saved for errand in errands]
    await asyncio.to_thread(server.start)
    gone = time.monotonic() - began
    for errand, saved in zip(errands, before, strict=True):
        errand.enough = saved + 20
    await asyncio.gather(*running)
    found = await all_faults(errands, store)
    await store.close()
    told, done = sum(errand.doubtful for errand in errands), sum(errand.saved for errand in errands)
    table.held("D8", f"a Redis server gone for {GONE} s: {done} saves, {told} calls told of it", len(found))
    assert found == []
    # Once, as long as it is back by the time that the second call would be given up.
    assert WRITERS <= told <= WRITERS * (gone // (Patience().altogether - 1))


async def test_without_the_memory_of_batches_a_retry_doubles(
    server: RedisServer, chance: random.Random, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_MEMORY_MS", b"")
    found, _ = await violations(server, "reset", chance)
    table.seen("D8", "a batch that the server does not remember", len(found))
    assert found


async def test_a_plain_push_doubles(server: RedisServer, chance: random.Random, table: Table) -> None:
    async with weather(server, "reset", chance) as (proxy, port):
        client = redis.asyncio.Redis(port=port, retry=Retry(ConstantBackoff(0.01), 20))
        await client.ping()
        proxy.calm = False
        for number in range(WRITERS * TIMES):
            await client.rpush("plain", number)
        await client.aclose()
    with server.client() as direct:
        doubled = int(direct.llen("plain")) - WRITERS * TIMES
    table.seen("D8", "a plain RPUSH with the client's own retries", doubled)
    assert doubled > 0
