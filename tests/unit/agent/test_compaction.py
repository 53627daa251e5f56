"""Compaction of a long history: where it is cut, and which calls and results stay together."""

from __future__ import annotations

import random

import pytest

from recollect.agent.prompt import Compaction, count_chat_tokens, find_compaction_cut, limit_result, plan_compaction
from recollect.models.chat import ChatMessage, ToolCall
from recollect.models.llm import LanguageModel

TASK = ChatMessage("user", "Do it.")


def rounds(number: int, words: int, calls: int = 1) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    for at in range(number):
        ids = [f"{at}.{place}" for place in range(calls)]
        messages.append(ChatMessage("assistant", f"Step {at}.", tuple(ToolCall(id, "read", {"n": at}) for id in ids)))
        messages += [ChatMessage("tool", f"Result {id}. " + "word " * words, call_id=id) for id in ids]
    return messages


def test_short_history_is_not_compacted():
    assert find_compaction_cut([TASK, *rounds(3, 10)], 1, 1000) is None


def test_cut_keeps_the_newest_half_at_a_round_boundary():
    # Mutants: as much as possible is summarized; the cut is in the middle of a round.
    messages = [TASK, *rounds(10, 100, calls=2)]
    cut = find_compaction_cut(messages, 1, 2000)
    assert cut is not None
    assert messages[cut].role == "assistant"
    left = sum(map(count_chat_tokens, messages[cut:]))
    assert left <= 1000
    assert left > 500


@pytest.mark.parametrize("seed", range(30))
async def test_compaction_never_separates_a_call_from_its_result(seed: int):
    # Mutant: cut points are ignored.
    chance = random.Random(seed)
    room = 1000 + chance.randrange(2000)
    messages = [TASK]
    for _ in range(40):
        at = len(messages)
        ids = [f"{at}.{place}" for place in range(chance.randint(1, 4))]
        messages.append(ChatMessage("assistant", "", tuple(ToolCall(id, "read") for id in ids)))
        messages += [ChatMessage("tool", "word " * chance.randrange(room // 5), call_id=id) for id in ids]
        compaction = await plan_compaction(messages, 1, room, None)
        if compaction is not None:
            newest = messages[at:]
            messages = compaction.apply(messages, 1)
            assert messages[-len(newest) :] == newest
        assert messages[0] == TASK
        waiting: list[str] = []
        for message in messages:
            if message.role == "tool":
                assert message.call_id in waiting
                waiting.remove(message.call_id)
            else:
                assert waiting == []
                waiting = [call.id for call in message.tool_calls]


async def test_second_compaction_includes_the_first_summary():
    messages = [TASK, *rounds(8, 100)]
    first = await plan_compaction(messages, 1, 1000, None)
    assert first is not None
    shorter = first.apply(messages, 1)
    second = await plan_compaction([*shorter, *rounds(8, 100)], 1, 1000, None)
    assert second is not None
    assert "Result 0.0" in first.summary
    assert second.count > 1
    assert (
        sum(message.content.startswith("[What was done") for message in second.apply(shorter + rounds(8, 100), 1)) == 1
    )


async def test_single_large_round_is_not_cut():
    messages = [TASK, *rounds(1, 2000)]
    assert find_compaction_cut(messages, 1, 1000) is None
    compacted = Compaction(2, "Some.").apply([TASK, *rounds(1, 10), *rounds(1, 2000)], 1)
    assert find_compaction_cut(compacted, 1, 1000) is None


def test_compaction_applies_only_at_round_boundaries():
    messages = [ChatMessage("user", "Hello."), TASK, *rounds(3, 5, calls=2)]
    assert [count for count in range(-1, 12) if Compaction(count, "Some.").is_applicable(messages, 2)] == [3, 6, 9]


@pytest.mark.parametrize("data", [None, "text", {}, {"start": 1, "cut": 3, "summary": "Some."}])
def test_invalid_json_is_not_a_compaction(data: object):
    assert Compaction.from_json(data) is None


async def test_second_compaction_omits_the_summary_marks():
    # Mutant: every summary of a summary quotes the marks of the summary before.
    messages = [TASK, *rounds(8, 100)]
    first = await plan_compaction(messages, 1, 1000, None)
    assert first is not None
    seen: list[str] = []

    def summarize(prompt: str) -> str:
        seen.append(prompt)
        return "Short."

    await plan_compaction([*first.apply(messages, 1), *rounds(8, 100)], 1, 1000, LanguageModel(summarize))
    [prompt] = seen
    assert "Result 0.0" in prompt
    assert "[What was done so far" not in prompt
    assert prompt.count("<notes>") == 1


def test_parallel_calls_share_the_result_limit():
    assert [limit_result(10_000, calls) for calls in (0, 1, 2, 4, 10_000)] == [2000, 2000, 2000, 1000, 1]
