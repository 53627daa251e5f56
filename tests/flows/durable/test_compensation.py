"""Compensation: if a step fails permanently, completed steps are undone in reverse order, each keyed and journaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recollect import AgentMemory, step
from recollect.errors import StepFailed, TaskPoisoned
from tests.flows.durable.working import Killed, Trail, kill, refuse


def undoable(trail: Trail, name: str, then: Callable[..., Any] | None = None) -> Any:
    return step(compensate=trail.step(f"un{name}", then))(trail.step(name))


async def test_compensation_undoes_steps_in_reverse_order(memory: AgentMemory, agent, trail, watch):
    # Mutant: completed steps are undone in plan order.
    steps = [undoable(trail, "a"), trail.step("plain"), undoable(trail, "b"), step(retries=0)(trail.step("c", refuse))]
    with pytest.raises(StepFailed, match=r"step_3_c.*OSError.*undone: step_2_b, step_0_a"):
        await agent().run("t", steps)
    assert trail.ran == ["a", "plain", "b", "c", "unb", "una"]
    assert len(set(trail.keys)) == 6
    state = await memory.checkpoints.restore("t")
    assert state == {"completed": ["step_1_plain"], "results": {"step_1_plain": "PLAIN"}}
    notes = {note.key: (note.status, note.attempts) for note in await memory.checkpoints.steps("t")}
    assert notes == {
        "step_0_a": ("compensated", 1),
        "step_1_plain": ("completed", 1),
        "step_2_b": ("compensated", 1),
        "step_3_c": ("poisoned", 1),
        "undo_step_2_b": ("completed", 1),
        "undo_step_0_a": ("completed", 1),
    }
    assert watch.select("compensated") == [("compensated", "step_2_b"), ("compensated", "step_0_a")]
    assert [task.id for task in await memory.checkpoints.tasks("failed")] == ["t"]
    for call in (agent().run("t", steps), memory.checkpoints.retry("t")):
        with pytest.raises(StepFailed, match="another id"):  # its idempotency keys are used
            await call


async def test_compensation_sees_the_result_of_its_step(agent):
    seen: list[Any] = []

    async def refund(state):
        seen.append(state["results"]["step_0_pay"])

    @step(compensate=refund)
    async def pay(state):
        return {"payment": 7}

    @step(retry_on=(KeyError,))
    async def ship(state):
        raise OSError("no ship")

    with pytest.raises(StepFailed):
        await agent().run("t", [pay, ship])
    assert seen == [{"payment": 7}]


async def test_compensation_resumes_after_a_crash_with_the_same_key(memory: AgentMemory, agent, trail):
    # Mutant: a run of a "compensating" task continues with its steps.
    def steps(then: Any) -> list[Any]:
        return [
            undoable(trail, "a"),
            undoable(trail, "b", then),
            undoable(trail, "c"),
            step(retries=0)(trail.step("d", refuse)),
        ]

    with pytest.raises(Killed):
        await agent().run("t", steps(kill))
    assert [task.id for task in await memory.checkpoints.tasks("compensating")] == ["t"]
    with pytest.raises(StepFailed, match="step_3_d"):
        await agent().run("t", steps(None))
    assert trail.ran == ["a", "b", "c", "d", "unc", "unb", "unb", "una"]
    assert trail.keys[5] == trail.keys[6]


async def test_failing_compensation_is_retried_and_then_poisoned(memory: AgentMemory, agent, trail):
    steps = [undoable(trail, "a", refuse), step(retries=0)(trail.step("b", refuse))]
    with pytest.raises(TaskPoisoned, match="undo_step_0_a"):
        await agent(max_attempts=2).run("t", steps)
    assert trail.ran == ["a", "b", "una", "una"]
    with pytest.raises(TaskPoisoned, match=r"undo_step_0_a.*retry"):
        await agent(max_attempts=2).run("t", steps)
    assert [task.id for task in await memory.checkpoints.tasks("compensating")] == ["t"]
    assert await memory.checkpoints.retry("t")
    fixed = [undoable(trail, "a"), step(retries=0)(trail.step("b"))]
    with pytest.raises(StepFailed, match="undone: step_0_a"):
        await agent(max_attempts=2).run("t", fixed)
    assert trail.ran == ["a", "b", "una", "una", "una"]


async def test_step_that_repeatedly_kills_the_process_is_compensated(agent, trail):
    steps = [undoable(trail, "a"), trail.step("deadly", kill)]
    for _ in range(2):
        with pytest.raises(Killed):
            await agent(max_attempts=2).run("t", steps)
    with pytest.raises(StepFailed, match="undone: step_0_a"):
        await agent(max_attempts=2).run("t", steps)
    assert trail.ran == ["a", "deadly", "deadly", "una"]
