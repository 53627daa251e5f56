"""Consolidation with concurrent writes, at scale and after random histories: no fact is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from recollect import AgentMemory, MemoryItem, Settings
from recollect.models.factory import open_embedder
from recollect.stores.base import Records
from recollect.stores.factory import open_stores
from recollect.stores.writes import Put, Touch, Write
from recollect.testing import ManualClock
from recollect.tiers.consolidation import apply_merges, plan_consolidation
from recollect.types import Scope
from tests.budgets import limit_examples
from tests.embedders import HashEmbedder
from tests.flows.consolidate.variants import DAY, load_item, search_contents

ADA = Scope(user="ada")
SPACE = ADA.space("semantic")


class Meddling:
    """Store in which a concurrent write to one item always comes first."""

    def __init__(self, store: Records, id: str) -> None:
        self._store = store
        self._id = id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, *writes: Write) -> None:
        if any(isinstance(write, Put) and write.item.id == self._id for write in writes):
            [item] = await self._store.get(SPACE, self._id)
            await self._store.write(Put(item=item))
        await self._store.write(*writes)


class Places:
    """A store with three pairs of duplicates, and an embedder."""

    def __init__(self, store: Records, embedding: Any, clock: ManualClock) -> None:
        self.store = store
        self.embedding = embedding
        self.clock = clock

    async def fill(self) -> None:
        for at, name in enumerate(("a", "b", "c")):
            for number, text in enumerate((f"Room {name} is blue.", f"room {name} is blue!")):
                await self.put(f"{name}{number}", text.replace(f" {name} ", f" {'xyz'[at]} "))

    async def put(self, id: str, content: str, **changes: Any) -> None:
        item = MemoryItem(id=id, content=content, scope=ADA, created_at=self.clock.now, **changes)
        await self.store.write(Put(item=item))

    async def plan(self) -> Any:
        return await plan_consolidation(self.store, self.embedding, SPACE, self.clock.now)

    async def superseded(self) -> dict[str, str]:
        items = await self.store.get(SPACE, *(f"{name}{number}" for name in "abc" for number in (0, 1)))
        return {item.id: item.superseded_by for item in items if item.superseded_by is not None}


@pytest_asyncio.fixture
async def places(place: str, clock: ManualClock) -> AsyncIterator[Places]:
    stores = await open_stores(place, Settings(), clock)
    embedding = await open_embedder(HashEmbedder(), Settings())
    scene = Places(stores.records("semantic"), embedding, clock)
    await scene.fill()
    yield scene
    embedding.close()
    await stores.close()


class TestConcurrentWrites:
    async def test_merge_changed_after_planning_is_skipped(self, places: Places):
        plan = await places.plan()
        await places.put("b1", "Room y is red.")
        report = await apply_merges(places.store, SPACE, plan.merged, places.clock.now)
        assert [merge.survivor for merge in report.merged] == [m.survivor for m in plan.merged if m.survivor != "b0"]
        [skipped] = report.skipped
        assert (skipped.merge.survivor, skipped.reason) == (
            "b0",
            "one of its items was changed or forgotten meanwhile",
        )
        assert await places.superseded() == {"a1": "a0", "c1": "c0"}

    @pytest.mark.parametrize("changed", ["b0", "b1"], ids=["survivor", "copy"])
    async def test_merge_changed_while_written_is_skipped_completely(self, places: Places, changed: str):
        plan = await places.plan()
        report = await apply_merges(Meddling(places.store, changed), SPACE, plan.merged, places.clock.now)
        assert len(report.merged) == 2
        assert [skipped.merge.survivor for skipped in report.skipped] == ["b0"]
        [again] = (await places.plan()).merged
        report = await apply_merges(Meddling(places.store, changed), SPACE, [again], places.clock.now)
        assert (report.merged, "read it again" in report.skipped[0].reason) == ((), True)
        assert await places.superseded() == {"a1": "a0", "c1": "c0"}
        [survivor] = await places.store.get(SPACE, "b0")
        assert survivor.derived_from == ()

    async def test_same_plan_applied_twice_merges_once(self, places: Places):
        first, second = await places.plan(), await places.plan()
        await apply_merges(places.store, SPACE, first.merged, places.clock.now)
        report = await apply_merges(places.store, SPACE, second.merged, places.clock.now)
        assert (report.merged, len(report.skipped)) == ((), 3)

    async def test_access_counts_do_not_invalidate_a_plan(self, places: Places):
        plan = await places.plan()
        await places.store.write(Touch(SPACE, ("a0", "b1"), places.clock.now))
        assert len((await apply_merges(places.store, SPACE, plan.merged, places.clock.now)).merged) == 3

    async def test_concurrent_changes_are_not_lost(self, memory: AgentMemory):
        items = [await memory.remember(f"{text} {number}") for number in range(20) for text in ("Tea for", "tea for")]
        changed = random.Random(3).sample(items, 20)
        await asyncio.gather(
            memory.semantic.consolidate(),
            *(memory.semantic.update_importance(item.id, 0.97) for item in changed),
            memory.semantic.consolidate(),
        )
        await memory.semantic.consolidate()
        for item in changed:
            now = await load_item(memory, item.id)
            heir = await load_item(memory, now.superseded_by) if now.superseded_by else now
            assert max(now.importance, heir.importance) == 0.97
        assert len(await search_contents(memory, "tea")) == 20


class TestScale:
    @pytest.mark.parametrize("pattern", ["Order {} shipped", "The {:x} basket is full"], ids=["numbers", "words"])
    async def test_ten_thousand_items_of_one_pattern_are_not_loaded(self, place: str, clock: ManualClock, pattern: str):
        """Count the items that are loaded and embedded, instead of measuring time."""
        stores = await open_stores(place, Settings(), clock)
        store, embedder = stores.records("semantic"), HashEmbedder()
        embedding = await open_embedder(embedder, Settings())
        for start in range(0, 10_000, 1000):
            await store.write(
                *(
                    Put(item=MemoryItem(id=f"{n:05}", content=pattern.format(n), scope=ADA, created_at=clock.now))
                    for n in range(start, start + 1000)
                )
            )
        await store.write(
            Put(item=MemoryItem(id="copy", content=pattern.format(7) + "!", scope=ADA, created_at=clock.now))
        )
        counted = CountingStore(store)
        plan = await plan_consolidation(counted, embedding, SPACE, clock.now)
        assert [(merge.survivor, merge.merged) for merge in plan.merged] == [("00007", ("copy",))]
        assert (plan.examined, counted.items, embedder.seen) == (10_001, 2, [])
        embedding.close()
        await stores.close()


class CountingStore:
    """Store that counts the items that are read by id."""

    def __init__(self, store: Records) -> None:
        self._store = store
        self.items = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, space: Any, *ids: str) -> list[MemoryItem]:
        self.items += len(ids)
        return await self._store.get(space, *ids)


facts_with_values = st.tuples(
    st.sampled_from(
        ["Tea at {}.", "tea at {}", "Tea at {}?", "No tea at {}.", "Note that tea at {}", "tea at {} also"]
    ),
    st.sampled_from(["four", "4", "5", "five", "school"]),
    st.floats(0, 1),
    st.sampled_from(["user", "web", "tool"]),
)


class TestRandomHistories:
    @limit_examples(0.3)
    @given(facts=st.lists(st.one_of(facts_with_values, st.just(None)), max_size=25))
    async def test_consolidate_loses_no_meaning_and_is_idempotent(
        self, facts: list[tuple[str, str, float, str] | None]
    ):
        """Random facts, with `consolidate` at random points between them."""
        clock = ManualClock()
        async with AgentMemory.open("memory://", embedder=HashEmbedder(), clock=clock) as memory:
            ids: dict[str, str] = {}
            for fact in facts:
                clock.forward(DAY)
                if fact is None:
                    await memory.semantic.consolidate()
                    continue
                pattern, value, importance, source = fact
                text = pattern.format(value)
                ids[text] = (await memory.remember(text, importance=importance, source=source)).id
            await memory.semantic.consolidate()
            live = await search_contents(memory, "tea")
            assert (await memory.semantic.consolidate()).merged == ()
            assert await search_contents(memory, "tea") == live
            meanings = {meaning(text) for text in ids}
            assert sorted(meaning(text) for text in live) == sorted(meanings)
            for text, id in ids.items():
                item = await load_item(memory, id)
                while item.superseded_by is not None:
                    assert item.id in (await load_item(memory, item.superseded_by)).derived_from
                    item = await load_item(memory, item.superseded_by)
                assert meaning(item.content) == meaning(text)


def meaning(text: str) -> tuple[bool, bool, str]:
    """Return the meaning of a text made from the patterns above."""
    value = text.strip("?.").removesuffix(" also").split()[-1]
    return "No" in text.split(), "?" in text, {"four": "4", "five": "5"}.get(value, value)
