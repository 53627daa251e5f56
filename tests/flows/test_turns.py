"""Turns of a dialogue as facts: position, speaker, time and neighbors."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput
from recollect.types import Turn
from tests.flows.conftest import Opener

LONG_ANSWER = (
    "Great question! Choosing a name for a new puppy is exciting. Popular names for dogs include Max, Luna, Bella, "
    "Charlie and Cooper. When you pick a name for your dog, keep it short, avoid names that sound like commands, and "
    "try calling the dog by that name for a few days. Many owners name a dog after food, places or people. Whatever "
    "name you choose for the dog, be consistent, and the dog will learn its name within a week or two."
)


async def positions(memory: AgentMemory, session: str) -> list[tuple[str, float]]:
    hits = await memory.semantic.search("turn", 100, min_relevance=0.0, where={"session": session})
    turns = [(hit.item.content, hit.item.turn.position) for hit in hits if hit.item.turn]
    return sorted(turns, key=lambda turn: turn[1])


class TestPosition:
    async def test_given_position_is_kept(self, memory: AgentMemory):
        item = await memory.semantic.add("turn", session="s", position=7, speaker="Ada")
        assert item.turn == Turn("s", 7.0, "Ada")

    async def test_positions_are_assigned_in_order(self, memory: AgentMemory):
        await memory.semantic.add("turn a", session="s")
        await memory.semantic.add_many({"content": f"turn {name}", "session": "s"} for name in "bc")
        await memory.semantic.add("turn d", session="s")
        await memory.semantic.add("turn x", session="other")
        assert await positions(memory, "s") == [("turn a", 0.0), ("turn b", 1.0), ("turn c", 2.0), ("turn d", 3.0)]
        assert await positions(memory, "other") == [("turn x", 0.0)]

    async def test_assigned_position_follows_the_highest_given_one(self, memory: AgentMemory):
        await memory.semantic.add_many({"content": f"turn {n}", "session": "s", "position": n} for n in range(5))
        await memory.semantic.add_many(
            [{"content": "turn early", "session": "s", "position": 0.5}, {"content": "turn next", "session": "s"}]
        )
        assert (await positions(memory, "s"))[-1] == ("turn next", 5.0)

    async def test_add_many_repeated_stores_no_duplicates(self, memory: AgentMemory):
        talk = [{"content": text, "session": "s", "speaker": "Ada"} for text in ("tea?", "Yes.", "milk?", "Yes.")]
        first = await memory.semantic.add_many(talk)
        assert await memory.semantic.add_many(talk) == first
        more = await memory.semantic.add_many([*talk, {"content": "Thanks.", "session": "s", "speaker": "Bo"}])
        assert more[:4] == first
        assert await positions(memory, "s") == [
            ("tea?", 0.0), ("Yes.", 1.0), ("milk?", 2.0), ("Yes.", 3.0), ("Thanks.", 4.0)
        ]  # fmt: skip

    async def test_repeated_text_later_is_another_turn(self, memory: AgentMemory):
        first = await memory.semantic.add("Yes.", session="s")
        await memory.semantic.add("And milk?", session="s")
        again = await memory.semantic.add("Yes.", session="s")
        assert again.id != first.id
        assert await positions(memory, "s") == [("Yes.", 0.0), ("And milk?", 1.0), ("Yes.", 2.0)]

    async def test_key_equal_to_a_session_name_is_not_a_session(self, memory: AgentMemory):
        turn = await memory.semantic.add("Standup is at nine.", session="s1")
        fact = await memory.semantic.add("Standup is at nine.", key="s1")
        assert turn.id != fact.id
        assert [item.id for item in await memory.semantic.history("s1")] == [fact.id]

    async def test_speaker_without_session_raises(self, memory: AgentMemory, opener: Opener):
        with pytest.raises(BadInput, match="session"):
            await memory.semantic.add("Hello.", speaker="Ada")
        inside = await opener(user="eve", session="s7")
        item = await inside.semantic.add("Hello.", speaker="Ada")
        assert item.turn == Turn("s7", 0.0, "Ada")

    async def test_same_text_in_another_session_position_or_speaker_is_another_turn(self, memory: AgentMemory):
        ids = {
            (await memory.semantic.add("Yes.", session=session, position=position, speaker=speaker)).id
            for session in ("s1", "s2")
            for position in (0, 1)
            for speaker in ("Ada", "Bob")
        }
        assert len(ids) == 8

    @pytest.mark.parametrize("position", [float("nan"), float("inf"), "3", True, 10**400])
    async def test_invalid_position_raises(self, memory: AgentMemory, position: object):
        with pytest.raises(BadInput, match="position"):
            await memory.semantic.add_many([{"content": "turn", "session": "s", "position": position}])


class TestMetadata:
    @pytest.mark.parametrize(
        ("metadata", "turn"),
        [
            ({"session": "s", "position": 3, "speaker": "Ada"}, Turn("s", 3.0, "Ada")),
            ({"session_id": "s", "turn": 3, "role": "user"}, Turn("s", 3.0, "user")),
            ({"conversation_id": 42, "turn_index": 3, "author": "Ada"}, Turn("42", 3.0, "Ada")),
            ({"thread_id": "s", "message_index": 3, "sender": "Ada"}, Turn("s", 3.0, "Ada")),
            ({"chat_id": "s", "turn_id": "D1:3"}, Turn("s", 0.0, None)),
            ({"speaker": "Ada", "position": 3}, None),
            ({"thread": "main", "name": "report.pdf", "date": "2031-06-05"}, None),
            ({"session": ""}, None),
            ({"session": True, "position": 3}, None),
            ({"session": "s", "position": 10**400, "time": 10**400}, Turn("s", 0.0, None)),
        ],
    )
    async def test_usual_metadata_names_set_the_turn(
        self, memory: AgentMemory, metadata: dict[str, object], turn: Turn | None
    ):
        item = await memory.remember("It rained.", metadata=metadata)
        assert item.turn == turn
        assert dict(item.metadata) == metadata

    async def test_arguments_take_precedence_over_metadata(self, memory: AgentMemory):
        item = await memory.semantic.add(
            "It rained.", metadata={"session_id": "m", "role": "user"}, session="a", speaker="Ada", position=1
        )
        assert item.turn == Turn("a", 1.0, "Ada")

    @pytest.mark.parametrize(
        "metadata",
        [
            {"timestamp": "2023-05-08T13:56:00+00:00"},
            {"timestamp": "2023-05-08T15:56:00+02:00"},
            {"date": "2023/05/08 (Mon) 13:56"},
            {"session_date": "1:56 pm on 8 May, 2023"},
            {"time": 1683554160},
            {"created_at": 1683554160000},
        ],
    )
    async def test_usual_time_formats_set_created_at(self, memory: AgentMemory, metadata: dict[str, object]):
        item = await memory.remember("It rained.", metadata={"session": "s", **metadata})
        assert item.created_at == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)

    @pytest.mark.parametrize("nonsense", ["yesterday", "", True, 12, [2023], {"y": 2023}, "0001-01-01T00:00:00+23:00"])
    async def test_unknown_time_format_uses_the_current_time(self, memory: AgentMemory, clock, nonsense: object):
        item = await memory.remember("It rained.", metadata={"date": nonsense})
        assert item.created_at == clock.now


class TestRetrieval:
    async def test_answer_after_its_question_is_found(self, real: AgentMemory):
        """The turn with the answer shares no term with the question, but the turn before it does."""
        talk = [
            ("Bob", "The weather was awful at the coast."),
            ("Ada", "Pity. And how was the ferry?"),
            ("Bob", "What is your favourite band for long drives?"),
            ("Ada", "Definitely Tinariwen."),
            ("Bob", "I should get some sleep now."),
            ("Ada", "Good night, see you on Monday."),
        ]
        await real.semantic.add_many({"content": text, "speaker": speaker, "session": "s1"} for speaker, text in talk)
        others = [
            "Ladle the soup.",
            "Certainly.",
            "Probably Thursday.",
            "Quite cold.",
            "Somewhere else.",
            "A new kettle.",
        ]
        await real.semantic.add_many({"content": text, "speaker": "Ada", "session": "s2"} for text in others)
        hits = await real.semantic.search("Which band does Ada like for long drives?", 3, min_relevance=0.0)
        assert "Definitely Tinariwen." in [hit.item.content for hit in hits]

    async def test_named_speaker_ranks_first(self, real: AgentMemory):
        for position, speaker in enumerate(("Caroline", "Melanie")):
            await real.semantic.add(
                "I went camping in the mountains last weekend.",
                speaker=speaker,
                session=f"s{position}",
                position=position,
            )
        for speaker in ("Caroline", "Melanie"):
            [hit, *_] = await real.semantic.search(f"Where did {speaker} go camping?", min_relevance=0.0)
            assert hit.item.turn is not None
            assert hit.item.turn.speaker == speaker
            assert hit.why["speaker"] > 0.0

    async def test_long_answers_do_not_outrank_a_short_turn(self, real: AgentMemory):
        await real.semantic.add("I named my dog Biscuit.", speaker="user", session="s", position=0)
        for number, animal in enumerate(("dog", "cat", "horse", "parrot", "rabbit")):
            answer = LONG_ANSWER.replace("dog", animal)
            await real.semantic.add("And then?", speaker="user", session=f"s{number}", position=0)
            await real.semantic.add(answer, speaker="assistant", session=f"s{number}", position=1)
        for question in ("What did I name my dog?", "What is the name of my dog?"):
            hits = await real.semantic.search(question, 20, min_relevance=0.0)
            ranked = [(hit.item.turn.speaker, hit.item.content) for hit in hits if hit.item.turn]
            first_answer = next(at for at, (speaker, _) in enumerate(ranked) if speaker == "assistant")
            assert ranked.index(("user", "I named my dog Biscuit.")) < first_answer

    async def test_context_line_shows_speaker_and_date(self, memory: AgentMemory):
        await memory.semantic.add(
            "The cello is in the attic.", speaker="Ada", session="s1", at=datetime(2023, 5, 8, tzinfo=UTC)
        )
        line = str(await memory.recall("cello attic", min_relevance=0.0)).splitlines()[1]
        assert line == "- Ada: The cello is in the attic. (2023-05-08)"
