"""The same fact with and without a key: one item and one history, in any order."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.testing import ManualClock
from recollect.tiers import facts
from recollect.types import MemoryItem
from tests.flows.conftest import Opener

DAY = timedelta(days=1)
TEA, COFFEE, LATTE = "Bob likes tea.", "Bob likes coffee.", "Bob likes latte."
KEY = "bob.drink"


async def search_contents(memory: AgentMemory, as_of: datetime | None = None) -> set[str]:
    hits = await memory.semantic.search("what does Bob like", 50, min_relevance=0.0, as_of=as_of)
    assert len({hit.item.id for hit in hits}) == len({hit.item.content for hit in hits}), (
        "the same content was returned twice"
    )
    return {hit.item.content for hit in hits}


async def test_remember_known_fact_with_key_adds_the_key_to_that_item(memory: AgentMemory, clock: ManualClock):
    unkeyed = await memory.remember(TEA, metadata={"from": "a talk"})
    clock.forward(DAY)
    named = await memory.remember(TEA, key=KEY)
    assert (named.id, named.key, named.created_at) == (unkeyed.id, KEY, unkeyed.created_at)
    assert named.metadata == {"from": "a talk"}
    assert (await memory.stats()).items == 1
    clock.forward(DAY)
    await memory.remember(COFFEE, key=KEY)
    assert await search_contents(memory) == {COFFEE}
    assert await search_contents(memory, clock.now - 1.5 * DAY) == {TEA}
    assert [item.content for item in await memory.semantic.history(KEY)] == [COFFEE, TEA]


async def test_remember_keyed_fact_without_key_updates_that_item(memory: AgentMemory, clock: ManualClock):
    named = await memory.remember(TEA, key=KEY)
    clock.forward(DAY)
    unkeyed = await memory.remember(TEA, importance=0.9)
    assert (unkeyed.id, unkeyed.key, unkeyed.importance) == (named.id, KEY, 0.9)
    await memory.remember(COFFEE, key=KEY)
    assert await search_contents(memory) == {COFFEE}


async def test_remember_former_value_without_key_creates_an_unkeyed_item(memory: AgentMemory, clock: ManualClock):
    await memory.remember(TEA, key=KEY)
    clock.forward(DAY)
    await memory.remember(COFFEE, key=KEY)
    clock.forward(DAY)
    again = [await memory.remember(TEA) for _ in range(2)]
    assert again[0].id == again[1].id
    assert again[0].key is None
    history = await memory.semantic.history(KEY)
    assert [(item.content, item.superseded_by is None) for item in history] == [(COFFEE, True), (TEA, False)]


async def test_remember_older_fact_with_key_ends_the_unkeyed_item(memory: AgentMemory, clock: ManualClock):
    began = clock.now
    plain = await memory.remember(TEA)
    clock.forward(DAY)
    await memory.remember(COFFEE, key=KEY)
    clock.forward(DAY)
    named = await memory.remember(TEA, key=KEY)
    assert named.id != plain.id
    clock.forward(DAY)
    await memory.remember(LATTE, key=KEY)
    assert await search_contents(memory) == {LATTE}
    assert await search_contents(memory, began + 0.5 * DAY) == {TEA}
    assert await search_contents(memory, began + 1.5 * DAY) == {TEA, COFFEE}  # as it was stored then
    ended = await memory.semantic.get(plain.id)
    assert ended is not None
    assert ended.superseded_by == named.id


async def test_add_many_same_content_with_and_without_key_is_one_item(memory: AgentMemory):
    for order in ([{}, {"key": "a"}], [{"key": "b"}, {}]):
        words = f"The same words, {order}."
        kept = await memory.semantic.add_many([{"content": words, **options} for options in order])
        assert len({item.id for item in kept}) == 1
        [stored] = [await memory.semantic.get(kept[0].id)]
        assert stored is not None
        assert stored.key in ("a", "b")


@pytest.mark.parametrize("keys", [(None, KEY), (KEY, None), (KEY, KEY), (None, None)])
async def test_concurrent_remember_with_and_without_key_keeps_one_keyed_item(
    opener: Opener, keys: tuple[str | None, str | None]
):
    memory = await opener(user="ada")
    await memory.semantic.search(TEA)  # fills the embedding cache, so that no call waits for the embedder
    await asyncio.gather(*(memory.remember(TEA, key=key, metadata={str(n): n}) for n, key in enumerate(keys * 5)))
    assert (await memory.stats()).items == 1
    [hit] = await memory.semantic.search(TEA, min_relevance=0.0)
    assert hit.item.key == (KEY if KEY in keys else None)
    assert hit.item.metadata == {str(n): n for n in range(10)}


async def test_value_written_during_lookup_is_not_duplicated(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    looked = facts._find_overlapping

    async def overtaken(*args: Any) -> list[MemoryItem]:
        found = await looked(*args)
        monkeypatch.setattr(facts, "_find_overlapping", looked)
        await memory.remember(TEA, key=KEY)
        return found

    monkeypatch.setattr(facts, "_find_overlapping", overtaken)
    await memory.remember(TEA, key=KEY, metadata={"said": "twice"})
    [only] = await memory.semantic.history(KEY)
    assert only.metadata == {"said": "twice"}
    assert (await memory.stats()).items == 1


async def test_fact_keyed_later_is_exported_and_imported_as_one_item(memory: AgentMemory, tmp_path):
    await memory.remember(TEA)
    await memory.remember(TEA, key=KEY)
    await memory.export(tmp_path / "out.jsonl")
    other = memory.scoped(user="grace")
    await other.import_from(tmp_path / "out.jsonl")
    again = await other.remember(TEA)
    assert again.key == KEY
    assert (await other.stats()).items == 1


async def test_remember_known_fact_merges_metadata(memory: AgentMemory):
    await memory.remember(TEA, metadata={"topic": "drinks", "year": 2025})
    again = await memory.remember(TEA, metadata={"year": 2026, "seen": True})
    assert again.metadata == {"topic": "drinks", "year": 2026, "seen": True}
    assert (await memory.remember(TEA)).metadata == again.metadata
