"""The survivor of a merge: its selection, the fields it inherits, and later writes to merged items."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.stores.writes import Put
from recollect.testing import ManualClock
from tests.flows.consolidate.variants import DAY, TEA, load_item, remember_variants, search_contents


class TestSurvivor:
    @pytest.mark.parametrize(
        ("options", "best"),
        [
            ([{"trust": 0.5, "importance": 0.9}, {"trust": 0.9, "importance": 0.1}, {"trust": 0.5}], 1),
            ([{"importance": 0.3}, {"importance": 0.3}, {"importance": 0.4}], 2),
            ([{"importance": 0.3}, {"importance": 0.3}, {"importance": 0.3}], 0),
        ],
        ids=["trusted", "important", "oldest"],
    )
    async def test_survivor_is_the_most_trusted_then_important_then_oldest(
        self, memory: AgentMemory, clock: ManualClock, options: list[dict[str, Any]], best: int
    ):
        items = []
        for text, option in zip(TEA, options, strict=True):
            items.append(await memory.remember(text, **option))
            clock.forward(DAY)
        [merge] = (await memory.semantic.consolidate()).merged
        assert merge.survivor == items[best].id
        survivor = await load_item(memory, merge.survivor)
        assert (survivor.trust, survivor.content) == (items[best].trust, TEA[best])
        assert survivor.importance == max(item.importance for item in items)

    async def test_survivor_inherits_missing_metadata_validity_and_pin(self, memory: AgentMemory, clock: ManualClock):
        now = clock.now
        await memory.remember(TEA[0], importance=0.9, metadata={"room": "blue"}, valid_from=now - DAY)
        await memory.remember(TEA[1], importance=0.2, metadata={"room": "red", "cup": 1}, valid_from=now - 9 * DAY)
        await memory.remember(TEA[2], importance=0.1, metadata={"cup": 2, "pot": 3}, pinned=True)
        [merge] = (await memory.semantic.consolidate()).merged
        survivor = await load_item(memory, merge.survivor)
        assert dict(survivor.metadata) == {"room": "blue", "cup": 1, "pot": 3}
        assert (survivor.valid_from, survivor.pinned) == (now - 9 * DAY, True)
        assert [hit.item.id for hit in await memory.semantic.search("tea", min_relevance=0.0, where={"pot": 3})] == [
            survivor.id
        ]

    async def test_less_trusted_copies_add_no_metadata(self, memory: AgentMemory):
        mine = await memory.remember(TEA[0], metadata={"room": "blue"})
        await memory.remember(TEA[1], source="web", metadata={"approved": True})
        await memory.semantic.consolidate()
        survivor = await load_item(memory, mine.id)
        assert (dict(survivor.metadata), survivor.trust, survivor.source) == ({"room": "blue"}, 1.0, "user")

    async def test_survivor_inherits_access_counts(self, memory: AgentMemory, clock: ManualClock):
        first = await memory.remember(TEA[0], importance=0.9)
        clock.forward(DAY)
        second = await memory.remember("ada drinks tea", importance=0.1)
        for _ in range(3):
            await memory.semantic.search("tea", where={"importance": {"lt": 0.5}}, min_relevance=0.0)
        assert (await load_item(memory, second.id)).access_count == 3
        clock.forward(DAY)
        await memory.semantic.consolidate()
        survivor = await load_item(memory, first.id)
        assert (survivor.access_count, survivor.last_accessed) == (3, clock.now - DAY)

    async def test_survivor_inherits_importance_with_its_decay_time(self, memory: AgentMemory, clock: ManualClock):
        first = await memory.remember(TEA[0], importance=0.2, trust=1.0)
        clock.forward(DAY)
        other = await memory.remember(TEA[1], importance=0.8, trust=0.5)
        await memory.semantic.consolidate()
        survivor = await load_item(memory, first.id)
        assert (survivor.importance, survivor.decayed_at) == (0.8, other.decayed_at)

    async def test_survivor_references_all_merged_items(self, memory: AgentMemory, clock: ManualClock):
        ids = []
        for text, importance in zip(TEA, (0.1, 0.2, 0.3), strict=True):
            ids.append((await memory.remember(text, importance=importance)).id)
            await memory.semantic.consolidate()
            clock.forward(DAY)
        last = await load_item(memory, ids[2])
        assert set(last.derived_from) == {ids[0], ids[1]}
        assert [(await load_item(memory, id)).superseded_by for id in ids] == [ids[1], ids[2], None]
        assert await memory.forget(ids[2])
        assert (await memory.stats()).items == 0


class TestRememberAfterMerge:
    async def test_remember_merged_text_updates_the_survivor(self, memory: AgentMemory, clock: ManualClock):
        first, second, _ = await remember_variants(memory, clock)
        await memory.semantic.consolidate()
        clock.forward(DAY)
        again = await memory.remember(TEA[1], importance=0.9, metadata={"cup": 1})
        assert (again.id, again.importance, dict(again.metadata)) == (first.id, 0.9, {"cup": 1})
        assert await search_contents(memory, "Ada tea") == [TEA[0]]
        assert (await load_item(memory, second.id)).superseded_by == first.id
        assert (await memory.semantic.consolidate()).merged == ()

    async def test_add_many_merged_texts_and_the_survivor_update_the_survivor(
        self, memory: AgentMemory, clock: ManualClock
    ):
        first, *_ = await remember_variants(memory, clock)
        await memory.semantic.consolidate()
        items = await memory.semantic.add_many(
            [
                {"content": TEA[1], "metadata": {"cup": 1}},
                {"content": TEA[0], "importance": 0.9},
                {"content": TEA[2], "metadata": {"pot": 2}},
            ]
        )
        assert {item.id for item in items} == {first.id}
        survivor = await load_item(memory, first.id)
        assert (survivor.importance, dict(survivor.metadata)) == (0.9, {"cup": 1, "pot": 2})
        assert await search_contents(memory, "Ada tea") == [TEA[0]]

    async def test_remember_merged_text_with_more_trust_restores_it_as_survivor(self, memory: AgentMemory):
        first = await memory.remember(TEA[0], source="web", importance=0.9)
        second = await memory.remember(TEA[1], source="web")
        await memory.semantic.consolidate()
        again = await memory.remember(TEA[1], source="user")
        assert (again.id, again.trust, again.superseded_by, again.valid_to) == (second.id, 1.0, None, None)
        [merge] = (await memory.semantic.consolidate()).merged
        assert (merge.survivor, merge.merged) == (second.id, (first.id,))
        assert (await load_item(memory, second.id)).derived_from == (first.id,)
        assert (await memory.remember(TEA[0], source="web")).id == second.id
        assert (await memory.semantic.consolidate()).merged == ()

    async def test_remember_merged_text_with_less_trust_changes_nothing(self, memory: AgentMemory, clock: ManualClock):
        first, *_ = await remember_variants(memory, clock)
        await memory.semantic.consolidate()
        before = await load_item(memory, first.id)
        again = await memory.remember(TEA[1], source="web", importance=1.0, metadata={"approved": True})
        assert again == before

    async def test_remember_merged_text_after_the_survivor_ended_restores_it(
        self, memory: AgentMemory, clock: ManualClock
    ):
        first = await memory.remember(TEA[0], valid_to=clock.now + 3 * DAY)
        second = await memory.remember(TEA[1], valid_to=clock.now + 3 * DAY)
        clock.forward(DAY)
        await memory.semantic.consolidate()
        assert (await load_item(memory, second.id)).superseded_by == first.id
        clock.forward(5 * DAY)
        assert await search_contents(memory, "Ada tea") == []
        assert (await memory.remember(TEA[1])).id == second.id
        assert await search_contents(memory, "Ada tea") == [TEA[1]]

    async def test_remember_superseded_text_that_was_not_merged_restores_it(
        self, memory: AgentMemory, clock: ManualClock
    ):
        old, new = await memory.remember("Ada lives in Oslo."), await memory.remember("Ada lives in Rome.")
        await memory.semantic._store.write(Put(item=replace(old, superseded_by=new.id, valid_to=clock.now)))
        assert await search_contents(memory, "Ada lives") == ["Ada lives in Rome."]
        assert (await memory.remember("Ada lives in Oslo.")).id == old.id
        assert await search_contents(memory, "Ada lives") == ["Ada lives in Oslo.", "Ada lives in Rome."]

    async def test_remember_merged_text_with_its_own_validity_restores_it(
        self, memory: AgentMemory, clock: ManualClock
    ):
        _, second, _ = await remember_variants(memory, clock)
        await memory.semantic.consolidate()
        end = clock.now + DAY
        again = await memory.remember(TEA[1], valid_to=end)
        assert (again.id, again.valid_to, again.superseded_by) == (second.id, end, None)
        assert (await memory.semantic.consolidate()).merged == ()

    async def test_forget_survivor_forgets_the_merged_items(self, memory: AgentMemory, clock: ManualClock):
        items = await remember_variants(memory, clock)
        other = await memory.remember("Ada drinks coffee.")
        clock.forward(DAY)
        await memory.semantic.consolidate()
        assert await memory.forget(items[0].id)
        assert [await memory.semantic.get(item.id) for item in items] == [None] * 3
        assert await search_contents(memory, "Ada drinks", as_of=clock.now - DAY / 2) == [other.content]
