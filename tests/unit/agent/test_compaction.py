"""When a dialogue is too long, where it is cut, and that no cut parts a call from its result."""

from __future__ import annotations

import random

import pytest

from recollect.agent.compaction import Compaction, Room, compacted, cost, cut_of
from recollect.errors import BadInput
from recollect.inference.chat import ChatMessage, ToolCall
from recollect.inference.llm import LanguageModel

TASK = ChatMessage("user", "Do it.")


def rounds(number: int, words: int, calls: int = 1) -> list[ChatMessage]:
    said: list[ChatMessage] = []
    for at in range(number):
        ids = [f"{at}.{place}" for place in range(calls)]
        said.append(ChatMessage("assistant", f"Step {at}.", tuple(ToolCall(id, "read", {"n": at}) for id in ids)))
        said += [ChatMessage("tool", f"Result {id}. " + "word " * words, call_id=id) for id in ids]
    return said


def test_a_short_dialogue_stays():
    assert cut_of([TASK, *rounds(3, 10)], 1, Room(1000)) is None


def test_about_half_is_left_and_the_newest_word_for_word():
    # Mutant: as much as possible is summed up. Mutant: a cut in the middle of a round.
    messages = [TASK, *rounds(10, 100, calls=2)]
    cut = cut_of(messages, 1, Room(2000))
    assert cut is not None
    assert messages[cut].role == "assistant"
    left = sum(map(cost, messages[cut:]))
    assert left <= 1000
    assert left > 500


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_the_dialogue_no_call_is_parted_from_its_result(seed: int):
    # Mutant: joints are not asked for.
    chance = random.Random(seed)
    room = Room(1000 + chance.randrange(2000))
    messages = [TASK]
    for _ in range(40):
        at = len(messages)
        ids = [f"{at}.{place}" for place in range(chance.randint(1, 4))]
        messages.append(ChatMessage("assistant", "", tuple(ToolCall(id, "read") for id in ids)))
        messages += [ChatMessage("tool", "word " * chance.randrange(room.result), call_id=id) for id in ids]
        made = await compacted(messages, 1, room, None)
        if made is not None:
            newest = messages[at:]
            messages = made.applied(messages, 1)
            assert messages[-len(newest) :] == newest
        assert messages[0] == TASK
        waiting: list[str] = []
        for message in messages:
            if message.role == "tool":
                assert message.call_id in waiting
                waiting.remove(message.call_id)
            else:
                assert waiting == []
                waiting = [one.id for one in message.tool_calls]


async def test_a_summary_of_a_summary_covers_both():
    messages = [TASK, *rounds(8, 100)]
    first = await compacted(messages, 1, Room(1000), None)
    assert first is not None
    shorter = first.applied(messages, 1)
    second = await compacted([*shorter, *rounds(8, 100)], 1, Room(1000), None)
    assert second is not None
    assert "Result 0.0" in first.summary
    assert second.count > 1
    assert sum(one.content.startswith("[What was done") for one in second.applied(shorter + rounds(8, 100), 1)) == 1


async def test_when_the_newest_round_is_all_there_is_nothing_is_cut():
    messages = [TASK, *rounds(1, 2000)]
    assert cut_of(messages, 1, Room(1000)) is None
    summed_up = Compaction(2, "Some.").applied([TASK, *rounds(1, 10), *rounds(1, 2000)], 1)
    assert cut_of(summed_up, 1, Room(1000)) is None


@pytest.mark.parametrize("most", [999, 1.5, True, "many"])
def test_a_room_has_a_size(most: object):
    with pytest.raises(BadInput, match="max_context"):
        Room(most)  # type: ignore[arg-type]


def test_a_compaction_fits_where_no_call_is_parted_from_its_result():
    messages = [ChatMessage("user", "Hello."), TASK, *rounds(3, 5, calls=2)]
    assert [count for count in range(-1, 12) if Compaction(count, "Some.").fits(messages, 2)] == [3, 6, 9]


@pytest.mark.parametrize("kept", [None, "text", {}, {"start": 1, "cut": 3, "summary": "Some."}])
def test_what_is_no_compaction_is_not_read_as_one(kept: object):
    assert Compaction.from_json(kept) is None


async def test_a_summary_is_read_again_without_its_marks():
    # Mutant: every summary of a summary quotes the marks of the one before.
    messages = [TASK, *rounds(8, 100)]
    first = await compacted(messages, 1, Room(1000), None)
    assert first is not None
    seen: list[str] = []

    def sums_up(prompt: str) -> str:
        seen.append(prompt)
        return "Short."

    await compacted([*first.applied(messages, 1), *rounds(8, 100)], 1, Room(1000), LanguageModel(sums_up))
    [prompt] = seen
    assert "Result 0.0" in prompt
    assert "[What was done so far" not in prompt
    assert prompt.count("<notes>") == 1


def test_many_who_are_called_at_once_share_the_room():
    room = Room(10_000)
    assert [room.share(calls) for calls in (0, 1, 2, 4, 10_000)] == [2000, 2000, 2000, 1000, 1]
