"""A plan may grow, but what was begun stays where it was, unless steps are told apart by name alone."""

from __future__ import annotations

import pytest

from recollect import AgentMemory
from recollect.errors import PlanChanged
from tests.flows.runtime.working import Killed, Trail, kill


async def killed_in(agent, trail: Trail, names: str) -> None:
    """Runs the steps and is killed in the last."""
    *before, last = names.split()
    with pytest.raises(Killed):
        await agent().run("t", [*trail.steps(" ".join(before)), trail.step(last, kill)])


@pytest.mark.parametrize("plan", ["b a c", "a x c", "x a b c", "a", "a b x", ""])
async def test_a_plan_that_moves_or_renames_what_was_begun_is_refused(memory: AgentMemory, agent, trail, plan: str):
    # Mutant: `gone` that looks at finished steps only ("a b x": c was begun, and its effect may have happened).
    await killed_in(agent, trail, "a b c")
    before = await memory.checkpoints.task("t")
    with pytest.raises(PlanChanged, match="by_name"):
        await agent().run("t", trail.steps(plan))
    assert trail.ran == ["a", "b", "c"]
    assert await memory.checkpoints.task("t") == before


@pytest.mark.parametrize("plan", ["a b c d", "a b c x y"])
async def test_what_was_not_begun_may_change(agent, trail, plan: str):
    await killed_in(agent, trail, "a b c")
    assert len((await agent().run("t", trail.steps(plan)))["completed"]) == len(plan.split())


async def test_by_name_goes_on_wherever_the_steps_are_now(memory: AgentMemory, agent, trail):
    # Mutant: renaming without carrying the key over.
    await killed_in(agent, trail, "a b c")
    state = await agent(on_plan_change="by_name").run("t", trail.steps("x b a y c"))
    assert trail.ran == ["a", "b", "c", "x", "y", "c"]
    assert trail.keys[2] == trail.keys[5]
    assert sorted(state["completed"]) == ["step_0_x", "step_1_b", "step_2_a", "step_3_y", "step_4_c"]
    assert state["results"] == {"step_0_x": "X", "step_1_b": "B", "step_2_a": "A", "step_3_y": "Y", "step_4_c": "C"}
    assert await agent().run("t", trail.steps("x b a y c")) == state  # and from now on that is the plan
    notes = {note.key: (note.status, note.attempts) for note in await memory.checkpoints.steps("t")}
    assert notes["step_4_c"] == ("completed", 2)
    assert notes["step_2_c"][0] == "failed"


async def test_by_name_keeps_the_result_of_a_step_that_is_no_longer_there(agent, trail):
    await killed_in(agent, trail, "a b c")
    state = await agent(on_plan_change="by_name").run("t", trail.steps("b c"))
    assert state["results"] == {"step_0_a": "A", "step_0_b": "B", "step_1_c": "C"}


async def test_by_name_tells_steps_of_one_name_apart_by_their_order(agent, trail):
    await killed_in(agent, trail, "a a b")
    state = await agent(on_plan_change="by_name").run("t", trail.steps("x a a a b"))
    assert trail.ran == ["a", "a", "b", "x", "a", "b"]
    assert len(state["completed"]) == 5


async def test_the_plan_is_known_by_its_hash(memory: AgentMemory, agent, trail):
    hashes = []
    for plan in ("a b", "a b", "a b c"):
        await agent().run("t", trail.steps(plan))
        task = await memory.checkpoints.task("t")
        assert task is not None
        hashes.append(task.plan_hash)
    assert hashes[0] == hashes[1] != hashes[2]
