"""Importance decays, and unimportant unused facts are forgotten; keyed, pinned and used facts stay."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput
from recollect.lifecycle.context import LifecycleRun
from recollect.lifecycle.report import LifecycleReportBuilder
from recollect.lifecycle.runner import merge_duplicates, record_comparison
from recollect.memory import build_lifecycle_context
from recollect.testing import ManualClock
from tests.flows.conftest import Opener
from tests.flows.lifecycle.talk import contents, facts

DAY = timedelta(days=1)


async def test_unused_fact_decays_and_is_reported(memory: AgentMemory, clock: ManualClock):
    item = await memory.remember("The pot is blue.", importance=0.85)
    clock.forward(90 * DAY)
    report = await memory.lifecycle.run_once()
    assert [(action.id, action.reason) for action in report.decayed] == [(item.id, "importance 0.85 → 0.62")]
    [faded] = await facts(memory)
    assert faded.importance == pytest.approx(0.05 + 0.8 * 2**-0.5)
    assert faded.decayed_at == clock.now
    assert not await memory.lifecycle.run_once()


async def test_daily_runs_decay_as_much_as_one_run(opener: Opener, clock: ManualClock):
    often, once = await opener(user="often"), await opener(user="once")
    for memory in (often, once):
        await memory.remember("The pot is blue.", importance=0.85)
    for _ in range(60):
        clock.forward(DAY)
        await often.lifecycle.run_once()
    await once.lifecycle.run_once()
    [daily], [single] = await facts(often), await facts(once)
    assert daily.importance == pytest.approx(single.importance, abs=0.01)


async def test_recalled_fact_decays_more_slowly(memory: AgentMemory, clock: ManualClock):
    for text in ("The pot is blue.", "The key is old."):
        await memory.remember(text, importance=0.85)
    for _ in range(3):
        await memory.semantic.search("key", 1, min_relevance=0.0)
    clock.forward(90 * DAY)
    await memory.lifecycle.run_once()
    by_text = {item.content: item.importance for item in await facts(memory)}
    assert by_text["The key is old."] > by_text["The pot is blue."] + 0.1


async def test_keyed_and_pinned_facts_neither_decay_nor_expire(memory: AgentMemory, clock: ManualClock):
    await memory.remember("The pot is blue.", importance=0.1, key="pot")
    await memory.remember("The key is old.", importance=0.1, pinned=True)
    await memory.remember("The door is red.", importance=0.1)
    clock.forward(99 * DAY)
    report = await memory.lifecycle.run_once()
    assert len(report.forgotten) == 1
    assert not report.decayed
    assert set(await contents(memory)) == {"The pot is blue.", "The key is old."}


async def test_unimportant_unused_fact_is_forgotten_after_30_days(memory: AgentMemory, clock: ManualClock):
    item = await memory.remember("The pot is blue.", importance=0.25)
    used = await memory.remember("The key is old.", importance=0.25)
    for _ in range(2):
        await memory.semantic.search("key", 1, min_relevance=0.0)
    clock.forward(29 * DAY)
    assert not (await memory.lifecycle.run_once()).forgotten
    clock.forward(DAY)
    report = await memory.lifecycle.run_once()
    assert [action.id for action in report.forgotten] == [item.id]
    assert report.forgotten[0].reason.startswith("importance 0.2")
    assert [fact.id for fact in await facts(memory)] == [used.id]


async def test_default_fact_is_kept_after_99_unused_days(memory: AgentMemory, clock: ManualClock):
    """A user who returns after three months is still known."""
    await memory.remember("Ada plays the cello on Sundays.")
    clock.forward(99 * DAY)
    await memory.lifecycle.run_once()
    assert await contents(memory) == ["Ada plays the cello on Sundays."]


async def test_imported_old_facts_are_not_forgotten_immediately(memory: AgentMemory, clock: ManualClock):
    long_ago = clock.now - 900 * DAY
    await memory.remember("The pot is blue.", importance=0.2, at=long_ago)
    await memory.remember("The door is red.", at=long_ago)
    assert not await memory.lifecycle.run_once()
    clock.forward(31 * DAY)
    assert len((await memory.lifecycle.run_once()).forgotten) == 1


class TestDecayClock:
    async def test_new_importance_restarts_decay(self, memory: AgentMemory, clock: ManualClock):
        item = await memory.remember("The pot is blue.", importance=0.8)
        clock.forward(50 * DAY)
        await memory.semantic.update_importance(item.id, 0.6)
        assert (await facts(memory))[0].decayed_at == clock.now
        clock.forward(DAY)
        again = await memory.remember("The pot is blue.", importance=0.7)
        assert again.decayed_at == clock.now
        assert not (await memory.lifecycle.run_once()).decayed

    async def test_repeated_fact_without_importance_keeps_decay_start(self, memory: AgentMemory, clock: ManualClock):
        item = await memory.remember("The pot is blue.", importance=0.8)
        clock.forward(DAY)
        assert (await memory.remember("The pot is blue.")).decayed_at == item.decayed_at


class TestPinning:
    async def test_fact_is_pinned_and_unpinned(self, memory: AgentMemory):
        assert (await memory.remember("The pot is blue.")).pinned is False
        assert (await memory.remember("The pot is blue.", pinned=True)).pinned is True
        assert (await memory.remember("The pot is blue.")).pinned is True
        assert (await memory.remember("The pot is blue.", pinned=False)).pinned is False

    @pytest.mark.parametrize("bad", [1, "yes", 0.5, []])
    async def test_non_boolean_pinned_raises_bad_input(self, memory: AgentMemory, bad: object):
        with pytest.raises(BadInput, match="pinned must be True or False"):
            await memory.remember("The pot is blue.", pinned=bad)  # type: ignore[arg-type]


async def test_duplicates_are_merged_and_copies_forgotten_after_30_days(memory: AgentMemory, clock: ManualClock):
    await memory.remember("The pot is blue.", importance=0.9)
    copy = await memory.remember("the pot is blue", importance=0.8)
    report = await memory.lifecycle.run_once()
    assert [action.id for action in report.merged] == [copy.id]
    assert await contents(memory) == ["The pot is blue."]
    assert not await memory.lifecycle.run_once()
    clock.forward(30 * DAY)
    report = await memory.lifecycle.run_once()
    assert [action.id for action in report.forgotten] == [copy.id]
    assert len(await facts(memory)) == 1


async def test_facts_are_compared_again_only_after_a_change(memory: AgentMemory):
    await memory.remember("The pot is blue.")
    await memory.remember("The key is old.")
    assert (await memory.lifecycle.run_once()).examined == 4  # two compared, two checked for decay
    assert (await memory.lifecycle.run_once()).examined == 2
    await memory.remember("the pot is blue")
    assert len((await memory.lifecycle.run_once()).merged) == 1


async def test_plan_applies_merges_before_later_stages(memory: AgentMemory, clock: ManualClock):
    await memory.remember("The pot is blue.", importance=0.9)
    await memory.remember("the pot is blue", importance=0.8)
    clock.forward(60 * DAY)
    plan = await memory.lifecycle.plan()
    assert (len(plan.merged), len(plan.decayed)) == (1, 1)  # a merged copy does not decay
    assert plan.actions == (await memory.lifecycle.run_once()).actions


async def test_facts_forgotten_by_a_run_cause_no_new_comparison(memory: AgentMemory, clock: ManualClock):
    await memory.remember("The pot is blue.", importance=0.1)
    await memory.remember("The door is red.", importance=0.9)
    clock.forward(45 * DAY)
    assert len((await memory.lifecycle.run_once()).forgotten) == 1
    assert (await memory.lifecycle.run_once()).examined == 1


async def test_fact_added_during_comparison_is_compared_by_next_run(memory: AgentMemory, clock: ManualClock):
    await memory.remember("The pot is blue.")
    means = build_lifecycle_context(memory._engine)
    run = LifecycleRun(
        context=means,
        scope=memory.scope,
        now=clock.now,
        report=LifecycleReportBuilder(),
        overlay=means.records,
    )
    await merge_duplicates(run)
    await memory.remember("the pot is blue")
    await record_comparison(run)
    assert len((await memory.lifecycle.run_once()).merged) == 1
