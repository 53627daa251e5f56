"""The same words with a key and without: one item, whichever came first, and one history."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.testing import ManualClock
from recollect.tiers import keyed
from recollect.values import MemoryItem
from tests.flows.conftest import Opener

DAY = timedelta(days=1)
TEA, COFFEE, LATTE = "Bob likes tea.", "Bob likes coffee.", "Bob likes latte."
KEY = "bob.drink"


async def live(memory: AgentMemory, as_of: datetime | None = None) -> set[str]:
    hits = await memory.semantic.search("what does Bob like", 50, min_relevance=0.0, as_of=as_of)
    assert len({hit.item.id for hit in hits}) == len({hit.item.content for hit in hits}), "the same words twice"
    return {hit.item.content for hit in hits}


async def test_a_key_given_to_a_known_fact_is_given_to_that_item(memory: AgentMemory, clock: ManualClock):
    told = await memory.remember(TEA, metadata={"from": "a talk"})
    clock.forward(DAY)
    named = await memory.remember(TEA, key=KEY)
    assert (named.id, named.key, named.created_at) == (told.id, KEY, told.created_at)
    assert named.metadata == {"from": "a talk"}
    assert (await memory.stats()).items == 1
    clock.forward(DAY)
    await memory.remember(COFFEE, key=KEY)
    assert await live(memory) == {COFFEE}
    assert await live(memory, clock.now - 1.5 * DAY) == {TEA}
    assert [one.content for one in await memory.semantic.history(KEY)] == [COFFEE, TEA]


async def test_a_keyed_fact_said_without_its_key_is_that_fact(memory: AgentMemory, clock: ManualClock):
    named = await memory.remember(TEA, key=KEY)
    clock.forward(DAY)
    told = await memory.remember(TEA, importance=0.9)
    assert (told.id, told.key, told.importance) == (named.id, KEY, 0.9)
    await memory.remember(COFFEE, key=KEY)
    assert await live(memory) == {COFFEE}


async def test_a_former_value_said_without_its_key_does_not_come_back_under_it(memory: AgentMemory, clock: ManualClock):
    await memory.remember(TEA, key=KEY)
    clock.forward(DAY)
    await memory.remember(COFFEE, key=KEY)
    clock.forward(DAY)
    again = [await memory.remember(TEA) for _ in range(2)]
    assert again[0].id == again[1].id
    assert again[0].key is None
    history = await memory.semantic.history(KEY)
    assert [(one.content, one.superseded_by is None) for one in history] == [(COFFEE, True), (TEA, False)]


async def test_a_plain_fact_that_is_older_than_the_value_of_the_key_ends_where_the_new_one_begins(
    memory: AgentMemory, clock: ManualClock
):
    began = clock.now
    plain = await memory.remember(TEA)
    clock.forward(DAY)
    await memory.remember(COFFEE, key=KEY)
    clock.forward(DAY)
    named = await memory.remember(TEA, key=KEY)
    assert named.id != plain.id
    clock.forward(DAY)
    await memory.remember(LATTE, key=KEY)
    assert await live(memory) == {LATTE}
    assert await live(memory, began + 0.5 * DAY) == {TEA}
    assert await live(memory, began + 1.5 * DAY) == {TEA, COFFEE}  # as it was told then
    ended = await memory.semantic.get(plain.id)
    assert ended is not None
    assert ended.superseded_by == named.id


async def test_in_one_call_too_it_is_one_item(memory: AgentMemory):
    for order in ([{}, {"key": "a"}], [{"key": "b"}, {}]):
        words = f"The same words, {order}."
        kept = await memory.semantic.add_many([{"content": words, **options} for options in order])
        assert len({item.id for item in kept}) == 1
        [held] = [await memory.semantic.get(kept[0].id)]
        assert held is not None
        assert held.key in ("a", "b")


@pytest.mark.parametrize("keys", [(None, KEY), (KEY, None), (KEY, KEY), (None, None)])
async def test_told_by_several_at_once_it_is_one_item_and_keeps_its_key(
    opener: Opener, keys: tuple[str | None, str | None]
):
    memory = await opener(user="ada")
    await memory.semantic.search(TEA)  # so that nobody waits for the embedder
    await asyncio.gather(*(memory.remember(TEA, key=key, metadata={str(n): n}) for n, key in enumerate(keys * 5)))
    assert (await memory.stats()).items == 1
    [hit] = await memory.semantic.search(TEA, min_relevance=0.0)
    assert hit.item.key == (KEY if KEY in keys else None)
    assert hit.item.metadata == {str(n): n for n in range(10)}


async def test_a_value_that_came_while_we_looked_for_it_is_not_told_twice(
    memory: AgentMemory, monkeypatch: pytest.MonkeyPatch
):
    looked = keyed._around

    async def overtaken(*args: Any) -> list[MemoryItem]:
        found = await looked(*args)
        monkeypatch.setattr(keyed, "_around", looked)
        await memory.remember(TEA, key=KEY)
        return found

    monkeypatch.setattr(keyed, "_around", overtaken)
    await memory.remember(TEA, key=KEY, metadata={"said": "twice"})
    [only] = await memory.semantic.history(KEY)
    assert only.metadata == {"said": "twice"}
    assert (await memory.stats()).items == 1


async def test_what_was_given_a_key_is_exported_and_imported_as_one(memory: AgentMemory, tmp_path):
    await memory.remember(TEA)
    await memory.remember(TEA, key=KEY)
    await memory.export(tmp_path / "out.jsonl")
    other = memory.scoped(user="grace")
    await other.import_from(tmp_path / "out.jsonl")
    again = await other.remember(TEA)
    assert again.key == KEY
    assert (await other.stats()).items == 1


async def test_metadata_given_anew_is_added_to_what_is_known(memory: AgentMemory):
    await memory.remember(TEA, metadata={"topic": "drinks", "year": 2025})
    again = await memory.remember(TEA, metadata={"year": 2026, "seen": True})
    assert again.metadata == {"topic": "drinks", "year": 2026, "seen": True}
    assert (await memory.remember(TEA)).metadata == again.metadata
