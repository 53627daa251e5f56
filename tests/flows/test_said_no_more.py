"""The index of what was said follows its source: what is cleared, taken back or confided is not in it, nor counted."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import StoreUnavailable
from recollect.memory.turn_items import space_of
from recollect.stores.ops import Clear
from recollect.stores.where import Where
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.conftest import Opener, indexed
from tests.flows.saying import ASKED, REMARK, Failing, Hesitating, dropped_note, found, rows, settled, small_talk


async def two_places(tmp_path: Path, **options: Any) -> AgentMemory:
    """The conversations in one store, and what they are found by in another."""
    places = {"default": str(tmp_path / "a.db"), "conversation": str(tmp_path / "log.db")}
    options.setdefault("embedder", HashEmbedder())
    return await AgentMemory.open(places, user="ada", session="home", **options)


class TestCleared:
    async def test_it_is_gone_from_the_index_and_from_the_file(self, tmp_path: Path):
        # Mutant: clearing a conversation leaves the index alone.
        place = tmp_path / "a.db"
        async with AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as memory:
            await memory.conversation.add_message("user", "The zyzzyva neighbour practises the cello.")
            await memory.scoped(session="other").conversation.add_message("user", "The xylitol is in the drawer.")
            assert len(await rows(await settled(memory))) == 2
            await memory.conversation.clear()
            assert [item.content for item in await rows(memory)] == ["The xylitol is in the drawer."]
            assert await found(memory, "Does the zyzzyva neighbour practise the cello?") == []
            await indexed(memory)
            assert len(await rows(memory)) == 1
        assert b"xylitol" in place.read_bytes()
        assert b"zyzzyva" not in place.read_bytes()

    async def test_it_goes_with_its_source_in_one_batch(self, opener: Opener):
        memory = await opener(user="ada", session="home")
        await memory.record_turn(REMARK)
        await indexed(memory)
        seen: list[list[str]] = []
        store: Any = memory._parts.stores.log("conversation")
        write = store.write

        async def watched(*writes: Any) -> None:
            seen.append([type(one).__name__ for one in writes])
            await write(*writes)

        store.write = watched
        await memory.conversation.clear()
        assert sorted(seen[0]) == ["Clear", "Delete", "Delete"]

    async def test_whoever_is_indexing_it_at_that_moment_does_not_bring_it_back(self, opener: Opener):
        # Mutant: the batch of the index names no version.
        embedder = Hesitating()
        memory = await opener(user="ada", session="home", embedder=embedder)
        await memory.remember("The model has been asked once.")
        embedder.hangs = True
        await memory.record_turn(REMARK)
        await embedder.asked.wait()  # it was read, and is being embedded
        await memory.conversation.clear()
        embedder.hangs = False
        embedder.go_on.set()
        await indexed(memory)
        assert await rows(memory) == []

    async def test_also_where_nothing_of_it_had_been_indexed(self, memory: AgentMemory):
        # Mutant: that there is no note yet is not made sure of.
        home = memory.scoped(session="home")
        index: Any = memory._parts.said
        index._closed = True  # nothing is indexed behind our back
        await home.record_turn(REMARK)
        follower: Any = home.conversation._index
        gone = follower._gone

        async def slowly(*given: Any, **options: Any) -> Any:
            found = await gone(*given, **options)
            follower._gone = gone
            await index._begun(home.conversation.space)  # somebody else begins, behind our back
            return found

        follower._gone = slowly
        held = await index._marks([home.conversation.space])
        assert held == {}
        await home.conversation.clear()
        assert await index._marks([home.conversation.space]) == {}  # or one who had read the log could go on

    async def test_said_again_after_it_was_cleared_it_is_found_again(self, memory: AgentMemory):
        home = memory.scoped(session="home")
        for text in (REMARK, "The neighbour has sold the instrument, a cello."):
            await home.conversation.clear()
            await home.record_turn(text)
            await small_talk(memory)
            assert await found(memory) == [text]

    async def test_leftovers_of_a_log_that_was_cleared_go_when_it_is_looked_at(self, memory: AgentMemory):
        # Mutant: what has no note is indexed as it is.
        home = memory.scoped(session="home")
        await home.record_turn(REMARK)
        await indexed(memory)
        # As one leaves it who clears while a step waits for its commit, or dies between two stores.
        note = await dropped_note(home)
        await memory._parts.stores.records("semantic").write(*note)
        await memory._parts.stores.log("conversation").write(Clear(home.conversation.space))
        await home.record_turn("Good morning, the build is green.")
        await indexed(memory)
        assert [item.content for item in await rows(memory)] == ["Good morning, the build is green."]

    async def test_in_two_stores_the_items_go_first_and_a_crash_leaves_no_item_without_its_source(self, tmp_path: Path):
        # Mutant: the log is cleared before the index.
        memory = await two_places(tmp_path)
        await memory.record_turn(REMARK)
        await indexed(memory)
        log: Any = memory._parts.stores.log("conversation")
        write = log.write

        async def dies(*writes: Any) -> None:
            if any(isinstance(one, Clear) for one in writes):
                raise StoreUnavailable("the power is gone")
            await write(*writes)

        log.write = dies
        with pytest.raises(StoreUnavailable):
            await memory.conversation.clear()
        assert await rows(memory) == []
        assert len(await memory.conversation.get_last_n(5)) == 1
        log.write = write
        await small_talk(memory)
        assert await found(memory) == [REMARK]  # it was not cleared, and so it is indexed again
        await memory.conversation.clear()
        assert await found(memory) == []
        await memory.close()

    async def test_in_two_stores_what_the_log_has_lost_is_not_shown(self, tmp_path: Path):
        # Mutant: what the index says is believed.
        memory = await two_places(tmp_path)
        await memory.record_turn(REMARK)
        await small_talk(memory)
        await indexed(memory)
        await memory._parts.stores.log("conversation").write(Clear(memory.conversation.space))
        assert await found(memory) == []
        await memory.close()

    async def test_an_import_in_its_place_replaces_what_is_found(self, memory: AgentMemory):
        home = memory.scoped(session="home")
        await home.record_turn(REMARK)
        await indexed(memory)
        told = {"messages": [{"role": "user", "content": "The neighbour plays the oboe, an instrument."}]}
        await home.conversation.import_from(told)
        await small_talk(memory)
        assert await found(memory) == ["The neighbour plays the oboe, an instrument."]


class TestInConfidence:
    async def test_what_was_confided_is_not_in_the_index_nor_is_its_answer(self, memory: AgentMemory):
        # Mutant: confided words are indexed.
        home = memory.scoped(session="home")
        await home.record_turn(f"Between us: {REMARK}", "A cello, what an instrument!")
        await home.record_turn("The bins are collected on Friday.", "I note that.")
        await small_talk(memory)
        assert await found(memory) == []
        assert not any("cello" in item.content for item in await rows(memory))
        assert any("bins" in item.content for item in await rows(memory))

    async def test_also_where_the_answer_comes_on_the_next_page_of_the_log(self, memory: AgentMemory):
        # Mutant: the note does not say that the last word was in confidence.
        home = memory.scoped(session="home")
        await home.conversation.add_message("user", f"Between us: {REMARK}")
        await indexed(memory)
        await home.conversation.add_message("assistant", "A cello, what an instrument!")
        await indexed(memory)
        assert await rows(memory) == []

    async def test_what_is_taken_back_later_is_taken_out(self, opener: Opener):
        # Mutant: only new entries are looked at.
        embedder = Failing()
        memory = await opener(user="ada", session="home", embedder=embedder)
        await memory.record_turn(REMARK, "I see.")
        await indexed(memory)
        assert any("cello" in item.content for item in await rows(memory))
        embedder.down = True  # nobody waits for a model to forget
        await memory.record_turn("Please forget what I said.", "Forgotten.")
        await indexed(memory)
        assert not any("cello" in item.content for item in await rows(memory))

    async def test_taken_back_a_moment_ago_it_is_not_quoted_though_it_is_still_indexed(self, tmp_path: Path):
        # Mutant: the ends of the logs are not looked at.
        place = tmp_path / "a.db"
        async with (
            AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as here,
            AgentMemory.open(place, user="ada", session="new", embedder=HashEmbedder()) as there,
        ):
            await here.record_turn(REMARK)
            await indexed(here)
            assert await found(there) == [REMARK]
            here._parts.said._closed = there._parts.said._closed = True  # both are slow
            await here.record_turn("Scratch that.")
            assert await found(there) == []
            assert len(await rows(there)) == 1


class TestNotCounted:
    async def test_it_is_neither_counted_nor_exported_nor_searched_as_facts(self, memory: AgentMemory, tmp_path: Path):
        await memory.remember("The pot is blue.")
        before = await memory.stats(everybody=True)
        await memory.scoped(session="home").record_turn(REMARK)
        await indexed(memory)
        after = await memory.stats(everybody=True)
        assert len(await rows(memory)) == 1
        assert (after.items, after.all_items, after.spaces) == (before.items, before.all_items, before.spaces)
        assert after.tiers["conversation"].items == 1
        assert await memory.semantic.search(ASKED) == []
        assert len(await memory.semantic.page()) == 1
        report = await memory.export(tmp_path / "out.jsonl")
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert sum(REMARK in json.dumps(line) for line in lines) == 2  # the message, and the episode
        assert report.lines.get("lifecycle", 0) == 0

    async def test_after_an_import_it_is_made_again(self, memory: AgentMemory, opener: Opener, tmp_path: Path):
        await memory.scoped(session="home").record_turn(REMARK)
        await memory.export(tmp_path / "out.jsonl")
        other = await opener(store="memory://", user="bob")
        await other.import_from(tmp_path / "out.jsonl")
        await small_talk(other)
        assert await found(other) == [REMARK]

    async def test_the_lifecycle_neither_ages_nor_forgets_it(self, memory: AgentMemory, clock: ManualClock):
        await memory.scoped(session="home").record_turn(REMARK)
        await indexed(memory)
        before = await rows(memory)
        for _ in range(3):
            clock.forward(timedelta(days=400))
            await memory.lifecycle.run_once(everybody=True)
            await memory.semantic.consolidate()
        assert await rows(memory) == before
        assert await found(memory) == [REMARK]
        assert (await rows(memory))[0].access_count == 0  # nor is it written to for being found

    async def test_a_change_of_models_takes_it_along(self, memory: AgentMemory):
        await memory.scoped(session="home").record_turn(REMARK)
        await indexed(memory)
        other = HashEmbedder("other", 96)
        await memory.reembed(other)
        await small_talk(memory)
        assert (await found(memory))[0] == REMARK
        records = memory._parts.stores.records("semantic")
        assert len(await records.nearest(Where(space_of(memory.scope)), other.embed(ASKED), limit=50)) == len(
            await rows(memory)
        )

    async def test_before_the_first_word_nothing_is_searched(self, memory: AgentMemory):
        # Mutant: the index is always asked.
        asked: list[str] = []
        records: Any = memory._parts.stores.records("semantic")
        gather = records.gather

        async def watched(ask: Any, judge: Any) -> Any:
            asked.append(ask.where.space.tier)
            return await gather(ask, judge)

        records.gather = watched
        await memory.remember("The pot is blue.")
        for _ in range(3):
            await memory.recall("Which colour is the pot?")
        assert "conversation" not in asked
        await memory.record_turn(REMARK)
        await memory.scoped(session="new").recall(ASKED)
        assert "conversation" in asked


async def test_on_a_store_that_is_down_the_ends_of_the_logs_are_told(tmp_path: Path):
    memory = await two_places(tmp_path)
    await memory.record_turn(REMARK)
    await indexed(memory)
    records: Any = memory._parts.stores.records("semantic")

    async def away(*_: Any) -> None:
        raise StoreUnavailable("nobody there")

    records.gather = away
    context = await memory.recall("Who practises the cello?", tiers=("conversation",))
    assert REMARK in str(context)
    assert context.warnings == ("what was said longer ago could not be searched: nobody there",)
    await memory.close()


async def test_two_who_talk_and_clear_at_once_leave_nothing_behind(tmp_path: Path):
    place = tmp_path / "a.db"
    async with (
        AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as one,
        AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as two,
    ):
        for turn in range(30):
            await asyncio.gather(one.record_turn(f"The cello is {turn}."), two.record_turn(f"The oboe is {turn}."))
            if turn % 5 == 4:
                await two.conversation.clear()
        await asyncio.gather(indexed(one), indexed(two))
        said = {entry.id for entry in await one.conversation.get_last_n(100)}
        assert {item.derived_from[0] for item in await rows(one)} == said
