"""Expired tasks: hidden but resumable by id, and no effect is repeated because of a wrong clock."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import Conflict, NotFound, StepFailed, TaskPoisoned
from recollect.lifecycle import Lifecycle
from recollect.memory import build_lifecycle_context
from recollect.stores.base import Tasks
from recollect.testing import ManualClock
from tests.flows.durable.working import Killed, kill, refuse

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


async def load_task(memory: AgentMemory, task_id: str) -> Any:
    """Return the stored task, expired or not."""
    return await memory.checkpoints._store.task(memory.checkpoints._space, task_id, hidden=True)


@pytest.mark.parametrize("ahead", [HOUR, 2 * HOUR, timedelta(days=3650)])
async def test_checkpoint_with_a_clock_ahead_drops_no_versions(
    memory: AgentMemory, clock: ManualClock, ahead: timedelta
):
    # Mutant: a write drops expired tasks.
    for n in (1, 2):
        await memory.checkpoints.checkpoint("t", {"n": n}, ttl=3600)
    clock.forward(ahead)
    assert await memory.checkpoints.restore("t") is None
    assert await memory.checkpoints.checkpoint("t", {"n": 3}, ttl=3600) == 3
    assert await memory.checkpoints.restore("t") == {"n": 3}
    assert await memory.checkpoints.restore("t", version=2) == {"n": 2}
    assert [entry.version for entry in await memory.checkpoints.history("t")] == [3, 2, 1]
    clock.back(ahead)
    assert [entry.version for entry in await memory.checkpoints.history("t")] == [3, 2, 1]


async def test_expired_task_is_not_replaced_at_version_0(memory: AgentMemory, clock: ManualClock):
    # Mutant: an expired task counts as version 0.
    await memory.checkpoints.checkpoint("t", {"n": 1}, ttl=3600)
    clock.forward(HOUR)
    with pytest.raises(Conflict, match=r"it expired on .* continue from version 1, or delete it"):
        await memory.checkpoints.checkpoint("t", {"n": 2}, expected_version=0, ttl=3600)
    assert await memory.checkpoints.restore("t") is None
    assert await memory.checkpoints.delete("t")
    assert await memory.checkpoints.checkpoint("t", {"n": 2}, expected_version=0, ttl=3600) == 1


async def test_run_of_an_expired_task_does_not_repeat_completed_steps(
    memory: AgentMemory, agent, trail, clock: ManualClock
):
    # Mutant: a claim drops expired tasks. Mutant: loading the state ignores expired tasks.
    with pytest.raises(Killed):
        await agent(ttl=60).run("t", [trail.step("a"), trail.step("b", kill)], {"customer": "Ada"})
    clock.forward(HOUR)
    assert await memory.checkpoints.task("t") is None
    state = await agent(ttl=60).run("t", trail.steps("a b"), {"customer": "somebody else"})
    assert trail.ran == ["a", "b", "b"]
    assert trail.keys[1] == trail.keys[2]
    assert (state["customer"], state["completed"]) == ("Ada", ["step_0_a", "step_1_b"])
    assert [note.attempts for note in await memory.checkpoints.steps("t")] == [1, 2]


async def test_run_of_an_expired_done_task_returns_its_state(memory: AgentMemory, agent, trail, clock: ManualClock):
    done = await agent(ttl=60).run("t", trail.steps("a b"))
    clock.forward(HOUR)
    assert await agent(ttl=60).run("t", trail.steps("a b")) == done
    assert trail.ran == ["a", "b"]
    assert await memory.checkpoints.task("t") is None  # reading does not extend its ttl


async def test_run_continues_after_a_clock_jump(memory: AgentMemory, agent, trail, clock: ManualClock):
    # Mutant: a fenced write drops expired tasks.
    def leap(*_: Any) -> None:
        clock.forward(2 * HOUR)

    state = await agent(ttl=60).run("t", [trail.step("a", leap), trail.step("b", leap), trail.step("c")])
    assert trail.ran == ["a", "b", "c"]
    assert len(state["completed"]) == 3


async def test_step_with_memory_writes_survives_a_clock_jump(memory: AgentMemory, agent, clock: ManualClock, watch):
    # Mutant: the conflict check ignores expired tasks: the task then counts as taken over.
    fact = await memory.remember("Ada lives in Lisbon.")

    async def learn(state, ctx):
        assert await ctx.memory.semantic.update_importance(fact.id, 0.9)
        if ctx.attempt == 1:
            await memory.semantic.update_importance(fact.id, 0.1)
            clock.forward(2 * HOUR)

    await agent(ttl=60).run("t", [learn])
    assert watch.select("retried", "lost") == [("retried", "step_0_learn")]


async def test_on_conflict_return_gives_the_state_of_an_expired_task(
    memory: AgentMemory, agent, trail, clock: ManualClock
):
    # Mutant: `restore(task_id) or initial`.
    async def stolen(state):
        store, space = memory.checkpoints._store, memory.checkpoints._space
        clock.forward(2 * HOUR)
        await store.release(await store.claim(space, "t", "another", MINUTE))
        clock.forward(2 * HOUR)

    state = await agent(ttl=60, on_conflict="return").run("t", [trail.step("a"), stolen])
    assert state["results"] == {"step_0_a": "A"}


async def test_expired_task_can_be_retried_cancelled_and_deleted(memory: AgentMemory, agent, trail, clock: ManualClock):
    # Mutant: `retry` ignores expired tasks: the task can then neither run nor be retried.
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
    assert await load_task(memory, "t") is None
    assert not await memory.checkpoints.delete("t")


async def test_skip_works_on_an_expired_task(memory: AgentMemory, agent, trail, clock: ManualClock):
    with pytest.raises(Killed):
        await agent(ttl=60).run("t", [trail.step("a", kill)])
    clock.forward(HOUR)
    assert await memory.checkpoints.skip("t", "done by hand") == "step_0_a"
    assert (await agent().run("t", trail.steps("a")))["results"] == {"step_0_a": "done by hand"}
    assert trail.ran == ["a"]


async def test_skip_of_an_unknown_task_raises_and_creates_none(memory: AgentMemory):
    # Mutant: `skip` claims without checking that the task exists.
    with pytest.raises(NotFound, match="no task 'unknown'"):
        await memory.checkpoints.skip("unknown")
    assert await memory.checkpoints.tasks() == []


class Late:
    """Store that runs a callback between the listing of expired tasks and the drop."""

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
    return Lifecycle(replace(build_lifecycle_context(memory._engine), tasks=store), memory.scope)


class TestLifecycleExpiry:
    async def test_run_once_drops_tasks_after_the_grace_period(self, memory: AgentMemory, agent, trail, clock):
        # Mutant: no grace period. Mutant: `plan` drops tasks.
        await memory.checkpoints.checkpoint("old", {"n": 1}, ttl=3600)
        await memory.checkpoints.checkpoint("forever", {"n": 1}, ttl=math.inf)
        await agent(ttl=3600).run("done", trail.steps("a b"))
        clock.forward(HOUR + 59 * MINUTE)
        await memory.checkpoints.checkpoint("new", {"n": 1}, ttl=3600)
        assert not (await memory.lifecycle.run_once()).expired
        assert await load_task(memory, "old") is not None
        clock.forward(MINUTE)
        plan = await memory.lifecycle.plan()
        assert [(entry.id, entry.tier) for entry in plan.expired] == [("done", "checkpoints"), ("old", "checkpoints")]
        assert plan.expired[0].reason == "expired on 2026-01-01 at 01:00 UTC; it was done"
        assert await load_task(memory, "old") is not None
        report = await memory.lifecycle.run_once()
        assert report.expired == plan.expired
        for task_id in ("old", "done"):
            assert await load_task(memory, task_id) is None
            store, space = memory.checkpoints._store, memory.checkpoints._space
            assert await store.checkpoints(space, task_id, hidden=True) == []
            assert await store.steps(space, task_id, hidden=True) == []
        assert [task.id for task in await memory.checkpoints.tasks()] == ["forever", "new"]
        assert not await memory.lifecycle.run_once()
        assert await memory.checkpoints.checkpoint("old", {"n": 2}, expected_version=0, ttl=3600) == 1

    async def test_run_once_drops_any_number_of_tasks(self, memory: AgentMemory, clock: ManualClock):
        # Mutant: only the first page is dropped.
        for n in range(205):
            await memory.checkpoints.checkpoint(f"t{n}", {}, ttl=3600)
        clock.forward(2 * HOUR)
        assert len((await memory.lifecycle.plan()).expired) == 205
        assert len((await memory.lifecycle.run_once()).expired) == 205
        assert not (await memory.lifecycle.run_once()).expired

    async def test_run_once_keeps_a_task_resumed_meanwhile(self, memory: AgentMemory, clock: ManualClock):
        # Mutant: the drop has no `expired_by`.
        for name in ("a", "b", "c"):
            await memory.checkpoints.checkpoint(name, {"n": 1}, ttl=3600)
        clock.forward(2 * HOUR)
        store = memory.checkpoints._store
        late = Late(store, lambda: memory.checkpoints.checkpoint("b", {"n": 2}, ttl=3600))
        report = await lifecycle_over(memory, late).run_once()
        assert [entry.id for entry in report.expired] == ["a", "c"]
        assert await memory.checkpoints.restore("b") == {"n": 2}
        assert [entry.version for entry in await memory.checkpoints.history("b")] == [2, 1]

    async def test_concurrent_runs_report_each_task_once(self, memory: AgentMemory, clock: ManualClock):
        # Mutant: dropping a deleted task is not a conflict.
        for name in ("a", "b", "c"):
            await memory.checkpoints.checkpoint(name, {"n": 1}, ttl=3600)
        clock.forward(2 * HOUR)
        first: list[str] = []

        async def another() -> None:
            first.extend(entry.id for entry in (await memory.lifecycle.run_once()).expired)

        second = await lifecycle_over(memory, Late(memory.checkpoints._store, another)).run_once()
        assert (first, second.expired) == (["a", "b", "c"], ())

    async def test_clock_jump_drops_nothing(self, memory: AgentMemory, clock: ManualClock):
        # Mutant: the clock of tasks is stored per user.
        await memory.checkpoints.checkpoint("t", {"n": 1}, ttl=3600)
        await memory.lifecycle.run_once()
        clock.forward(timedelta(days=3650))
        for view in (memory, memory.scoped(user="bob"), memory.scoped(user="bob")):  # bob has no data yet
            report = await view.lifecycle.run_once()
            assert not report.expired
            assert "the clock has moved by 3,650 days" in report.notes[0]
        clock.back(timedelta(days=3650))
        assert await memory.checkpoints.restore("t") == {"n": 1}
        clock.forward(timedelta(days=3650))
        await memory.lifecycle.run_once()
        clock.forward(HOUR)
        assert [entry.id for entry in (await memory.lifecycle.run_once()).expired] == [
            "t"
        ]  # the new time has persisted

    async def test_all_users_drops_tasks_of_every_agent(self, memory: AgentMemory, clock: ManualClock):
        # Mutant: only agents with logs are processed.
        for name in ("helper", "another"):
            await memory.scoped(agent=name).checkpoints.checkpoint(f"of {name}", {}, ttl=3600)
        await memory.checkpoints.checkpoint("mine", {}, ttl=3600)
        await memory.scoped(user="bob", session="s").episodic.store("The build is green.")
        clock.forward(2 * HOUR)
        assert [entry.id for entry in (await memory.lifecycle.run_once()).expired] == ["mine"]
        report = await memory.lifecycle.run_once(all_users=True)
        assert sorted(entry.id for entry in report.expired) == ["of another", "of helper"]


async def test_stats_count_only_unexpired_tasks(memory: AgentMemory, clock: ManualClock):
    await memory.checkpoints.checkpoint("old", {}, ttl=3600)
    clock.forward(HOUR)
    await memory.checkpoints.checkpoint("new", {}, ttl=3600)
    tasks = (await memory.stats()).tiers["checkpoints"]
    assert (tasks.items, tasks.oldest) == (1, clock.now)
    clock.forward(HOUR)
    await memory.lifecycle.run_once()
    assert (await memory.stats()).tiers["checkpoints"].items == 0
    await memory.checkpoints.checkpoint("new", {"n": 2}, ttl=3600)
    assert (await memory.stats()).tiers["checkpoints"].items == 1
