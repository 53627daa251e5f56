"""Importance fades and what is low and unused is forgotten; keyed, pinned and used facts stay."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recollect import AgentMemory, BadInput
from recollect.lifecycle.ground import Ground
from recollect.lifecycle.merging import merge_duplicates, note_what_was_compared
from recollect.lifecycle.report import Ledger
from recollect.lifecycle.run import Purse, Run
from recollect.testing import ManualClock
from tests.flows.conftest import Opener
from tests.flows.lifecycle.talk import contents, facts

DAY = timedelta(days=1)


async def test_an_unused_fact_fades_and_is_told_so(memory: AgentMemory, clock: ManualClock):
    item = await memory.remember("The pot is blue.", importance=0.85)
    clock.forward(90 * DAY)
    report = await memory.lifecycle.run_once()
    assert [(action.id, action.reason) for action in report.decayed] == [(item.id, "importance 0.85 → 0.62")]
    [faded] = await facts(memory)
    assert faded.importance == pytest.approx(0.05 + 0.8 * 2**-0.5)
    assert faded.decayed_at == clock.now
    assert not await memory.lifecycle.run_once()


async def test_many_runs_fade_as_one(opener: Opener, clock: ManualClock):
    often, once = await opener(user="often"), await opener(user="once")
    for memory in (often, once):
        await memory.remember("The pot is blue.", importance=0.85)
    for _ in range(60):
        clock.forward(DAY)
        await often.lifecycle.run_once()
    await once.lifecycle.run_once()
    [step], [leap] = await facts(often), await facts(once)
    assert step.importance == pytest.approx(leap.importance, abs=0.01)


async def test_what_is_recalled_fades_more_slowly(memory: AgentMemory, clock: ManualClock):
    for text in ("The pot is blue.", "The key is old."):
        await memory.remember(text, importance=0.85)
    for _ in range(3):
        await memory.semantic.search("key", 1, min_relevance=0.0)
    clock.forward(90 * DAY)
    await memory.lifecycle.run_once()
    by_text = {item.content: item.importance for item in await facts(memory)}
    assert by_text["The key is old."] > by_text["The pot is blue."] + 0.1


async def test_keyed_and_pinned_facts_do_not_fade_and_are_not_forgotten(memory: AgentMemory, clock: ManualClock):
    await memory.remember("The pot is blue.", importance=0.1, key="pot")
    await memory.remember("The key is old.", importance=0.1, pinned=True)
    await memory.remember("The door is red.", importance=0.1)
    clock.forward(99 * DAY)
    report = await memory.lifecycle.run_once()
    assert len(report.forgotten) == 1
    assert not report.decayed
    assert set(await contents(memory)) == {"The pot is blue.", "The key is old."}


async def test_low_and_unused_is_forgotten_when_its_time_has_come(memory: AgentMemory, clock: ManualClock):
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


async def test_a_plain_fact_outlives_a_season_unused(memory: AgentMemory, clock: ManualClock):
    """Who comes back after three months is still known."""
    await memory.remember("Ada plays the cello on Sundays.")
    clock.forward(99 * DAY)
    await memory.lifecycle.run_once()
    assert await contents(memory) == ["Ada plays the cello on Sundays."]


async def test_an_old_diary_is_not_forgotten_on_the_day_it_is_imported(memory: AgentMemory, clock: ManualClock):
    long_ago = clock.now - 900 * DAY
    await memory.remember("The pot is blue.", importance=0.2, at=long_ago)
    await memory.remember("The door is red.", at=long_ago)
    assert not await memory.lifecycle.run_once()
    clock.forward(31 * DAY)
    assert len((await memory.lifecycle.run_once()).forgotten) == 1


class TestTheDecayClock:
    async def test_importance_said_anew_starts_it_again(self, memory: AgentMemory, clock: ManualClock):
        item = await memory.remember("The pot is blue.", importance=0.8)
        clock.forward(50 * DAY)
        await memory.semantic.update_importance(item.id, 0.6)
        assert (await facts(memory))[0].decayed_at == clock.now
        clock.forward(DAY)
        again = await memory.remember("The pot is blue.", importance=0.7)
        assert again.decayed_at == clock.now
        assert not (await memory.lifecycle.run_once()).decayed

    async def test_the_same_said_without_a_number_leaves_it(self, memory: AgentMemory, clock: ManualClock):
        item = await memory.remember("The pot is blue.", importance=0.8)
        clock.forward(DAY)
        assert (await memory.remember("The pot is blue.")).decayed_at == item.decayed_at


class TestPinning:
    async def test_a_fact_is_pinned_and_let_loose(self, memory: AgentMemory):
        assert (await memory.remember("The pot is blue.")).pinned is False
        assert (await memory.remember("The pot is blue.", pinned=True)).pinned is True
        assert (await memory.remember("The pot is blue.")).pinned is True
        assert (await memory.remember("The pot is blue.", pinned=False)).pinned is False

    @pytest.mark.parametrize("bad", [1, "yes", 0.5, []])
    async def test_it_is_true_or_false(self, memory: AgentMemory, bad: object):
        with pytest.raises(BadInput, match="pinned is True or False"):
            await memory.remember("The pot is blue.", pinned=bad)  # type: ignore[arg-type]


async def test_duplicates_are_merged_and_their_copies_go_in_the_end(memory: AgentMemory, clock: ManualClock):
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


async def test_facts_are_compared_again_only_when_some_have_come_or_gone(memory: AgentMemory):
    await memory.remember("The pot is blue.")
    await memory.remember("The key is old.")
    assert (await memory.lifecycle.run_once()).examined == 4  # to be compared, and to be aged
    assert (await memory.lifecycle.run_once()).examined == 2
    await memory.remember("the pot is blue")
    assert len((await memory.lifecycle.run_once()).merged) == 1


async def test_a_plan_foresees_what_merging_changes_for_the_stages_after_it(memory: AgentMemory, clock: ManualClock):
    await memory.remember("The pot is blue.", importance=0.9)
    await memory.remember("the pot is blue", importance=0.8)
    clock.forward(60 * DAY)
    plan = await memory.lifecycle.plan()
    assert (len(plan.merged), len(plan.decayed)) == (1, 1)  # a copy does not fade by itself
    assert plan.actions == (await memory.lifecycle.run_once()).actions


async def test_what_a_run_forgot_itself_is_no_reason_to_compare_again(memory: AgentMemory, clock: ManualClock):
    await memory.remember("The pot is blue.", importance=0.1)
    await memory.remember("The door is red.", importance=0.9)
    clock.forward(45 * DAY)
    assert len((await memory.lifecycle.run_once()).forgotten) == 1
    assert (await memory.lifecycle.run_once()).examined == 1


async def test_what_came_while_facts_were_compared_is_compared_next_time(memory: AgentMemory, clock: ManualClock):
    await memory.remember("The pot is blue.")
    means = memory._parts.means
    run = Run(
        means=means,
        scope=memory.scope,
        now=clock.now,
        ledger=Ledger(),
        ground=Ground(means.records, imagined=False),
        purse=Purse(0),
    )
    await merge_duplicates(run)
    await memory.remember("the pot is blue")
    await note_what_was_compared(run)
    assert len((await memory.lifecycle.run_once()).merged) == 1
