"""Leases: one worker at a time, heartbeats, and lost leases that stop the step and discard its work."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from recollect import AgentMemory, ResumableAgent
from recollect.durable import Timing
from recollect.errors import BadInput, FencedOut, LeaseHeld
from recollect.testing import ManualClock

MINUTE = timedelta(minutes=1)


async def steal(memory: AgentMemory, clock: ManualClock) -> Any:
    """Claim the task as another worker after its lease has expired."""
    clock.forward(MINUTE)
    return await memory.checkpoints._store.claim(memory.checkpoints._space, "t", "another", MINUTE)


async def test_one_of_many_runs_gets_the_lease_and_the_others_raise(agent, trail):
    # Mutant: all runs of a process share an owner name.
    go = asyncio.Event()

    async def wait(state):
        trail.ran.append("wait")
        await go.wait()

    runs = [asyncio.create_task(agent().run("t", [wait])) for _ in range(8)]
    done, pending = await asyncio.wait(runs, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    while len(pending) > 1:
        more, pending = await asyncio.wait(pending, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    go.set()
    await asyncio.wait(pending)
    assert sum(isinstance(run.exception(), LeaseHeld) for run in runs) == 7
    assert trail.ran == ["wait"]


async def test_on_conflict_wait_returns_the_final_state(agent, trail):
    states = await asyncio.gather(*(agent(on_conflict="wait").run("t", trail.steps("a b c")) for _ in range(5)))
    assert all(state == states[0] for state in states)
    assert trail.ran == ["a", "b", "c"]


async def test_on_conflict_return_gives_the_current_state(agent, trail):
    begun, go = asyncio.Event(), asyncio.Event()

    async def wait(state):
        begun.set()
        await go.wait()

    steps = [trail.step("a"), wait]
    first = asyncio.create_task(agent().run("t", steps))
    await begun.wait()
    assert (await agent(on_conflict="return").run("t", steps))["completed"] == ["step_0_a"]
    go.set()
    assert len((await first)["completed"]) == 2


async def test_heartbeat_renews_the_lease_every_third_of_its_ttl(memory: AgentMemory, agent, clock: ManualClock, waits):
    # Mutant: a heartbeat does not renew the lease.
    async def long(state):
        for _ in range(4):
            clock.forward(timedelta(seconds=20))
            waits.now += 20
            await waits.beaten()
            with pytest.raises(LeaseHeld):
                await memory.checkpoints._store.claim(memory.checkpoints._space, "t", "another", MINUTE)

    await agent(lease_ttl=30).run("t", [long])
    assert set(waits.asked_to_beat) == {10.0}


async def test_lost_lease_cancels_the_step_and_writes_nothing(
    memory: AgentMemory, agent, clock: ManualClock, waits, watch
):
    # Mutant: a heartbeat swallows `FencedOut` (the step is then never cancelled).
    seen: list[bool] = []

    async def long(state, ctx):
        assert not ctx.lost
        await steal(memory, clock)
        waits.beat()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.lost)

    with pytest.raises(FencedOut, match="taken over"):
        await agent().run("t", [long])
    assert seen == [True]
    assert watch.select("lost", "finished") == [("lost", None)]
    task = await memory.checkpoints.task("t")
    assert task is not None
    assert task.owner == "another"  # not released by the worker that lost it


async def test_worker_stops_by_its_own_clock_before_the_lease_ends(memory: AgentMemory, agent, waits):
    # Mutant: _SAFE_SHARE = 1.5.
    async def long(state):
        waits.now = 27.0  # the lease would end at 30; no worker has claimed it, and the store is not read
        waits.beat()
        await asyncio.Event().wait()

    before = []

    async def note(state):
        before.append((await memory.checkpoints.task("t")).renewed_at)  # type: ignore[union-attr]

    with pytest.raises(FencedOut, match="time ran out"):
        await agent(lease_ttl=30).run("t", [note, long])
    task = await memory.checkpoints.task("t")
    assert task is not None
    assert task.renewed_at == before[0]


async def test_failing_heartbeat_loses_the_lease(memory: AgentMemory):
    # Mutant: a failing heartbeat ends silently (this step then runs forever).
    begun = asyncio.Event()

    async def beat(seconds: float) -> None:
        await begun.wait()
        raise RuntimeError("no pulse")

    async def long(state):
        begun.set()
        await asyncio.Event().wait()

    with pytest.raises(FencedOut, match="no pulse"):
        await ResumableAgent(memory, _timing=Timing(heartbeat_sleep=beat)).run("t", [long])


async def test_step_in_a_thread_sees_the_lost_lease(memory: AgentMemory, agent, clock: ManualClock, waits):
    """A thread cannot be stopped, but it can check `ctx.lost`, and its result is discarded."""
    loop, begun, ended, end = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event(), threading.Event()
    seen: list[bool] = []

    def long(state, ctx):
        seen.append(ctx.lost)
        loop.call_soon_threadsafe(begun.set)
        end.wait(10)
        seen.append(ctx.lost)
        loop.call_soon_threadsafe(ended.set)
        return "too late"

    running = asyncio.create_task(agent().run("t", [long]))
    await begun.wait()
    await steal(memory, clock)
    waits.beat()
    with pytest.raises(FencedOut):
        await running
    end.set()
    await ended.wait()
    assert seen == [False, True]
    assert await memory.checkpoints.restore("t") == {"completed": [], "results": {}}


async def test_step_that_ignores_cancellation_is_discarded(memory: AgentMemory, agent, clock: ManualClock, waits):
    # Mutant: `guard` accepts the result of a step that it has cancelled.
    async def stubborn(state):
        await steal(memory, clock)
        waits.beat()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I went on"

    with pytest.raises(FencedOut):
        await agent().run("t", [stubborn])
    assert await memory.checkpoints.restore("t") == {"completed": [], "results": {}}
    caller = asyncio.current_task()
    assert caller is not None
    assert caller.cancelling() == 0  # the caller is not left cancelled


async def test_worker_that_was_suspended_writes_nothing(memory: AgentMemory, agent, waits):
    async def frozen(state):
        waits.now = 3600.0
        return "too late"

    with pytest.raises(FencedOut):
        await agent().run("t", [frozen])
    assert (await memory.checkpoints.restore("t")) == {"completed": [], "results": {}}


async def test_work_of_a_fenced_out_worker_is_discarded(memory: AgentMemory, agent, clock: ManualClock, trail, watch):
    # Mutant: a completion is written without the fence.
    async def zombie(state):
        lease = await steal(memory, clock)
        await memory.checkpoints._store.release(lease)
        trail.ran.append("zombie")
        await agent().run("t", trail.steps("zombie"))
        return "stale"

    with pytest.raises(FencedOut, match="discarded"):
        await agent().run("t", [zombie])
    state = await memory.checkpoints.restore("t")
    assert state is not None
    assert state["results"] == {"step_0_zombie": "ZOMBIE"}
    assert ("lost", None) in watch.select("lost")


async def test_on_conflict_wait_continues_after_losing_the_lease(memory: AgentMemory, agent, clock: ManualClock):
    stolen: list[Any] = []

    async def once(state):
        if not stolen:
            stolen.append(await steal(memory, clock))
            await memory.checkpoints._store.release(stolen[0])
        return "done"

    state = await agent(on_conflict="wait").run("t", [once])
    assert state["results"] == {"step_0_once": "done"}


async def test_task_deleted_during_a_run_is_not_recreated(memory: AgentMemory, agent):
    async def vanish(state):
        await memory.checkpoints.delete("t")

    with pytest.raises(FencedOut, match="deleted"):
        await agent().run("t", [vanish])
    assert await memory.checkpoints.task("t") is None


async def test_cancelled_task_stops_at_the_next_heartbeat(memory: AgentMemory, agent, waits):
    async def long(state):
        assert await memory.checkpoints.cancel("t")
        waits.beat()
        await asyncio.Event().wait()

    with pytest.raises(FencedOut, match="cancelled"):
        await agent().run("t", [long])
    assert [task.id for task in await memory.checkpoints.tasks("failed")] == ["t"]


async def test_cancellation_is_not_overwritten_by_running_steps(memory: AgentMemory, agent, waits, trail):
    # Mutant: completions set the status to "running".
    async def cancel(state):
        assert await memory.checkpoints.cancel("t")

    async def beat(state):
        await waits.beaten()

    with pytest.raises(FencedOut, match="cancelled"):
        await agent().run("t", [cancel, trail.step("a"), beat, trail.step("b")])
    assert trail.ran == ["a"]
    assert [task.id for task in await memory.checkpoints.tasks("failed")] == ["t"]


async def test_fences_and_versions_only_increase(memory: AgentMemory, agent, trail):
    fences = []

    async def note(state):
        task = await memory.checkpoints.task("t")
        assert task is not None
        fences.append((task.fence, task.version))

    for n in range(1, 5):
        await agent().run("t", [note] * n)
    assert fences == sorted(set(fences))


@pytest.mark.parametrize(
    "options",
    [
        {"lease_ttl": 0},
        {"lease_ttl": "x"},
        {"max_attempts": 0},
        {"on_conflict": "x"},
        {"on_plan_change": "x"},
        {"ttl": 0},
    ],
)
async def test_invalid_agent_option_raises(agent, options: dict[str, Any]):
    with pytest.raises(BadInput):
        agent(**options)
