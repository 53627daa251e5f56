"""Time on a server: the clock is read once it is one's turn, and a question is answered as of one moment."""

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
from recollect.stores.evidence import Ask, Evidence, Lookup
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.ops import Delete, Put, Touch
from recollect.stores.postgres import PostgresStore
from recollect.stores.postgres.locks import task_lock
from recollect.stores.where import Where
from recollect.testing import ManualClock
from recollect.testing.samples import (
    ADA_ELSEWHERE,
    EVERYTHING,
    MINUTE,
    MODEL,
    OTHER_MODEL,
    SECOND,
    SPACE,
    START,
    TASKS,
    ids,
    item,
    put,
    vector,
)
from recollect.values import Scope
from tests.servers.postgres import Server


@pytest.fixture(scope="session")
def moments_url(postgres: Server) -> str:
    return postgres.create("moments")


@pytest.fixture
async def store(moments_url: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(moments_url, clock=ManualClock())
    yield opened
    await opened.close()


async def test_who_waited_for_a_lock_has_the_time_of_its_turn(moments_url: str):
    """A time from before the wait would take the lease of whoever was first for one from the future."""
    clock = ManualClock()
    store = await PostgresStore.open(moments_url, clock=clock)
    async with store._server.writing(TASKS.tenant, task_lock(TASKS, "turn")):
        claiming = asyncio.create_task(store.claim(TASKS, "turn", "w1", MINUTE))
        async with await psycopg.AsyncConnection.connect(moments_url) as watching:
            waiting = "select 1 from pg_locks where locktype = 'advisory' and not granted"
            while not await (await watching.execute(waiting)).fetchall():
                await watching.rollback()
        clock.forward(SECOND)
    assert (await claiming).expires_at == clock.now + MINUTE
    await store.close()


async def test_without_a_clock_of_ours_the_servers_is_used(moments_url: str):
    store = await PostgresStore.open(moments_url)
    lease = await store.claim(TASKS, "server time", "w1", MINUTE)
    assert abs(lease.expires_at - MINUTE - system_clock()) < timedelta(seconds=30)
    with pytest.raises(LeaseHeld):
        await store.claim(TASKS, "server time", "w2", MINUTE)
    await store.close()


async def test_a_judge_reads_the_moment_of_its_evidence(store: PostgresStore):
    # So long a text is not read with the evidence, but when the judge asks for it.
    await store.write(put("a", [1, 0, 0, 0], "apple " * 600))
    loop = asyncio.get_running_loop()

    def judge(found: Evidence, lookup: Lookup) -> tuple[list[str], list[str]]:
        asyncio.run_coroutine_threadsafe(store.write(Delete(SPACE, "a")), loop).result()
        return [brief.id for brief in found.briefs], list(lookup.items(["a"]))

    ask = Ask(EVERYTHING, None, ("apple",), 10, 0)
    assert await store.gather(ask, judge) == (["a"], ["a"])
    assert await store.get(SPACE, "a") == []


async def test_a_question_of_another_model_is_refused_also_where_nothing_is(store: PostgresStore):
    await store.write(put("elsewhere", [1, 0, 0, 0]))
    ask = Ask(Where(ADA_ELSEWHERE.space("semantic")), vector(1, 0, 0, 0), (), 10, 0, OTHER_MODEL)
    for _ in range(2):  # the second time it is known that nothing was there
        with pytest.raises(EmbeddingModelMismatch):
            await store.gather(ask, lambda found, lookup: found)
    assert len(await store.gather(replace(ask, model=MODEL), lambda found, lookup: found)) == 0
    with pytest.raises(EmbeddingModelMismatch):
        await store.gather(ask, lambda found, lookup: found)


async def test_a_judge_sees_accesses_that_are_not_written_yet(store: PostgresStore):
    await store.write(put("b", [1, 0, 0, 0], "pear"))
    store.touch(Touch(SPACE, ("b",), START))
    ask = Ask(EVERYTHING, None, ("pear",), 10, 0)
    seen = await store.gather(ask, lambda found, lookup: lookup.items(["b"])["b"])
    assert (seen.access_count, seen.last_accessed) == (1, START)


async def test_of_many_who_claim_where_others_worked_before_one_gets_the_lease(store: PostgresStore):
    # The space is known and the connections are made, so that nobody waits for anything but the others.
    await asyncio.gather(*(store.claim(TASKS, f"earlier{n}", "w", MINUTE) for n in range(20)))
    claims = (store.claim(TASKS, "wanted", f"w{n}", MINUTE) for n in range(20))
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    assert sum(isinstance(one, LeaseHeld) for one in outcomes) == 19


async def test_neighbours_closer_than_half_precision_can_tell_are_told_apart(store: PostgresStore):
    chance, reference = np.random.default_rng(3), InMemoryStore()
    middle = chance.normal(size=MODEL.dim)
    rows = (middle + 0.02 * chance.normal(size=(600, MODEL.dim))).astype(np.float32)
    crowd = Scope(tenant="crowd")
    writes = [
        Put(item=item(f"i{n}", scope=crowd), vectors=row[None], model=MODEL, expect=0) for n, row in enumerate(rows)
    ]
    await store.write(*writes)
    await reference.write(*writes)
    where = Where(crowd.space("semantic"))
    for query in (middle + 0.3 * chance.normal(size=(100, MODEL.dim))).astype(np.float32):
        found, expected = [await one.nearest(where, query, limit=20) for one in (store, reference)]
        assert ids(found) == ids(expected)


async def test_two_batches_that_touch_the_same_spaces_crosswise_do_not_wait_for_each_other(store: PostgresStore):
    spaces = [put("x", scope=scope) for scope in _scopes()]
    await asyncio.gather(*(store.write(*order) for _ in range(10) for order in (spaces, spaces[::-1])))
    for one in spaces:
        assert (await store.get(one.space, "x"))[0].version == 20


def _scopes() -> list[Scope]:
    return [Scope(tenant=tenant, user=user) for tenant in ("crosswise", "otherwise") for user in ("ada", "bob", "eve")]
