"""A thousand values of keyed facts: recall returns the newest, and `as_of` the value of any time."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pytest

from recollect import AgentMemory
from recollect.testing import ManualClock

UPDATES = 1000
HOUR = timedelta(hours=1)


def build_value(key: str, number: int) -> str:
    return f"The {key} release is called r{number}."


async def recall_contents(memory: AgentMemory, query: str, as_of: datetime | None = None) -> list[str]:
    context = await memory.recall(query, 50, as_of=as_of, min_relevance=0.0, tiers=["semantic"])
    return [hit.item.content for hit in context]


@pytest.mark.parametrize("keys", [["only"], [f"k{number}" for number in range(10)]], ids=["one key", "ten keys"])
async def test_thousand_updates_keep_the_newest_and_a_complete_history(
    keys: list[str], memory: AgentMemory, clock: ManualClock
):
    start = clock.now
    for number in range(UPDATES):
        await memory.remember(build_value(keys[number % len(keys)], number), key=keys[number % len(keys)])
        clock.forward(HOUR)

    newest = {build_value(keys[number % len(keys)], number) for number in range(UPDATES - len(keys), UPDATES)}
    assert set(await recall_contents(memory, "release called")) == newest

    for at, key in enumerate(keys):
        numbers = list(range(at, UPDATES, len(keys)))
        history = (await memory.semantic.history(key))[::-1]
        assert [item.content for item in history] == [build_value(key, number) for number in numbers]
        for item, number, following in zip(history, numbers, [*history[1:], None], strict=True):
            assert item.created_at == start + number * HOUR
            # Each value ends when the next begins, so that there is exactly one at any time.
            assert item.valid_to == (following.created_at if following else None)
            assert item.superseded_by == (following.id if following else None)

    for number in random.Random(47).sample(range(len(keys), UPDATES), 40):
        expected = {build_value(keys[n % len(keys)], n) for n in range(number - len(keys) + 1, number + 1)}
        for moment in (start + number * HOUR, start + number * HOUR + timedelta(minutes=59, seconds=59)):
            assert set(await recall_contents(memory, "release called", moment)) == expected
    assert await recall_contents(memory, "release called", start - HOUR) == []
