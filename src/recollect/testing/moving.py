"""What a store promises to whoever moves everything into another: all of it can be listed, read and made anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recollect.errors import BadInput, Conflict
from recollect.stores.base import Checkpoint, Log, Records, Task, Tasks
from recollect.stores.ops import Clear, Delete, Drop, DropTask, Put, Restore, Touch
from recollect.testing.clock import ManualClock
from recollect.testing.samples import (
    ADA,
    ADA_ELSEWHERE,
    BOB,
    LOG,
    MINUTE,
    MODEL,
    SECOND,
    SPACE,
    START,
    TASKS,
    append,
    item,
    note,
    put,
    save,
)


class MovingItems:
    """Items as they are put into another store."""

    pytestmark = pytest.mark.asyncio

    async def test_an_item_is_given_whole_and_made_anew_to_the_bit(self, store: Records) -> None:
        # Of so few numbers a second rounding would change one row in ten; of hundreds, hardly ever one.
        rows = np.random.default_rng(0).integers(-3, 4, (60, 4)).astype(np.float32)
        first = Put(item=item("a"), vectors=rows, terms=("two", "one", "two"), model=MODEL)
        await store.write(first, put("bare"), put("worded", terms="only words", scope=BOB))
        await store.write(Touch(SPACE, ("a",), START + SECOND))
        [given, bare] = await store.whole(SPACE, "a", "none", "bare", "a")
        assert (given.item.id, given.item.access_count, given.model) == ("a", 1, MODEL)
        assert sorted(given.terms or ()) == ["one", "two", "two"]
        assert given.vectors is not None
        assert given.vectors.shape == (60, 4)
        assert (bare.vectors, bare.model, bare.terms) == (None, None, ())
        moved = Put(
            item=replace(given.item, scope=ADA_ELSEWHERE), vectors=given.vectors, terms=given.terms, model=given.model
        )
        await store.write(moved)
        [again] = await store.whole(moved.space, "a")
        assert again.vectors is not None
        assert again.vectors.tobytes() == given.vectors.tobytes()
        assert (again.item.access_count, again.item.last_accessed) == (1, START + SECOND)

    async def test_tenants_are_listed_while_they_have_items(self, store: Records) -> None:
        assert await store.tenants() == []
        await store.write(put("a"), put("b", scope=BOB))
        await store.write(put("a", scope=ADA_ELSEWHERE))
        assert await store.tenants() == ["acme", "globex"]
        await store.write(Delete(ADA_ELSEWHERE.space("semantic"), "a"))
        assert await store.tenants() == ["acme"]


class MovingLogs:
    """Entries that keep the places that they had elsewhere."""

    pytestmark = pytest.mark.asyncio

    async def test_an_entry_from_elsewhere_keeps_its_place(self, store: Log) -> None:
        await store.write(*(replace(append(f"e{seq}"), seq=seq) for seq in (3, 4, 9)))
        await store.write(append("next"))
        assert [(one.id, one.seq) for one in await store.read(LOG)] == [("e3", 3), ("e4", 4), ("e9", 9), ("next", 10)]
        await store.write(replace(append("e9"), seq=20))
        await store.write(replace(append("late"), seq=2))
        assert [(one.id, one.seq) for one in await store.read(LOG, after=9)] == [("next", 10), ("late", 11)]

    async def test_places_grow_past_every_small_kind_of_number(self, store: Log) -> None:
        for seq in (1, 40_000, 5_000_000):
            await store.write(replace(append(f"e{seq}"), seq=seq))
            await store.write(replace(append("passing"), seq=seq + 1))
            await store.write(Drop(LOG, (seq + 1,)))
        assert [one.seq for one in await store.read(LOG)] == [1, 40_000, 5_000_000]

    async def test_how_far_a_log_has_counted_is_known_when_it_is_empty(self, store: Log) -> None:
        other = replace(ADA, session="s/1").space("episodic")
        assert await store.counted("acme") == {}
        await store.write(append("a"), append("b"), append("c"))
        await store.write(append("a", space=other))
        await store.write(append("a", space=ADA_ELSEWHERE.space("conversation")))
        await store.write(Drop(LOG, (2, 3)), Clear(other))
        assert await store.counted("acme") == {LOG: 3, other: 1}
        assert await store.counted() == {LOG: 3, other: 1, ADA_ELSEWHERE.space("conversation"): 1}
        # As whoever moves a log sets the counter: by an entry that nobody gets to see.
        await store.write(replace(append("mark", space=other), seq=7), Drop(other, (7,)))
        assert await store.counted("acme") == {LOG: 3, other: 7}
        assert await store.logs(other, hidden=True) == []
        await store.write(append("b", space=other))
        assert [one.seq for one in await store.read(other)] == [8]

    async def test_what_has_expired_elsewhere_is_kept_and_hidden(self, store: Log, clock: ManualClock) -> None:
        await store.write(replace(append("old", expires_at=clock.now - SECOND), seq=5))
        assert await store.read(LOG) == []
        assert [(one.id, one.seq) for one in await store.read(LOG, hidden=True)] == [("old", 5)]

    async def test_tenants_are_listed_while_they_have_entries(self, store: Log, clock: ManualClock) -> None:
        elsewhere = ADA_ELSEWHERE.space("conversation")
        await store.write(append("a"))
        await store.write(append("a", space=elsewhere, expires_at=clock.now - SECOND))
        assert await store.tenants() == ["acme", "globex"]


class MovingTasks:
    """Tasks that come from another store."""

    pytestmark = pytest.mark.asyncio

    async def test_a_task_comes_back_as_another_store_knew_it(self, store: Tasks, clock: ManualClock) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE, plan_hash="p")
        await store.write(save("[1]", fence=lease.fence, ttl=MINUTE), note("a", lease.fence), note("b", lease.fence))
        await store.write(save("[2]", fence=lease.fence), note("a", lease.fence, "completed", result="1"))
        known, kept, steps = await self._known(store, "t")
        clock.forward(SECOND)
        await store.write(DropTask(TASKS, "t"))
        await store.write(Restore(TASKS, known, tuple(kept), tuple(steps)))
        free = replace(known, owner=None, renewed_at=None, lease_ttl=None)
        assert await self._known(store, "t") == (free, kept, steps)
        assert (await store.claim(TASKS, "t", "w2", MINUTE)).fence > lease.fence

    async def test_fences_go_on_above_those_that_came_with_a_task(self, store: Tasks, clock: ManualClock) -> None:
        known = self._task(clock, fence=41)
        await store.write(Restore(TASKS, known, (Checkpoint(7, 40, 1, "[7]", clock.now, intact=True),)))
        assert (await store.claim(TASKS, "other", "w", MINUTE)).fence == 42
        assert (await store.claim(TASKS, "t", "w", MINUTE)).fence == 43
        await store.write(save("[8]", expect=7, fence=43))
        assert [one.version for one in await store.checkpoints(TASKS, "t")] == [8, 7]

    async def test_a_task_that_is_there_is_not_written_over(self, store: Tasks, clock: ManualClock) -> None:
        await store.write(save("[1]"))
        with pytest.raises(Conflict, match="already"):
            await store.write(save("[x]", task="u"), Restore(TASKS, self._task(clock)))
        assert await store.task(TASKS, "u") is None
        assert (await self._known(store, "t"))[0].version == 1

    async def test_what_is_damaged_is_not_taken(self, store: Tasks, clock: ManualClock) -> None:
        with pytest.raises(BadInput, match="damaged"):
            await store.write(Restore(TASKS, self._task(clock), (Checkpoint(1, 1, 1, "[", clock.now, intact=False),)))
        assert await store.task(TASKS, "t") is None

    async def test_one_that_has_expired_stays_hidden(self, store: Tasks, clock: ManualClock) -> None:
        await store.write(Restore(TASKS, replace(self._task(clock), expires_at=clock.now - SECOND, ttl=MINUTE)))
        assert await store.task(TASKS, "t") is None
        assert [task.id for task in await store.expired(TASKS, clock.now)] == ["t"]
        assert await store.tenants() == [ADA.tenant]

    @staticmethod
    async def _known(store: Tasks, id: str) -> tuple[Task, list[Checkpoint], list[Any]]:
        task = await store.task(TASKS, id)
        assert task is not None
        return task, await store.checkpoints(TASKS, id), await store.steps(TASKS, id)

    @staticmethod
    def _task(clock: ManualClock, fence: int = 3) -> Task:
        return Task("t", "running", 7, fence, "w", clock.now, MINUTE, "p", None, None, clock.now, clock.now)
