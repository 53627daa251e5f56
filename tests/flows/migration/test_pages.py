"""A space of several pages is moved whole: both ends are read by the page, so a comparison would not miss the rest."""

from __future__ import annotations

import pytest

from recollect.memory.migration import tasks
from recollect.memory.migration.items import Items
from recollect.memory.migration.part import MOST_TOGETHER
from recollect.memory.migration.tasks import Work
from recollect.runtime.failpoints import FailPointReached, armed
from recollect.stores.in_memory import InMemoryStore
from recollect.testing.samples import EVERYTHING, SPACE, TASKS, put, save


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_every_page_is_moved_however_full_the_last_one_is(more: int):
    # Mutant: `_pages` that is content with the first of them.
    source, target = InMemoryStore(), InMemoryStore()
    held = 2 * MOST_TOGETHER + more
    await source.write(*(put(f"item {n}") for n in range(held)))
    part = Items(SPACE, source, target)
    told: list[int] = []
    assert (await part.held(), await part.copy(told.append), sum(told)) == (held, held, held)
    assert len(await target.find(EVERYTHING, limit=held + 1)) == held
    here, there = await part.hashes(told.append)
    assert here == there
    assert here.count == held


async def test_tasks_of_which_some_are_there_are_gone_on_with(monkeypatch: pytest.MonkeyPatch):
    # Mutant: a space of which the target holds something is taken to be moved.
    source, target = InMemoryStore(), InMemoryStore()
    for number in range(5):
        await source.write(save("[1]", task=f"t{number}"))
    monkeypatch.setattr(tasks, "MOST_TOGETHER", 2)
    monkeypatch.setattr(tasks, "reach", armed("migrate.after=raise@1"))
    work = Work(TASKS, source, target)
    with pytest.raises(FailPointReached):
        await work.copy(lambda more: None)
    assert len(await target.tasks(TASKS)) == 2
    monkeypatch.setattr(tasks, "reach", armed(""))
    assert await work.copy(lambda more: None) == 3
    here, there = await work.hashes(lambda more: None)
    assert here == there
    assert there.count == 5
