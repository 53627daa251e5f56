"""The turn index: turns of any session are found by meaning, for as long as they are stored."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.models.minilm import MiniLM
from recollect.stores.base import Store
from recollect.stores.filters import Where
from recollect.stores.writes import Delete, Write
from recollect.testing import ManualClock
from recollect.testing.factories import find_nearest
from recollect.types import Space, get_turn_space
from tests.embedders import HashEmbedder
from tests.flows.conftest import Opener, indexed
from tests.flows.conversation_fixtures import (
    ASKED,
    REMARK,
    Failing,
    Hesitating,
    Stumbling,
    draft_mark_deletion,
    index_turns,
    load_index,
    search_turns,
    small_talk,
)


class TestOldTurns:
    async def test_remark_of_session_3_is_found_by_meaning_in_session_47(
        self, tmp_path: Path, clock: ManualClock, minilm: MiniLM
    ):
        # Mutants: the index is not searched; the search uses terms only; the item has no vector.
        async with AgentMemory.open(tmp_path / "a.db", user="ada", embedder=minilm, clock=clock) as memory:
            for number in range(1, 47):
                session = memory.scoped(session=f"s-{number}")
                for turn in range(11):
                    await session.record_turn(f"Build {number}.{turn} is green, and ticket {turn * number} is closed.")
                if number == 3:
                    await session.record_turn(
                        "The chap across the landing saws away at his cello every evening.", "Oh!"
                    )
                clock.forward(timedelta(days=30))
            await indexed(memory)
        async with AgentMemory.open(tmp_path / "a.db", user="ada", embedder=minilm, clock=clock) as memory:
            here = memory.scoped(session="s-47")
            context = await here.recall("Which musical instrument does my neighbour play?", 5)
            [line] = [line for line in context.sections["Recent context"] if "cello" in line]
            assert line == "- The chap across the landing saws away at his cello every evening. (2026-03-02)"
            [found] = [hit.item.turn for hit in context.hits if "cello" in hit.item.content]
            assert found is not None
            assert found.session == "s-3"
            for limit in (None, 5):
                assert not await here.recall("How do volcanoes erupt?", limit)

    async def test_turn_is_listed_in_the_section_of_its_session(self, memory: AgentMemory):
        here = memory.scoped(session="here")
        await here.record_turn(REMARK)
        for turn in range(30):  # far more than the newest entries that recall reads
            await here.record_turn(f"Ticket {turn} waits for review.", "I assign it.")
        await small_talk(memory)
        await index_turns(memory)  # more than a recall waits for
        shown = await here.recall(ASKED, tiers=("conversation",))
        assert any(REMARK in line for line in shown.sections["Current session"])
        elsewhere = await memory.scoped(session="elsewhere").recall(ASKED, tiers=("conversation",))
        assert any(REMARK in line for line in elsewhere.sections["Recent context"])
        [hit] = [hit for hit in elsewhere if hit.item.content == REMARK]
        assert (hit.tier, hit.item.tier, hit.item.source) == ("conversation", "conversation", "user")
        assert hit.item.turn is not None
        assert hit.item.turn.session == hit.item.scope.session == "here"
        assert [entry.id for entry in await here.conversation.search("cello")] == [hit.item.id]  # the id of the message

    async def test_assistant_and_tool_messages_are_indexed_and_instructions_are_not(self, memory: AgentMemory):
        talk = memory.scoped(session="talk")
        await talk.conversation.add_message("system", "Instrument questions: the neighbour plays the cello.")
        call = {"name": "look", "arguments": {}, "result": "The neighbour practises an instrument, the cello. " * 200}
        await talk.record_turn("Ask around.", "Next door they play the cello, an instrument.", tool_calls=[call])
        await small_talk(memory)
        speakers = {
            item.turn.speaker: item
            for item in await load_index(await index_turns(memory))
            if item.turn and "cello" in item.content
        }
        assert set(speakers) == {"assistant", "tool"}
        assert len(speakers["tool"].content) < 2000  # an extract
        assert speakers["tool"].trust < 1.0
        assert not any("Instrument questions" in entry for entry in await search_turns(memory))

    async def test_turn_search_applies_owner_as_of_and_filters(self, memory: AgentMemory, clock: ManualClock):
        await memory.scoped(session="a").record_turn(REMARK, metadata={"about": "home"})
        before = clock()
        clock.forward(timedelta(days=1))
        later = "The neighbour gave up the cello, and plays no instrument."
        await memory.scoped(session="b").record_turn(later, metadata={"about": "news"})
        clock.forward(timedelta(days=1))
        await small_talk(memory)
        assert {REMARK, later} <= set(await search_turns(memory, min_relevance=0.4))
        assert await search_turns(memory, as_of=before) == [REMARK]
        for day in range(30):
            await memory.scoped(session="c").record_turn(f"Day {day}: {later}", metadata={"about": "noise"})
        assert await search_turns(memory, where={"about": "news"}) == [later]
        assert len(await search_turns(memory, n=1)) == 1
        assert await search_turns(memory, min_relevance=1.0) == []
        assert not list(await memory.recall(ASKED, tiers=("semantic",)))

    async def test_earlier_occurrences_of_the_question_are_not_returned(self, memory: AgentMemory):
        # Mutant: earlier occurrences of the question are not skipped.
        await memory.scoped(session="home").record_turn(REMARK)
        for day in range(40):
            await memory.scoped(session=f"day {day}").record_turn(ASKED)
        assert await search_turns(memory) == [REMARK]

    async def test_recalled_text_in_a_turn_is_not_indexed(self, memory: AgentMemory):
        # Mutant: an entry is indexed with its recalled text.
        await memory.scoped(session="home").record_turn(REMARK)
        context = await memory.scoped(session="next").recall(ASKED, tiers=("conversation",))
        assert REMARK in str(context)
        await memory.scoped(session="next").record_turn(f"{context}\n\nTell me a joke.", "A cellist walks into a bar.")
        await small_talk(memory)
        contents = [item.content for item in await load_index(await index_turns(memory))]
        assert sum(REMARK in entry for entry in contents) == 1
        assert "Tell me a joke." in contents


class TestBackgroundIndexing:
    async def test_record_turn_does_not_wait_for_the_embedder(self, opener: Opener, place: str):
        # Mutant: `record_turn` waits for the index. Mutant: a log that failed is forgotten.
        embedder = Hesitating()
        memory = await opener(user="ada", session="home", embedder=embedder)
        await memory.remember("The model has been asked once.")
        embedder.hangs = True
        async with asyncio.timeout(20):
            await memory.record_turn(REMARK)
        embedder.hangs = False
        embedder.go_on.set()
        assert await search_turns(memory) == [REMARK]

    async def test_turn_recorded_while_embedder_is_down_is_found_by_terms_then_meaning(
        self, opener: Opener, caplog: pytest.LogCaptureFixture
    ):
        # Mutants: nothing is indexed while the embedder is down; missing vectors are never added.
        embedder = Failing()
        memory = await opener(user="ada", session="home", embedder=embedder)
        embedder.down = True
        await memory.record_turn(REMARK)
        await small_talk(memory)
        await indexed(memory)
        assert await search_turns(memory, "Does he practise the cello at midnight?") == [REMARK]
        assert await search_turns(memory) == []
        shown = [record.getMessage() for record in caplog.records if record.name == "recollect.index"]
        assert len(shown) == 1
        assert "cello" not in shown[0]
        embedder.down = False
        assert await search_turns(memory) == [REMARK]
        assert len(await load_index(memory)) == len({item.derived_from for item in await load_index(memory)}) == 17

    async def test_text_that_cannot_be_embedded_does_not_block_the_index(self, opener: Opener):
        # Mutant: a failing page is retried forever.
        memory = await opener(user="ada", session="home", embedder=Stumbling())
        await memory.record_turn("The gibberish is in the drawer.")
        await indexed(memory)
        await memory.record_turn(REMARK)
        await small_talk(memory)
        assert await search_turns(memory) == [REMARK]
        assert await search_turns(memory, "In which drawer is the gibberish?") == ["The gibberish is in the drawer."]

    async def test_lifecycle_embeds_turns_left_without_vectors(self, opener: Opener):
        embedder = Failing()
        memory = await opener(user="ada", session="home", embedder=embedder)
        embedder.down = True
        await memory.record_turn(REMARK)
        await indexed(memory)
        embedder.down = False
        await memory.lifecycle.run_once()
        vector = embedder.embed(ASKED)
        records = memory._engine.stores.records("semantic")
        near = await find_nearest(records, Where(get_turn_space(memory.scope)), vector)
        assert [entry.brief.speaker for entry in near] == ["user"]

    async def test_close_finishes_indexing_within_the_timeout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        # Mutant: `close` cancels at once. Mutant: `close` waits forever.
        place = tmp_path / "a.db"
        async with AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as memory:
            await memory.record_turn(REMARK)
        async with AgentMemory.open(place, user="ada", embedder=HashEmbedder()) as memory:
            assert [item.content for item in await load_index(memory)] == [REMARK]
        monkeypatch.setattr("recollect.retrieval.turn_index._CLOSE_TIMEOUT", 0.01)
        embedder = Hesitating()
        memory = await AgentMemory.open(place, user="ada", session="home", embedder=embedder)
        embedder.hangs = True
        await memory.record_turn("The oboe is broken.")
        async with asyncio.timeout(20):
            await memory.close()
        async with AgentMemory.open(place, user="ada", embedder=HashEmbedder()) as memory:
            assert await search_turns(memory, "Is the oboe broken?") == ["The oboe is broken."]

    async def test_repeated_and_concurrent_indexing_creates_no_duplicates(self, tmp_path: Path):
        place = tmp_path / "a.db"
        async with (
            AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as first,
            AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as second,
        ):
            for turn in range(40):
                await asyncio.gather(first.record_turn(f"One says {turn}."), second.record_turn(f"Two says {turn}."))
            await asyncio.gather(indexed(first), indexed(second))
            assert len(await load_index(first)) == 80
            [note] = await first._engine.turn_index._load_marks([first.conversation._space])
            await first._engine.stores.records("semantic").write(*await draft_mark_deletion(first))
            await asyncio.gather(indexed(first), indexed(second))
            assert len(await load_index(second)) == 80
            assert note is not None

    async def test_indexer_keeps_items_that_another_process_wrote_meanwhile(self, tmp_path: Path):
        # Mutant: what is left of a cleared log is deleted in a batch of its own, before the mark is created.
        place = tmp_path / "a.db"
        async with (
            AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as first,
            AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as second,
        ):
            await first.record_turn("The oboe is broken.", "Call Petra, she repairs oboes.")
            await indexed(first)
            await first._engine.stores.records("semantic").write(*await draft_mark_deletion(first))
            index = first._engine.turn_index
            read = index.draft_removals

            async def read_and_wait(space: Space) -> list[Delete]:
                removals = await read(space)
                index.draft_removals = read  # type: ignore[method-assign]
                await indexed(second)
                return removals

            index.draft_removals = read_and_wait  # type: ignore[method-assign]
            await indexed(first)
            assert len(await load_index(first)) == 2

    async def test_turn_of_a_step_is_found_after_the_step_commits(self, memory: AgentMemory):
        # Mutant: only turns recorded directly in this process are indexed.
        await memory.record_turn("Good morning, the build is green.")
        assert await search_turns(memory) == []
        buffered: list[tuple[Store, list[Write]]] = []
        twin = memory.checkpoints._begin_run().open_twin(buffered, "step 1")
        await twin.record_turn(REMARK)
        await indexed(memory)
        assert len(await load_index(memory)) == 1
        for store, writes in buffered:
            await store.write(*writes)
        assert await search_turns(memory) == [REMARK]
        assert len(await load_index(memory)) == 2
