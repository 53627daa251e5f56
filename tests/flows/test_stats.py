"""`stats`: how much each tier holds of a scope, and from when to when."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recollect.testing import ManualClock
from tests.flows.conftest import Opener


async def test_every_tier_says_what_it_holds(opener: Opener, clock: ManualClock):
    memory = await opener(user="ada", session="s1")
    empty = await memory.stats()
    assert (empty.items, empty.newest, empty.model) == (0, None, None)
    assert {tier.items for tier in empty.tiers.values()} == {0}
    assert list(empty.tiers) == ["working", "conversation", "episodic", "semantic", "procedural", "checkpoints"]
    begun = clock()
    await memory.remember("Ada prefers metric units.")
    await memory.record_turn("Hello there.", "Hello.", tool_calls=[{"name": "wave", "result": "ok"}])
    clock.forward(timedelta(hours=2))
    await memory.remember("The office is in Oslo.")
    await memory.scoped(session="s2").record_turn("Hello again.")
    await memory.procedural.save("deploy", "Push a tag.")
    await memory.working.add("something in mind")
    await memory.scoped(user="bob", agent="other", session="s3").record_turn("Not yours.")
    await memory.scoped(user="bob").remember("Not yours either.")
    assert (await memory.stats()).all_items is None  # how much others have is theirs
    found = await memory.stats(everybody=True)
    tiers = found.tiers
    assert (tiers["conversation"].items, tiers["conversation"].sessions) == (5, 2)
    assert (tiers["episodic"].items, tiers["episodic"].sessions) == (4, 2)
    assert (tiers["semantic"].items, tiers["procedural"].items, tiers["working"].items) == (2, 1, 1)
    for tier in ("conversation", "episodic", "semantic"):
        assert (tiers[tier].oldest, tiers[tier].newest) == (begun, clock())
    assert (found.items, found.newest, found.all_items, found.model) == (2, clock(), 4, "hash")
    assert found.bytes > 0


@pytest.mark.parametrize("gaps", [[1], [0, 0, 1], [10**6, 1, 86_400_000_000, 7], [10**16, 3, 10**12, 1, 1]])
async def test_the_oldest_is_found_however_far_apart_they_are(opener: Opener, clock: ManualClock, gaps: list[int]):
    memory = await opener(user="ada")
    begun = clock()
    await memory.remember("the first")
    for n, gap in enumerate(gaps):
        clock.forward(timedelta(microseconds=gap))
        await memory.remember(f"number {n}")
    found = (await memory.stats()).tiers["semantic"]
    assert (found.oldest, found.newest, found.items) == (begun, clock(), len(gaps) + 1)


async def test_summaries_are_not_counted_as_messages(opener: Opener):
    memory = await opener(user="ada", session="s")
    for n in range(40):
        await memory.conversation.add_message("user", f"message {n} about tea")
    assert await memory.conversation.summary()
    assert (await memory.stats()).tiers["conversation"].items == 40
