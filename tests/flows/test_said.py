"""What was ever said is found: in any session, in other words, years later, and for as long as it is kept."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.inference.minilm import MiniLM
from recollect.memory.turn_items import space_of
from recollect.stores.where import Where
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.conftest import Opener, indexed
from tests.flows.saying import (
    ASKED,
    REMARK,
    Failing,
    Hesitating,
    Stumbling,
    dropped_note,
    found,
    rows,
    settled,
    small_talk,
)


class TestYearsLater:
    async def test_a_passing_remark_of_session_3_in_session_47_among_500_others(
        self, tmp_path: Path, clock: ManualClock, minilm: MiniLM
    ):
        # Mutants: the index is not asked; the search is by words alone; the item has no vector.
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
            context = await memory.scoped(session="s-47").recall("Which musical instrument does my neighbour play?")
            [line] = [line for line in context.sections["Recent context"] if "cello" in line]
            assert line.endswith("(2026-03-02, session s-3)")
            assert not await memory.scoped(session="s-47").recall("How do volcanoes erupt?")

    async def test_it_is_in_the_section_of_its_session(self, memory: AgentMemory):
        here = memory.scoped(session="here")
        await here.record_turn(REMARK)
        for turn in range(30):  # far more than the newest of a log
            await here.record_turn(f"Ticket {turn} waits for review.", "I assign it.")
        await small_talk(memory)
        await settled(memory)  # more than a question waits for
        told = await here.recall(ASKED, tiers=("conversation",))
        assert any(REMARK in line for line in told.sections["Current session"])
        elsewhere = await memory.scoped(session="elsewhere").recall(ASKED, tiers=("conversation",))
        assert any(REMARK in line for line in elsewhere.sections["Recent context"])
        [hit] = [hit for hit in elsewhere if hit.item.content == REMARK]
        assert (hit.tier, hit.item.tier, hit.item.source) == ("conversation", "conversation", "user")
        assert hit.item.turn is not None
        assert hit.item.turn.session == hit.item.scope.session == "here"
        assert [one.id for one in await here.conversation.search("cello")] == [hit.item.id]  # the message's own

    async def test_what_the_assistant_and_a_tool_said_is_found_and_instructions_are_not(self, memory: AgentMemory):
        talk = memory.scoped(session="talk")
        await talk.conversation.add_message("system", "Instrument questions: the neighbour plays the cello.")
        call = {"name": "look", "arguments": {}, "result": "The neighbour practises an instrument, the cello. " * 200}
        await talk.record_turn("Ask around.", "Next door they play the cello, an instrument.", tool_calls=[call])
        await small_talk(memory)
        speakers = {
            item.turn.speaker: item
            for item in await rows(await settled(memory))
            if item.turn and "cello" in item.content
        }
        assert set(speakers) == {"assistant", "tool"}
        assert len(speakers["tool"].content) < 2000  # an extract
        assert speakers["tool"].trust < 1.0
        assert not any("Instrument questions" in one for one in await found(memory))

    async def test_in_the_words_of_the_owner_as_of_a_moment_and_as_the_caller_narrows_it(
        self, memory: AgentMemory, clock: ManualClock
    ):
        await memory.scoped(session="a").record_turn(REMARK, metadata={"about": "home"})
        before = clock()
        clock.forward(timedelta(days=1))
        later = "The neighbour gave up the cello, and plays no instrument."
        await memory.scoped(session="b").record_turn(later, metadata={"about": "news"})
        clock.forward(timedelta(days=1))
        await small_talk(memory)
        assert {REMARK, later} <= set(await found(memory, min_relevance=0.4))
        assert await found(memory, as_of=before) == [REMARK]
        for day in range(30):
            await memory.scoped(session="c").record_turn(f"Day {day}: {later}", metadata={"about": "noise"})
        assert await found(memory, where={"about": "news"}) == [later]
        assert len(await found(memory, n=1)) == 1
        assert await found(memory, min_relevance=1.0) == []
        assert not list(await memory.recall(ASKED, tiers=("semantic",)))

    async def test_that_it_was_asked_before_is_no_answer_however_often(self, memory: AgentMemory):
        # Mutant: the question itself is not passed over.
        await memory.scoped(session="home").record_turn(REMARK)
        for day in range(40):
            await memory.scoped(session=f"day {day}").record_turn(ASKED)
        assert await found(memory) == [REMARK]

    async def test_what_recall_wrote_was_not_said(self, memory: AgentMemory):
        # Mutant: an entry is indexed as it stands.
        await memory.scoped(session="home").record_turn(REMARK)
        context = await memory.scoped(session="next").recall(ASKED, tiers=("conversation",))
        assert REMARK in str(context)
        await memory.scoped(session="next").record_turn(f"{context}\n\nTell me a joke.", "A cellist walks into a bar.")
        await small_talk(memory)
        held = [item.content for item in await rows(await settled(memory))]
        assert sum(REMARK in one for one in held) == 1
        assert "Tell me a joke." in held


class TestBehindEverybodysBack:
    async def test_nobody_waits_for_a_model_and_what_is_left_is_found_later(self, opener: Opener, place: str):
        # Mutant: `record_turn` waits for the index. Mutant: a log that failed is forgotten.
        embedder = Hesitating()
        memory = await opener(user="ada", session="home", embedder=embedder)
        await memory.remember("The model has been asked once.")
        embedder.hangs = True
        async with asyncio.timeout(20):
            await memory.record_turn(REMARK)
        embedder.hangs = False
        embedder.go_on.set()
        assert await found(memory) == [REMARK]

    async def test_said_while_the_embedder_is_down_it_is_found_by_words_then_and_by_meaning_later(
        self, opener: Opener, caplog: pytest.LogCaptureFixture
    ):
        # Mutants: nothing is kept while the model is down; the vectors are never made up for.
        embedder = Failing()
        memory = await opener(user="ada", session="home", embedder=embedder)
        embedder.down = True
        await memory.record_turn(REMARK)
        await small_talk(memory)
        await indexed(memory)
        assert await found(memory, "Does he practise the cello at midnight?") == [REMARK]
        assert await found(memory) == []
        told = [record.getMessage() for record in caplog.records if record.name == "recollect.index"]
        assert len(told) == 1
        assert "cello" not in told[0]
        embedder.down = False
        assert await found(memory) == [REMARK]
        assert len(await rows(memory)) == len({item.derived_from for item in await rows(memory)}) == 17

    async def test_a_text_that_the_model_cannot_embed_holds_nothing_up(self, opener: Opener):
        # Mutant: a page is tried again and again.
        memory = await opener(user="ada", session="home", embedder=Stumbling())
        await memory.record_turn("The gibberish is in the drawer.")
        await indexed(memory)
        await memory.record_turn(REMARK)
        await small_talk(memory)
        assert await found(memory) == [REMARK]
        assert await found(memory, "In which drawer is the gibberish?") == ["The gibberish is in the drawer."]

    async def test_the_lifecycle_makes_up_for_what_was_left(self, opener: Opener):
        embedder = Failing()
        memory = await opener(user="ada", session="home", embedder=embedder)
        embedder.down = True
        await memory.record_turn(REMARK)
        await indexed(memory)
        embedder.down = False
        await memory.lifecycle.run_once()
        vector = embedder.embed(ASKED)
        near = await memory._parts.stores.records("semantic").nearest(Where(space_of(memory.scope)), vector)
        assert [one.brief.speaker for one in near] == ["user"]

    async def test_closing_finishes_what_is_under_way_within_its_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        # Mutant: `close` cancels at once. Mutant: `close` waits for ever.
        place = tmp_path / "a.db"
        async with AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as memory:
            await memory.record_turn(REMARK)
        async with AgentMemory.open(place, user="ada", embedder=HashEmbedder()) as memory:
            assert [item.content for item in await rows(memory)] == [REMARK]
        monkeypatch.setattr("recollect.memory.turn_index._TO_CLOSE", 0.01)
        embedder = Hesitating()
        memory = await AgentMemory.open(place, user="ada", session="home", embedder=embedder)
        embedder.hangs = True
        await memory.record_turn("The oboe is broken.")
        async with asyncio.timeout(20):
            await memory.close()
        async with AgentMemory.open(place, user="ada", embedder=HashEmbedder()) as memory:
            assert await found(memory, "Is the oboe broken?") == ["The oboe is broken."]

    async def test_indexed_twice_and_by_two_at_once_it_is_there_once(self, tmp_path: Path):
        place = tmp_path / "a.db"
        async with (
            AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as one,
            AgentMemory.open(place, user="ada", session="home", embedder=HashEmbedder()) as two,
        ):
            for turn in range(40):
                await asyncio.gather(one.record_turn(f"One says {turn}."), two.record_turn(f"Two says {turn}."))
            await asyncio.gather(indexed(one), indexed(two))
            assert len(await rows(one)) == 80
            [note] = await one._parts.said._marks([one.conversation.space])
            await one._parts.stores.records("semantic").write(*await dropped_note(one))
            await asyncio.gather(indexed(one), indexed(two))
            assert len(await rows(two)) == 80
            assert note is not None

    async def test_what_a_step_said_is_found_when_the_step_is_committed(self, memory: AgentMemory):
        # Mutant: only what was said in this process is looked at.
        await memory.record_turn("Good morning, the build is green.")
        assert await found(memory) == []
        thoughts = memory.checkpoints.minds().attempt("step 1")
        await thoughts.memory.record_turn(REMARK)
        await indexed(memory)
        assert len(await rows(memory)) == 1
        for store, writes in thoughts.collected():
            await store.write(*writes)
        assert await found(memory) == [REMARK]
        assert len(await rows(memory)) == 2
