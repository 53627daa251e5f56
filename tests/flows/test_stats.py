"""`stats`: the number of items per tier and scope, and their oldest and newest times."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recollect.testing import ManualClock
from tests.flows.conftest import Opener


async def test_stats_report_items_and_times_per_tier(opener: Opener, clock: ManualClock):
    memory = await opener(user="ada", session="s1")
    empty = await memory.stats()
    assert (empty.items, empty.newest, empty.model) == (0, None, None)
    assert {tier.items for tier in empty.tiers.values()} == {0}
    assert list(empty.tiers) == ["working", "conversation", "episodic", "semantic", "procedural", "checkpoints"]
    started = clock()
    await memory.remember("Ada prefers metric units.")
    await memory.record_turn("Hello there.", "Hello.", tool_calls=[{"name": "wave", "result": "ok"}])
    clock.forward(timedelta(hours=2))
    await memory.remember("The office is in Oslo.")
    await memory.scoped(session="s2").record_turn("Hello again.")
    await memory.procedural.save("deploy", "Push a tag.")
    await memory.working.add("something in mind")
    await memory.scoped(user="bob", agent="other", session="s3").record_turn("Not yours.")
    await memory.scoped(user="bob").remember("Not yours either.")
    assert (await memory.stats()).all_items is None  # not available to a tenant
    stats = await memory.stats(whole_store=True)
    tiers = stats.tiers
    assert (tiers["conversation"].items, tiers["conversation"].sessions) == (5, 2)
    assert (tiers["episodic"].items, tiers["episodic"].sessions) == (4, 2)
    assert (tiers["semantic"].items, tiers["procedural"].items, tiers["working"].items) == (2, 1, 1)
    for tier in ("conversation", "episodic", "semantic"):
        assert (tiers[tier].oldest, tiers[tier].newest) == (started, clock())
    assert (stats.items, stats.newest, stats.all_items, stats.model) == (2, clock(), 4, "hash")
    assert stats.bytes > 0


@pytest.mark.parametrize("gaps", [[1], [0, 0, 1], [10**6, 1, 86_400_000_000, 7], [10**16, 3, 10**12, 1, 1]])
async def test_stats_find_the_oldest_item_for_any_time_gaps(opener: Opener, clock: ManualClock, gaps: list[int]):
    memory = await opener(user="ada")
    started = clock()
    await memory.remember("the first")
    for n, gap in enumerate(gaps):
        clock.forward(timedelta(microseconds=gap))
        await memory.remember(f"number {n}")
    stats = (await memory.stats()).tiers["semantic"]
    assert (stats.oldest, stats.newest, stats.items) == (started, clock(), len(gaps) + 1)


async def test_stats_do_not_count_summaries_as_messages(opener: Opener):
    memory = await opener(user="ada", session="s")
    for n in range(40):
        await memory.conversation.add_message("user", f"message {n} about tea")
    assert await memory.conversation.summary()
    assert (await memory.stats()).tiers["conversation"].items == 40
