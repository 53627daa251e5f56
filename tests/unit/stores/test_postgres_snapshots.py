"""Clock and snapshots on PostgreSQL: the time is read after waiting, and a search reads one snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import numpy as np
import psycopg
import pytest

from recollect.clock import system_clock
from recollect.errors import EmbeddingModelMismatch, LeaseHeld
from recollect.stores.filters import Where
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.postgres import PostgresStore
from recollect.stores.postgres.transactions import build_task_locks
from recollect.stores.search import EvidenceLookup, EvidenceQuery, SearchEvidence
from recollect.stores.writes import Delete, Put, Touch
from recollect.testing import ManualClock
from recollect.testing.factories import (
    ADA_ELSEWHERE,
    EVERYTHING,
    MINUTE,
    MODEL,
    OTHER_MODEL,
    SECOND,
    SPACE,
    START,
    TASKS,
    find_nearest,
    list_ids,
    make_item,
    make_put,
    make_vector,
)
from recollect.types import Scope
from tests.servers.postgres import Server


@pytest.fixture(scope="session")
def snapshots_url(postgres: Server) -> str:
    return postgres.create("snapshots")


@pytest.fixture
async def store(snapshots_url: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(snapshots_url, clock=ManualClock())
    yield opened
    await opened.close()


async def test_claim_reads_the_clock_after_waiting_for_the_lock(snapshots_url: str):
    """With a time from before the wait, the lease of the winner would seem to be from the future."""
    clock = ManualClock()
    store = await PostgresStore.open(snapshots_url, clock=clock)
    async with store._server.begin_write(TASKS.tenant, build_task_locks(TASKS, "turn")):
        claiming = asyncio.create_task(store.claim(TASKS, "turn", "w1", MINUTE))
        async with await psycopg.AsyncConnection.connect(snapshots_url) as watching:
            waiting = "select 1 from pg_locks where locktype = 'advisory' and not granted"
            while not await (await watching.execute(waiting)).fetchall():
                await watching.rollback()
        clock.forward(SECOND)
    assert (await claiming).expires_at == clock.now + MINUTE
    await store.close()


async def test_claim_without_a_clock_uses_the_server_time(snapshots_url: str):
    store = await PostgresStore.open(snapshots_url)
    lease = await store.claim(TASKS, "server time", "w1", MINUTE)
    assert abs(lease.expires_at - MINUTE - system_clock()) < timedelta(seconds=30)
    with pytest.raises(LeaseHeld):
        await store.claim(TASKS, "server time", "w2", MINUTE)
    await store.close()


async def test_judge_reads_the_snapshot_of_its_evidence(store: PostgresStore):
    # A text of this length is not read with the evidence, but when the judge asks for it.
    await store.write(make_put("a", [1, 0, 0, 0], "apple " * 600))
    loop = asyncio.get_running_loop()

    def judge(found: SearchEvidence, lookup: EvidenceLookup) -> tuple[list[str], list[str]]:
        asyncio.run_coroutine_threadsafe(store.write(Delete(SPACE, "a")), loop).result()
        return [brief.id for brief in found.briefs], list(lookup.items(["a"]))

    ask = EvidenceQuery(EVERYTHING, None, ("apple",), 10, 0)
    assert await store.gather(ask, judge) == (["a"], ["a"])
    assert await store.get(SPACE, "a") == []


async def test_query_of_another_model_is_refused_for_an_empty_space_too(store: PostgresStore):
    await store.write(make_put("elsewhere", [1, 0, 0, 0]))
    ask = EvidenceQuery(Where(ADA_ELSEWHERE.space("semantic")), make_vector(1, 0, 0, 0), (), 10, 0, OTHER_MODEL)
    for _ in range(2):  # the second time the empty space is cached
        with pytest.raises(EmbeddingModelMismatch):
            await store.gather(ask, lambda found, lookup: found)
    assert len(await store.gather(replace(ask, model=MODEL), lambda found, lookup: found)) == 0
    with pytest.raises(EmbeddingModelMismatch):
        await store.gather(ask, lambda found, lookup: found)


async def test_judge_sees_unflushed_accesses(store: PostgresStore):
    await store.write(make_put("b", [1, 0, 0, 0], "pear"))
    store.touch(Touch(SPACE, ("b",), START))
    ask = EvidenceQuery(EVERYTHING, None, ("pear",), 10, 0)
    seen = await store.gather(ask, lambda found, lookup: lookup.items(["b"])["b"])
    assert (seen.access_count, seen.last_accessed) == (1, START)


async def test_concurrent_claims_of_a_new_task_have_one_winner(store: PostgresStore):
    # The space is cached and the connections are open, so that the claims wait only for each other.
    await asyncio.gather(*(store.claim(TASKS, f"earlier{n}", "w", MINUTE) for n in range(20)))
    claims = (store.claim(TASKS, "wanted", f"w{n}", MINUTE) for n in range(20))
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    assert sum(isinstance(one, LeaseHeld) for one in outcomes) == 19


async def test_nearest_ranks_neighbors_closer_than_half_precision(store: PostgresStore):
    chance, reference = np.random.default_rng(3), InMemoryStore()
    middle = chance.normal(size=MODEL.dim)
    rows = (middle + 0.02 * chance.normal(size=(600, MODEL.dim))).astype(np.float32)
    crowd = Scope(tenant="crowd")
    writes = [
        Put(item=make_item(f"i{n}", scope=crowd), vectors=row[None], model=MODEL, expect=0)
        for n, row in enumerate(rows)
    ]
    await store.write(*writes)
    await reference.write(*writes)
    where = Where(crowd.space("semantic"))
    for query in (middle + 0.3 * chance.normal(size=(100, MODEL.dim))).astype(np.float32):
        found, expected = [await find_nearest(one, where, query, limit=20) for one in (store, reference)]
        assert list_ids(found) == list_ids(expected)


async def test_batches_with_crossed_spaces_do_not_deadlock(store: PostgresStore):
    puts = [make_put("x", scope=scope) for scope in _make_scopes()]
    await asyncio.gather(*(store.write(*order) for _ in range(10) for order in (puts, puts[::-1])))
    for put in puts:
        assert (await store.get(put.space, "x"))[0].version == 20


def _make_scopes() -> list[Scope]:
    return [Scope(tenant=tenant, user=user) for tenant in ("crosswise", "otherwise") for user in ("ada", "bob", "eve")]
