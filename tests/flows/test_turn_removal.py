"""Removal from the turn index: cleared, withdrawn and confidential turns are not indexed, and none is counted."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import StoreUnavailable
from recollect.stores.filters import Where
from recollect.stores.writes import Clear
from recollect.testing import ManualClock
from recollect.testing.factories import find_nearest
from recollect.types import get_turn_space
from tests.embedders import HashEmbedder
from tests.flows.conftest import Opener, indexed
from tests.flows.conversation_fixtures import (
    ASKED,
    REMARK,
    Failing,
    Hesitating,
    draft_mark_deletion,
    index_turns,
    load_index,
    search_turns,
    small_talk,
)


async def two_places(tmp_path: Path, **options: Any) -> AgentMemory:
    """Open a memory with the conversations in one store and their index in another."""
    places = {"default": str(tmp_path / "a.db"), "conversation": str(tmp_path / "log.db")}
    options.setdefault("embedder", HashEmbedder())
    return await AgentMemory.open(places, user="ada", session="home", **options)


class TestClear:
    async def test_clear_removes_turns_from_the_index_and_the_file(self, tmp_path: Path):
        # Mutant: `clear` does not change the index.
        place = tmp_path / "a.db"
        async with AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as memory:
            await memory.conversation.add_message("user", "The zyzzyva neighbour practises the cello.")
            await memory.scoped(session="other").conversation.add_message("user", "The xylitol is in the drawer.")
            assert len(await load_index(await index_turns(memory))) == 2
            await memory.conversation.clear()
            assert [item.content for item in await load_index(memory)] == ["The xylitol is in the drawer."]
            assert await search_turns(memory, "Does the zyzzyva neighbour practise the cello?") == []
            await indexed(memory)
            assert len(await load_index(memory)) == 1
        assert b"xylitol" in place.read_bytes()
        assert b"zyzzyva" not in place.read_bytes()

    async def test_clear_and_index_deletion_are_one_batch(self, opener: Opener):
        memory = await opener(user="ada", session="home")
        await memory.record_turn(REMARK)
        await indexed(memory)
        seen: list[list[str]] = []
        store: Any = memory._engine.stores.log("conversation")
        write = store.write

        async def watched(*writes: Any) -> None:
            seen.append([type(entry).__name__ for entry in writes])
            await write(*writes)

        store.write = watched
        await memory.conversation.clear()
        assert sorted(seen[0]) == ["Clear", "Delete", "Delete"]

    async def test_clear_during_indexing_does_not_restore_turns(self, opener: Opener):
        # Mutant: the index writes without checking a version.
        embedder = Hesitating()
        memory = await opener(user="ada", session="home", embedder=embedder)
        await memory.remember("The model has been asked once.")
        embedder.hangs = True
        await memory.record_turn(REMARK)
        await embedder.asked.wait()  # the entry was read and is being embedded
        await memory.conversation.clear()
        embedder.hangs = False
        embedder.go_on.set()
        await indexed(memory)
        assert await load_index(memory) == []

    async def test_clear_before_the_first_indexing_creates_no_mark(self, memory: AgentMemory):
        # Mutant: `clear` does not check that there is no mark yet.
        home = memory.scoped(session="home")
        index: Any = memory._engine.turn_index
        index._is_closed = True  # stops background indexing
        await home.record_turn(REMARK)
        follower: Any = home.conversation._index
        draft_deletions = follower._draft_deletions

        async def slowly(*given: Any, **options: Any) -> Any:
            drafted = await draft_deletions(*given, **options)
            follower._draft_deletions = draft_deletions
            await index._create_mark(home.conversation._space)  # another process starts indexing
            return drafted

        follower._draft_deletions = slowly
        marks = await index._load_marks([home.conversation._space])
        assert marks == {}
        await home.conversation.clear()
        assert (
            await index._load_marks([home.conversation._space]) == {}
        )  # otherwise a process that has read the log could continue

    async def test_turn_recorded_after_clear_is_found(self, memory: AgentMemory):
        home = memory.scoped(session="home")
        for text in (REMARK, "The neighbour has sold the instrument, a cello."):
            await home.conversation.clear()
            await home.record_turn(text)
            await small_talk(memory)
            assert await search_turns(memory) == [text]

    async def test_leftovers_of_a_cleared_log_are_removed_when_it_is_indexed(self, memory: AgentMemory):
        # Mutant: a log without a mark is indexed without removing leftovers.
        home = memory.scoped(session="home")
        await home.record_turn(REMARK)
        await indexed(memory)
        # The state after a clear while a step waits for its commit, or after a crash between two stores.
        note = await draft_mark_deletion(home)
        await memory._engine.stores.records("semantic").write(*note)
        await memory._engine.stores.log("conversation").write(Clear(home.conversation._space))
        await home.record_turn("Good morning, the build is green.")
        await indexed(memory)
        assert [item.content for item in await load_index(memory)] == ["Good morning, the build is green."]

    async def test_clear_across_two_stores_deletes_index_items_first(self, tmp_path: Path):
        # Mutant: the log is cleared before the index.
        memory = await two_places(tmp_path)
        await memory.record_turn(REMARK)
        await indexed(memory)
        log: Any = memory._engine.stores.log("conversation")
        write = log.write

        async def dies(*writes: Any) -> None:
            if any(isinstance(entry, Clear) for entry in writes):
                raise StoreUnavailable("power failure")
            await write(*writes)

        log.write = dies
        with pytest.raises(StoreUnavailable):
            await memory.conversation.clear()
        assert await load_index(memory) == []
        assert len(await memory.conversation.get_last_n(5)) == 1
        log.write = write
        await small_talk(memory)
        assert await search_turns(memory) == [REMARK]  # the log was not cleared, so the turn is indexed again
        await memory.conversation.clear()
        assert await search_turns(memory) == []
        await memory.close()

    async def test_turn_missing_from_the_log_is_not_shown_across_two_stores(self, tmp_path: Path):
        # Mutant: indexed turns are returned without a check of the log.
        memory = await two_places(tmp_path)
        await memory.record_turn(REMARK)
        await small_talk(memory)
        await indexed(memory)
        await memory._engine.stores.log("conversation").write(Clear(memory.conversation._space))
        assert await search_turns(memory) == []
        await memory.close()

    async def test_import_replaces_the_indexed_turns(self, memory: AgentMemory):
        home = memory.scoped(session="home")
        await home.record_turn(REMARK)
        await indexed(memory)
        exported = {"messages": [{"role": "user", "content": "The neighbour plays the oboe, an instrument."}]}
        await home.conversation.import_from(exported)
        await small_talk(memory)
        assert await search_turns(memory) == ["The neighbour plays the oboe, an instrument."]


class TestConfidentialTurns:
    async def test_confidential_turn_and_its_answer_are_not_indexed(self, memory: AgentMemory):
        # Mutant: confidential turns are indexed.
        home = memory.scoped(session="home")
        await home.record_turn(f"Between us: {REMARK}", "A cello, what an instrument!")
        await home.record_turn("The bins are collected on Friday.", "I note that.")
        await small_talk(memory)
        assert await search_turns(memory) == []
        assert not any("cello" in item.content for item in await load_index(memory))
        assert any("bins" in item.content for item in await load_index(memory))

    async def test_answer_to_a_confidential_turn_on_the_next_page_is_not_indexed(self, memory: AgentMemory):
        # Mutant: the mark does not store that the last turn was confidential.
        home = memory.scoped(session="home")
        await home.conversation.add_message("user", f"Between us: {REMARK}")
        await indexed(memory)
        await home.conversation.add_message("assistant", "A cello, what an instrument!")
        await indexed(memory)
        assert await load_index(memory) == []

    async def test_withdrawn_turn_is_removed_from_the_index(self, opener: Opener):
        # Mutant: only new entries are processed.
        embedder = Failing()
        memory = await opener(user="ada", session="home", embedder=embedder)
        await memory.record_turn(REMARK, "I see.")
        await indexed(memory)
        assert any("cello" in item.content for item in await load_index(memory))
        embedder.down = True  # removal must not wait for the embedder
        await memory.record_turn("Please forget what I said.", "Forgotten.")
        await indexed(memory)
        assert not any("cello" in item.content for item in await load_index(memory))

    async def test_withdrawn_turn_is_not_quoted_before_it_is_unindexed(self, tmp_path: Path):
        # Mutant: the newest log entries are not checked.
        place = tmp_path / "a.db"
        async with (
            AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as here,
            AgentMemory.open(place, user="ada", session="new", embedder=HashEmbedder()) as there,
        ):
            await here.record_turn(REMARK)
            await indexed(here)
            assert await search_turns(there) == [REMARK]
            here._engine.turn_index._is_closed = there._engine.turn_index._is_closed = True  # stops background indexing
            await here.record_turn("Scratch that.")
            assert await search_turns(there) == []
            assert len(await load_index(there)) == 1


class TestHiddenIndex:
    async def test_indexed_turns_are_not_counted_exported_or_searched_as_facts(
        self, memory: AgentMemory, tmp_path: Path
    ):
        await memory.remember("The pot is blue.")
        before = await memory.stats(whole_store=True)
        await memory.scoped(session="home").record_turn(REMARK)
        await indexed(memory)
        after = await memory.stats(whole_store=True)
        assert len(await load_index(memory)) == 1
        assert (after.items, after.all_items, after.spaces) == (before.items, before.all_items, before.spaces)
        assert after.tiers["conversation"].items == 1
        assert await memory.semantic.search(ASKED) == []
        assert len(await memory.semantic.page()) == 1
        report = await memory.export(tmp_path / "out.jsonl")
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert sum(REMARK in json.dumps(line) for line in lines) == 2  # the message, and the episode
        assert report.lines.get("lifecycle", 0) == 0

    async def test_import_rebuilds_the_turn_index(self, memory: AgentMemory, opener: Opener, tmp_path: Path):
        await memory.scoped(session="home").record_turn(REMARK)
        await memory.export(tmp_path / "out.jsonl")
        other = await opener(store="memory://", user="bob")
        await other.import_from(tmp_path / "out.jsonl")
        await small_talk(other)
        assert await search_turns(other) == [REMARK]

    async def test_lifecycle_does_not_age_or_forget_indexed_turns(self, memory: AgentMemory, clock: ManualClock):
        await memory.scoped(session="home").record_turn(REMARK)
        await indexed(memory)
        before = await load_index(memory)
        for _ in range(3):
            clock.forward(timedelta(days=400))
            await memory.lifecycle.run_once(all_users=True)
            await memory.semantic.consolidate()
        assert await load_index(memory) == before
        assert await search_turns(memory, n=5) == [REMARK]
        assert (await load_index(memory))[0].access_count == 0  # recall does not write to it

    async def test_reembed_includes_indexed_turns(self, memory: AgentMemory):
        await memory.scoped(session="home").record_turn(REMARK)
        await indexed(memory)
        other = HashEmbedder("other", 96)
        await memory.reembed(other)
        await small_talk(memory)
        assert (await search_turns(memory))[0] == REMARK
        records = memory._engine.stores.records("semantic")
        assert len(
            await find_nearest(records, Where(get_turn_space(memory.scope)), other.embed(ASKED), limit=50)
        ) == len(await load_index(memory))

    async def test_turn_index_is_not_searched_before_the_first_turn(self, memory: AgentMemory):
        # Mutant: the index is always searched.
        searched: list[str] = []
        records: Any = memory._engine.stores.records("semantic")
        gather = records.gather

        async def watched(ask: Any, judge: Any) -> Any:
            searched.append(ask.where.space.tier)
            return await gather(ask, judge)

        records.gather = watched
        await memory.remember("The pot is blue.")
        for _ in range(3):
            await memory.recall("Which colour is the pot?")
        assert "conversation" not in searched
        await memory.record_turn(REMARK)
        await memory.scoped(session="new").recall(ASKED)
        assert "conversation" in searched


async def test_recall_falls_back_to_recent_turns_while_the_store_is_down(tmp_path: Path):
    memory = await two_places(tmp_path)
    await memory.record_turn(REMARK)
    await indexed(memory)
    records: Any = memory._engine.stores.records("semantic")

    async def away(*_: Any) -> None:
        raise StoreUnavailable("no answer")

    records.gather = away
    context = await memory.recall("Who practises the cello?", tiers=("conversation",))
    assert REMARK in str(context)
    assert context.warnings == ("older turns could not be searched: no answer",)
    await memory.close()


async def test_concurrent_turns_and_clears_leave_no_stale_index_entries(tmp_path: Path):
    place = tmp_path / "a.db"
    async with (
        AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as first,
        AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as second,
    ):
        for turn in range(30):
            await asyncio.gather(first.record_turn(f"The cello is {turn}."), second.record_turn(f"The oboe is {turn}."))
            if turn % 5 == 4:
                await second.conversation.clear()
        await asyncio.gather(indexed(first), indexed(second))
        stored = {entry.id for entry in await first.conversation.get_last_n(100)}
        assert {item.derived_from[0] for item in await load_index(first)} == stored
