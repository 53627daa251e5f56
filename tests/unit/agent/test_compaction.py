"""When a dialogue is too long, where it is cut, and that no cut parts a call from its result."""

from __future__ import annotations

import random

import pytest

from recollect.agent.compaction import Compaction, Room, compacted, cost, cut_of
from recollect.errors import BadInput
from recollect.inference.chat import ChatMessage, ToolCall

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
            messages = made.applied(messages)
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
    shorter = first.applied(messages)
    second = await compacted([*shorter, *rounds(8, 100)], 1, Room(1000), None)
    assert second is not None
    assert "Result 0.0" in first.summary
    assert second.cut > 1
    assert sum(one.content.startswith("[What was done") for one in second.applied(shorter + rounds(8, 100))) == 1


async def test_when_the_newest_round_is_all_there_is_nothing_is_cut():
    messages = [TASK, *rounds(1, 2000)]
    assert cut_of(messages, 1, Room(1000)) is None
    summed_up = Compaction(1, 3, "Some.").applied([TASK, *rounds(1, 10), *rounds(1, 2000)])
    assert cut_of(summed_up, 1, Room(1000)) is None


@pytest.mark.parametrize("most", [999, 1.5, True, "many"])
def test_a_room_has_a_size(most: object):
    with pytest.raises(BadInput, match="max_context"):
        Room(most)  # type: ignore[arg-type]
