"""Attempts: retried with backoff, counted across crashes, and poisoned when none are left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from recollect import AgentMemory, step
from recollect.errors import BadInput, StepFailed, TaskPoisoned
from tests.flows.durable.working import Killed, kill, refuse


def build_flaky_step(times: int, *, error: type[Exception] = OSError, **options: Any):
    ran: list[int] = []

    @step(**options)
    async def flaky(state, ctx):
        ran.append(ctx.attempt)
        if len(ran) <= times:
            raise error("the line is busy")
        return "through"

    return flaky, ran


async def test_failed_step_is_retried_with_exponential_jittered_backoff(agent, waits, watch):
    # Mutant: no jitter. Mutant: the wait does not double.
    flaky, ran = build_flaky_step(4, retries=4, backoff=(0.5, 3))
    waits.chance = 0.5
    state = await agent().run("t", [flaky])
    assert state["results"] == {"step_0_flaky": "through"}
    assert ran == [1, 2, 3, 4, 5]
    assert waits.slept == [0.25, 0.5, 1.0, 1.5]  # half of 0.5, 1, 2 and, bounded, 3
    assert [event.attempt for event in watch.events if event.kind == "retried"] == [1, 2, 3, 4]


async def test_plain_step_uses_max_attempts_of_the_agent(agent):
    flaky, ran = build_flaky_step(2)
    await agent(max_attempts=3).run("t", [flaky])
    assert ran == [1, 2, 3]


async def test_step_without_attempts_left_is_poisoned_until_retry(memory: AgentMemory, agent, watch, trail):
    # Mutant: attempts never run out. Mutant: a poisoned task may run.
    flaky, ran = build_flaky_step(3)
    with pytest.raises(TaskPoisoned, match=r"failed 3 times.*OSError: the line is busy.*retry\('t'\)") as caught:
        await agent(max_attempts=3).run("t", [flaky])
    assert isinstance(caught.value.__cause__, OSError)
    assert ran == [1, 2, 3]
    [task] = await memory.checkpoints.tasks("poisoned")
    assert (task.id, task.owner) == ("t", None)
    [note] = await memory.checkpoints.steps("t")
    assert (note.status, note.attempts, note.error) == ("poisoned", 3, "OSError: the line is busy")
    with pytest.raises(TaskPoisoned, match="retry"):
        await agent(max_attempts=9).run("t", [flaky])  # a higher max_attempts does not clear it: it needs a retry
    assert ran == [1, 2, 3]
    assert await memory.checkpoints.tasks("poisoned") == [task]
    assert (await agent().run("other", trail.steps("a")))["completed"] == ["step_0_a"]  # other tasks are not affected

    assert await memory.checkpoints.retry("t")
    assert (await agent(max_attempts=3).run("t", [flaky]))["results"] == {"step_0_flaky": "through"}
    assert ran == [1, 2, 3, 1]
    assert not await memory.checkpoints.retry("no such task")


async def test_attempts_are_counted_across_crashes(memory: AgentMemory, agent, trail):
    # Mutant: attempts start at 1 in every run.
    for _ in range(3):
        with pytest.raises(Killed):
            await agent(max_attempts=3).run("t", [trail.step("deadly", kill)])
    with pytest.raises(TaskPoisoned, match="3 times"):
        await agent(max_attempts=3).run("t", [trail.step("deadly")])
    assert trail.ran == ["deadly"] * 3
    assert [task.id for task in await memory.checkpoints.tasks("poisoned")] == ["t"]


async def test_attempts_count_failures_and_crashes_together(agent):
    ran: list[int] = []

    async def bad(state, ctx):
        ran.append(ctx.attempt)
        if ctx.attempt == 2:
            raise Killed
        raise OSError

    with pytest.raises(Killed):
        await agent(max_attempts=3).run("t", [bad])
    with pytest.raises(TaskPoisoned):
        await agent(max_attempts=3).run("t", [bad])
    assert ran == [1, 2, 3]


async def test_non_retryable_error_fails_at_once_and_can_be_run_again(memory: AgentMemory, agent):
    flaky, ran = build_flaky_step(1, error=KeyError, retries=5, retry_on=OSError)
    with pytest.raises(StepFailed, match="KeyError") as caught:
        await agent().run("t", [flaky])
    assert not isinstance(caught.value, TaskPoisoned)
    assert ran == [1]
    task = await memory.checkpoints.task("t")
    assert task is not None
    assert task.status == "ready"
    assert (await agent().run("t", [flaky]))["results"] == {"step_0_flaky": "through"}
    assert ran == [1, 2]


async def test_step_beyond_its_timeout_fails(agent, watch):
    # Mutant: the timeout is not applied (this test then hangs until its own timeout).
    tries: list[int] = []

    @step(retries=1, timeout=0.01)
    async def slow(state):
        tries.append(1)
        if len(tries) == 1:
            await asyncio.Event().wait()
        return "in time"

    state = await agent().run("t", [slow])
    assert state["results"] == {"step_0_slow": "in time"}
    [failed] = [event for event in watch.events if event.kind == "failed"]
    assert failed.detail.startswith("TimeoutError")


async def test_step_cancelled_from_within_fails_and_the_run_continues(agent):
    # Mutant: every CancelledError is treated as a cancellation by the caller.
    tries: list[int] = []

    async def careless(state):
        tries.append(1)
        if len(tries) == 1:
            asyncio.get_running_loop().call_soon(waited.cancel)
            await waited
        return "done"

    waited = asyncio.get_running_loop().create_future()
    assert (await agent().run("t", [careless]))["results"] == {"step_0_careless": "done"}


async def test_events_are_emitted_in_order(agent, watch, trail):
    flaky, _ = build_flaky_step(1)
    await agent().run("t", [trail.step("a"), flaky])
    assert [(event.kind, event.step, event.attempt) for event in watch.events] == [
        ("started", "step_0_a", 1),
        ("finished", "step_0_a", 1),
        ("started", "step_1_flaky", 1),
        ("failed", "step_1_flaky", 1),
        ("retried", "step_1_flaky", 1),
        ("started", "step_1_flaky", 2),
        ("finished", "step_1_flaky", 2),
        ("done", None, None),
    ]


async def test_failing_event_handler_does_not_stop_the_run(memory: AgentMemory, waits, trail):
    from recollect import ResumableAgent

    agent = ResumableAgent(memory, on_event=refuse, _timing=waits.pace)
    assert (await agent.run("t", trail.steps("a")))["completed"] == ["step_0_a"]


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"retries": True},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"backoff": -1},
        {"backoff": "soon"},
        {"retry_on": 3},
        {"retry_on": BaseException},
        {"compensate": 3},
        {"on_unknown": "guess"},
    ],
)
def test_invalid_step_option_raises(options):
    with pytest.raises(BadInput):
        step(**options)
