"""Spaces of several pages are migrated completely; source and target hashes alone would not show a missing page."""

from __future__ import annotations

import pytest

from recollect.durable.failpoints import FailPointReached, arm_failpoints
from recollect.portability import migration
from recollect.portability.migration import MAX_BATCH_SIZE, ItemsPart, TasksPart
from recollect.stores.in_memory import InMemoryStore
from recollect.testing.factories import EVERYTHING, SPACE, TASKS, make_put, make_save


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_every_page_is_copied_for_any_size_of_the_last_page(more: int):
    # Mutant: `iter_pages` stops after the first page.
    source, target = InMemoryStore(), InMemoryStore()
    total = 2 * MAX_BATCH_SIZE + more
    await source.write(*(make_put(f"item {n}") for n in range(total)))
    part = ItemsPart(SPACE, source, target)
    counts: list[int] = []
    assert (await part.count(), await part.copy(counts.append), sum(counts)) == (total, total, total)
    assert len(await target.find(EVERYTHING, limit=total + 1)) == total
    here, there = await part.hash_store(source), await part.hash_store(target)
    assert here == there
    assert here[0] == total


async def test_interrupted_task_copy_resumes(monkeypatch: pytest.MonkeyPatch):
    # Mutant: a space with any data in the target is treated as migrated.
    source, target = InMemoryStore(), InMemoryStore()
    for number in range(5):
        await source.write(make_save("[1]", task=f"t{number}"))
    monkeypatch.setattr(migration, "MAX_BATCH_SIZE", 2)
    monkeypatch.setattr(migration, "reach_failpoint", arm_failpoints("migrate.after=raise@1"))
    work = TasksPart(TASKS, source, target)
    with pytest.raises(FailPointReached):
        await work.copy(lambda more: None)
    assert len(await target.tasks(TASKS)) == 2
    monkeypatch.setattr(migration, "reach_failpoint", arm_failpoints(""))
    assert await work.copy(lambda more: None) == 3
    here, there = await work.hash_store(source), await work.hash_store(target)
    assert here == there
    assert there[0] == 5
