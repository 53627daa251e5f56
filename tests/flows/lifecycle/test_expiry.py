"""Expired data is deleted after a grace period and after promotion; caps are enforced; clock jumps defer deletion."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from recollect import AgentMemory
from recollect.lifecycle import Lifecycle
from recollect.memory import build_lifecycle_context
from recollect.settings import TIERS, Settings
from recollect.testing import ManualClock
from recollect.types import Tier
from tests.flows.conftest import Opener
from tests.flows.lifecycle.talk import contents, everything, facts

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def with_tier(name: Tier, **changes: int | None) -> Settings:
    return Settings(tiers=tuple(replace(tier, **changes) if tier.name == name else tier for tier in TIERS))  # type: ignore[arg-type]


async def list_stored(memory: AgentMemory) -> list[str]:
    """Return the contents of all stored episodes, including expired ones."""
    log, space = memory._engine.stores.log("episodic"), memory.episodic._find_space()
    return [entry.content for entry in await log.read(space, hidden=True)]


class TestEpisodes:
    async def test_expired_episode_is_deleted_after_grace_period(self, opener: Opener, clock: ManualClock):
        memory = await opener(user="ada", session="s")
        episode = await memory.episodic.store("The build is green.")
        clock.forward(DAY)
        assert await memory.episodic.get_recent() == []
        assert not (await memory.lifecycle.run_once()).expired
        clock.forward(59 * MINUTE)
        assert not (await memory.lifecycle.run_once()).expired
        assert await list_stored(memory) == ["The build is green."]
        clock.forward(MINUTE)
        report = await memory.lifecycle.run_once()
        assert [action.id for action in report.expired] == [episode.id]
        assert "expired on 2026-01-02" in report.expired[0].reason
        assert await list_stored(memory) == []

    async def test_late_run_promotes_before_deleting(self, opener: Opener, clock: ManualClock):
        memory = await opener(user="ada", session="s")
        await memory.episodic.store("Remember that the spare key is under the pot.")
        clock.forward(30 * DAY)
        assert await memory.episodic.get_recent() == []
        report = await memory.lifecycle.run_once()
        assert (len(report.promoted), len(report.expired)) == (1, 1)
        assert await contents(memory) == ["Remember that the spare key is under the pot."]

    async def test_run_leaves_episodes_of_other_users(self, opener: Opener, clock: ManualClock):
        ada, bob = await opener(user="ada", session="s"), await opener(user="bob", session="s")
        await bob.episodic.store("Remember that the spare key is under the pot.")
        clock.forward(2 * DAY)
        assert not await ada.lifecycle.run_once()
        assert len(await list_stored(bob)) == 1
        await bob.lifecycle.run_once()
        assert await contents(bob) == ["Remember that the spare key is under the pot."]

    async def test_lowered_cap_deletes_oldest_episodes_after_promotion(self, opener: Opener):
        memory = await opener(user="ada", session="s")
        for n in range(8):
            await memory.episodic.store(f"Remember that box {n} is full.")
        lifecycle = Lifecycle(
            replace(build_lifecycle_context(memory._engine), settings=with_tier("episodic", max_items=3)), memory.scope
        )
        report = await lifecycle.run_once()
        assert len(report.capped) == 5
        assert report.capped[0].reason == "one of more than 3 in its session"
        assert await list_stored(memory) == [f"Remember that box {n} is full." for n in (5, 6, 7)]
        assert len(await facts(memory)) == 8
        assert not await lifecycle.run_once()


class TestFacts:
    async def test_configured_ttl_expires_facts(self, opener: Opener, clock: ManualClock):
        memory = await opener(user="ada", settings=with_tier("semantic", ttl_seconds=10 * 86_400))
        await memory.remember("The pot is blue.")
        await memory.remember("The key is old.", pinned=True)
        clock.forward(10 * DAY)
        assert not (await memory.lifecycle.run_once()).expired
        clock.forward(HOUR)
        report = await memory.lifecycle.run_once()
        assert [action.tier for action in report.expired] == ["semantic"]
        assert await contents(memory) == ["The key is old."]

    async def test_configured_cap_deletes_least_important_facts(self, opener: Opener):
        memory = await opener(user="ada", settings=with_tier("semantic", max_items=4))
        for n in range(8):
            await memory.remember(f"Box {n} is full.", importance=n / 10)
        await memory.remember("The pot is blue.", importance=0.0, key="pot")
        await memory.remember("The key is old.", importance=0.0, pinned=True)
        report = await memory.lifecycle.run_once()
        assert len(report.capped) == 6
        assert set(await contents(memory)) == {
            "Box 6 is full.",
            "Box 7 is full.",
            "The pot is blue.",
            "The key is old.",
        }
        assert not await memory.lifecycle.run_once()

    async def test_cap_keeps_keyed_and_pinned_facts(self, opener: Opener):
        memory = await opener(user="ada", settings=with_tier("semantic", max_items=1))
        for n in range(3):
            await memory.remember(f"Box {n} is full.", key=f"box.{n}")
        assert not await memory.lifecycle.run_once()
        assert len(await contents(memory)) == 3


class TestClockJump:
    async def test_clock_jump_defers_deletion(self, opener: Opener, clock: ManualClock):
        memory = await opener(user="ada", session="s")
        await memory.episodic.store("The build is green.")
        await memory.remember("The pot is blue.", importance=0.2)
        await memory.lifecycle.run_once()
        clock.forward(3650 * DAY)
        before = (await everything(memory))[:2]
        for _ in range(2):
            report = await memory.lifecycle.run_once()
            assert not report
            assert "the clock has moved by 3,650 days" in report.notes[0]
        assert (await everything(memory))[:2] == before
        clock.back(3650 * DAY)
        assert not await memory.lifecycle.run_once()
        assert await contents(memory) == ["The pot is blue."]

    async def test_clock_that_stays_ahead_is_accepted(self, opener: Opener, clock: ManualClock):
        memory = await opener(user="ada", session="s")
        await memory.episodic.store("The build is green.")
        await memory.lifecycle.run_once()
        clock.forward(365 * DAY)
        assert not await memory.lifecycle.run_once()
        clock.forward(HOUR)
        assert (await memory.lifecycle.run_once()).expired

    @pytest.mark.parametrize("away", [2 * DAY, 31 * DAY, 99 * DAY])
    async def test_absence_up_to_99_days_is_no_clock_jump(self, opener: Opener, clock: ManualClock, away: timedelta):
        memory = await opener(user="ada", session="s")
        await memory.lifecycle.run_once()
        await memory.episodic.store("The build is green.")
        clock.forward(away)
        assert (await memory.lifecycle.run_once()).expired

    async def test_clock_jump_does_not_defer_promotion(self, opener: Opener, clock: ManualClock):
        memory = await opener(user="ada", session="s")
        await memory.lifecycle.run_once()
        clock.forward(3650 * DAY)
        await memory.record_turn("I prefer tea.", "ok")
        assert (await memory.lifecycle.run_once()).promoted
