"""Compensation: when a step fails for good, what was done is undone in reverse order, each keyed and journaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recollect import AgentMemory, step
from recollect.errors import StepFailed, TaskPoisoned
from tests.flows.runtime.working import Killed, Trail, kill, refuse


def undoable(trail: Trail, name: str, then: Callable[..., Any] | None = None) -> Any:
    return step(compensate=trail.step(f"un{name}", then))(trail.step(name))


async def test_what_was_done_is_undone_in_reverse(memory: AgentMemory, agent, trail, watch):
    # Mutant: `reversed` left out.
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
    assert watch.told("compensated") == [("compensated", "step_2_b"), ("compensated", "step_0_a")]
    assert [task.id for task in await memory.checkpoints.tasks("failed")] == ["t"]
    for call in (agent().run("t", steps), memory.checkpoints.retry("t")):
        with pytest.raises(StepFailed, match="another id"):  # its keys are spent
            await call


async def test_an_undo_sees_the_result_that_it_undoes(agent):
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


async def test_undoing_goes_on_after_a_crash_with_the_same_key(memory: AgentMemory, agent, trail):
    # Mutant: a run of a "compensating" task that goes on with its steps.
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


async def test_an_undo_that_fails_is_tried_again_and_then_left_to_a_person(memory: AgentMemory, agent, trail):
    steps = [undoable(trail, "a", refuse), step(retries=0)(trail.step("b", refuse))]
    with pytest.raises(TaskPoisoned, match="undo_step_0_a"):
        await agent(max_attempts=2).run("t", steps)
    assert trail.ran == ["a", "b", "una", "una"]
    with pytest.raises(TaskPoisoned, match=r"undo_step_0_a.*retry"):
        await agent(max_attempts=2).run("t", steps)
    assert [task.id for task in await memory.checkpoints.tasks("compensating")] == ["t"]
    assert await memory.checkpoints.retry("t")
    mended = [undoable(trail, "a"), step(retries=0)(trail.step("b"))]
    with pytest.raises(StepFailed, match="undone: step_0_a"):
        await agent(max_attempts=2).run("t", mended)
    assert trail.ran == ["a", "b", "una", "una", "una"]


async def test_a_step_that_kills_its_process_too_often_is_undone_too(agent, trail):
    steps = [undoable(trail, "a"), trail.step("deadly", kill)]
    for _ in range(2):
        with pytest.raises(Killed):
            await agent(max_attempts=2).run("t", steps)
    with pytest.raises(StepFailed, match="undone: step_0_a"):
        await agent(max_attempts=2).run("t", steps)
    assert trail.ran == ["a", "deadly", "deadly", "una"]
