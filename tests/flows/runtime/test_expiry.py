"""Tasks whose time is up: hidden, gone on with by whoever names them, and no effect is repeated for a wrong clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recollect import AgentMemory, Conflict
from recollect.errors import NotFound, StepFailed, TaskPoisoned
from recollect.lifecycle import Lifecycle
from recollect.stores.base import Tasks
from recollect.testing import ManualClock
from tests.flows.runtime.working import Killed, kill, refuse

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


async def kept(memory: AgentMemory, task_id: str) -> Any:
    """The task as the store has it, seen or not."""
    return await memory.checkpoints.store.task(memory.checkpoints.space, task_id, hidden=True)


@pytest.mark.parametrize("ahead", [HOUR, 2 * HOUR, timedelta(days=3650)])
async def test_a_checkpoint_by_a_clock_that_is_ahead_drops_nothing(
    memory: AgentMemory, clock: ManualClock, ahead: timedelta
):
    # Mutant: a write that drops what has expired.
    for n in (1, 2):
        await memory.checkpoints.checkpoint("t", {"n": n})
    clock.forward(ahead)
    assert await memory.checkpoints.restore("t") is None
    assert await memory.checkpoints.checkpoint("t", {"n": 3}) == 3
    assert await memory.checkpoints.restore("t") == {"n": 3}
    assert await memory.checkpoints.restore("t", version=2) == {"n": 2}
    assert [one.version for one in await memory.checkpoints.history("t")] == [3, 2, 1]
    clock.back(ahead)
    assert [one.version for one in await memory.checkpoints.history("t")] == [3, 2, 1]


async def test_an_expired_task_is_not_taken_for_a_new_one(memory: AgentMemory, clock: ManualClock):
    # Mutant: an expired task counts as version 0.
    await memory.checkpoints.checkpoint("t", {"n": 1})
    clock.forward(HOUR)
    with pytest.raises(Conflict, match=r"it expired on .* go on from version 1, or delete it"):
        await memory.checkpoints.checkpoint("t", {"n": 2}, expected_version=0)
    assert await memory.checkpoints.restore("t") is None
    assert await memory.checkpoints.delete("t")
    assert await memory.checkpoints.checkpoint("t", {"n": 2}, expected_version=0) == 1


async def test_a_run_does_not_repeat_what_was_done_before_the_task_expired(
    memory: AgentMemory, agent, trail, clock: ManualClock
):
    # Mutant: a claim that drops what has expired. Mutant: `loaded` that does not see what is hidden.
    with pytest.raises(Killed):
        await agent(ttl=60).run("t", [trail.step("a"), trail.step("b", kill)], {"customer": "Ada"})
    clock.forward(HOUR)
    assert await memory.checkpoints.task("t") is None
    state = await agent(ttl=60).run("t", trail.steps("a b"), {"customer": "somebody else"})
    assert trail.ran == ["a", "b", "b"]
    assert trail.keys[1] == trail.keys[2]
    assert (state["customer"], state["completed"]) == ("Ada", ["step_0_a", "step_1_b"])
    assert [note.attempts for note in await memory.checkpoints.steps("t")] == [1, 2]


async def test_a_task_that_was_done_before_it_expired_is_only_looked_up(
    memory: AgentMemory, agent, trail, clock: ManualClock
):
    done = await agent(ttl=60).run("t", trail.steps("a b"))
    clock.forward(HOUR)
    assert await agent(ttl=60).run("t", trail.steps("a b")) == done
    assert trail.ran == ["a", "b"]
    assert await memory.checkpoints.task("t") is None  # looking it up is no sign of life


async def test_a_worker_whose_clock_leaps_goes_on_with_its_task(memory: AgentMemory, agent, trail, clock: ManualClock):
    # Mutant: a fenced write that drops what has expired.
    def leap(*_: Any) -> None:
        clock.forward(2 * HOUR)

    state = await agent(ttl=60).run("t", [trail.step("a", leap), trail.step("b", leap), trail.step("c")])
    assert trail.ran == ["a", "b", "c"]
    assert len(state["completed"]) == 3


async def test_a_step_that_told_its_memory_something_survives_the_leap(
    memory: AgentMemory, agent, clock: ManualClock, watch
):
    # Mutant: `_explained` that does not see what is hidden: the task then counts as taken by others.
    kept = await memory.remember("Ada lives in Lisbon.")

    async def learn(state, ctx):
        assert await ctx.memory.semantic.update_importance(kept.id, 0.9)
        if ctx.attempt == 1:
            await memory.semantic.update_importance(kept.id, 0.1)
            clock.forward(2 * HOUR)

    await agent(ttl=60).run("t", [learn])
    assert watch.told("retried", "lost") == [("retried", "step_0_learn")]


async def test_those_who_do_not_wait_get_the_state_so_far_whatever_their_clock_says(
    memory: AgentMemory, agent, trail, clock: ManualClock
):
    # Mutant: `restore(task_id) or initial`.
    async def stolen(state):
        store, space = memory.checkpoints.store, memory.checkpoints.space
        clock.forward(2 * HOUR)
        await store.release(await store.claim(space, "t", "another", MINUTE))
        clock.forward(2 * HOUR)

    state = await agent(ttl=60, on_conflict="return").run("t", [trail.step("a"), stolen])
    assert state["results"] == {"step_0_a": "A"}


async def test_what_a_person_does_about_an_expired_task_is_done(memory: AgentMemory, agent, trail, clock: ManualClock):
    # Mutant: `retry` that does not see what is hidden: the task can then neither be run nor retried.
    with pytest.raises(TaskPoisoned):
        await agent(ttl=60, max_attempts=1).run("t", [trail.step("a", refuse)])
    clock.forward(HOUR)
    with pytest.raises(TaskPoisoned, match=r"'step_0_a' failed 1 times .*retry"):
        await agent(ttl=60).run("t", trail.steps("a"))
    assert await memory.checkpoints.retry("t")
    clock.forward(HOUR)
    assert await memory.checkpoints.cancel("t")
    clock.forward(HOUR)
    with pytest.raises(StepFailed, match="cancelled"):
        await agent(ttl=60).run("t", trail.steps("a"))
    assert await memory.checkpoints.delete("t")
    assert await kept(memory, "t") is None
    assert not await memory.checkpoints.delete("t")


async def test_an_outcome_that_nobody_knew_can_be_told_of_an_expired_task(
    memory: AgentMemory, agent, trail, clock: ManualClock
):
    with pytest.raises(Killed):
        await agent(ttl=60).run("t", [trail.step("a", kill)])
    clock.forward(HOUR)
    assert await memory.checkpoints.skip("t", "done by hand") == "step_0_a"
    assert (await agent().run("t", trail.steps("a")))["results"] == {"step_0_a": "done by hand"}
    assert trail.ran == ["a"]


async def test_telling_an_outcome_of_no_task_makes_none(memory: AgentMemory):
    # Mutant: `skip` that claims without looking.
    with pytest.raises(NotFound, match="no task 'unknown'"):
        await memory.checkpoints.skip("unknown")
    assert await memory.checkpoints.tasks() == []


class Late:
    """A store beside which something happens between the list of what has expired and the drop."""

    def __init__(self, real: Tasks, meanwhile: Callable[[], Awaitable[Any]]) -> None:
        self._real = real
        self._meanwhile: Callable[[], Awaitable[Any]] | None = meanwhile

    async def write(self, *writes: Any) -> None:
        if (meanwhile := self._meanwhile) is not None:
            self._meanwhile = None
            await meanwhile()
        await self._real.write(*writes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def lifecycle_over(memory: AgentMemory, store: Any) -> Lifecycle:
    return Lifecycle(replace(memory._parts.means, tasks=store), memory.scope)


class TestTheLifecycle:
    async def test_drops_what_expired_a_grace_ago_and_says_so(self, memory: AgentMemory, agent, trail, clock):
        # Mutant: no grace. Mutant: a plan that drops.
        await memory.checkpoints.checkpoint("old", {"n": 1})
        await memory.checkpoints.checkpoint("forever", {"n": 1}, ttl=None)
        await agent(ttl=3600).run("done", trail.steps("a b"))
        clock.forward(HOUR + 59 * MINUTE)
        await memory.checkpoints.checkpoint("new", {"n": 1})
        assert not (await memory.lifecycle.run_once()).expired
        assert await kept(memory, "old") is not None
        clock.forward(MINUTE)
        plan = await memory.lifecycle.plan()
        assert [(one.id, one.tier) for one in plan.expired] == [("done", "checkpoints"), ("old", "checkpoints")]
        assert plan.expired[0].reason == "expired on 2026-01-01 at 01:00 UTC; it was done"
        assert await kept(memory, "old") is not None
        report = await memory.lifecycle.run_once()
        assert report.expired == plan.expired
        for gone in ("old", "done"):
            assert await kept(memory, gone) is None
            store, space = memory.checkpoints.store, memory.checkpoints.space
            assert await store.checkpoints(space, gone, hidden=True) == []
            assert await store.steps(space, gone, hidden=True) == []
        assert [task.id for task in await memory.checkpoints.tasks()] == ["forever", "new"]
        assert not await memory.lifecycle.run_once()
        assert await memory.checkpoints.checkpoint("old", {"n": 2}, expected_version=0) == 1

    async def test_drops_any_number(self, memory: AgentMemory, clock: ManualClock):
        # Mutant: only the first page.
        for n in range(205):
            await memory.checkpoints.checkpoint(f"t{n}", {})
        clock.forward(2 * HOUR)
        assert len((await memory.lifecycle.plan()).expired) == 205
        assert len((await memory.lifecycle.run_once()).expired) == 205
        assert not (await memory.lifecycle.run_once()).expired

    async def test_leaves_alone_what_is_taken_up_while_it_works(self, memory: AgentMemory, clock: ManualClock):
        # Mutant: a drop without `expired_by`.
        for name in ("a", "b", "c"):
            await memory.checkpoints.checkpoint(name, {"n": 1})
        clock.forward(2 * HOUR)
        store = memory.checkpoints.store
        late = Late(store, lambda: memory.checkpoints.checkpoint("b", {"n": 2}))
        report = await lifecycle_over(memory, late).run_once()
        assert [one.id for one in report.expired] == ["a", "c"]
        assert await memory.checkpoints.restore("b") == {"n": 2}
        assert [one.version for one in await memory.checkpoints.history("b")] == [2, 1]

    async def test_of_two_at_once_each_task_is_reported_by_one(self, memory: AgentMemory, clock: ManualClock):
        # Mutant: a drop of what is gone already is no conflict.
        for name in ("a", "b", "c"):
            await memory.checkpoints.checkpoint(name, {"n": 1})
        clock.forward(2 * HOUR)
        first: list[str] = []

        async def another() -> None:
            first.extend(one.id for one in (await memory.lifecycle.run_once()).expired)

        second = await lifecycle_over(memory, Late(memory.checkpoints.store, another)).run_once()
        assert (first, second.expired) == (["a", "b", "c"], ())

    async def test_does_not_believe_a_leap(self, memory: AgentMemory, clock: ManualClock):
        # Mutant: the clock of tasks is noted by user.
        await memory.checkpoints.checkpoint("t", {"n": 1})
        await memory.lifecycle.run_once()
        clock.forward(timedelta(days=3650))
        for somebody in (memory, memory.scoped(user="bob"), memory.scoped(user="bob")):  # bob is new here
            report = await somebody.lifecycle.run_once()
            assert not report.expired
            assert "the clock has moved by 3,650 days" in report.notes[0]
        clock.back(timedelta(days=3650))
        assert await memory.checkpoints.restore("t") == {"n": 1}
        clock.forward(timedelta(days=3650))
        await memory.lifecycle.run_once()
        clock.forward(HOUR)
        assert [one.id for one in (await memory.lifecycle.run_once()).expired] == ["t"]  # it has lasted

    async def test_looks_after_every_agent_when_told_to(self, memory: AgentMemory, clock: ManualClock):
        # Mutant: only agents that have logs.
        for name in ("helper", "another"):
            await memory.scoped(agent=name).checkpoints.checkpoint(f"of {name}", {})
        await memory.checkpoints.checkpoint("mine", {})
        await memory.scoped(user="bob", session="s").episodic.store("The build is green.")
        clock.forward(2 * HOUR)
        assert [one.id for one in (await memory.lifecycle.run_once()).expired] == ["mine"]
        report = await memory.lifecycle.run_once(everybody=True)
        assert sorted(one.id for one in report.expired) == ["of another", "of helper"]


async def test_statistics_count_what_is_seen(memory: AgentMemory, clock: ManualClock):
    await memory.checkpoints.checkpoint("old", {})
    clock.forward(HOUR)
    await memory.checkpoints.checkpoint("new", {})
    tasks = (await memory.stats()).tiers["checkpoints"]
    assert (tasks.items, tasks.oldest) == (1, clock.now)
    clock.forward(HOUR)
    await memory.lifecycle.run_once()
    assert (await memory.stats()).tiers["checkpoints"].items == 0
    await memory.checkpoints.checkpoint("new", {"n": 2})
    assert (await memory.stats()).tiers["checkpoints"].items == 1
