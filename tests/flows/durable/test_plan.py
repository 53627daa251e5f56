"""Changed plans: steps may be added, but begun steps keep their positions unless steps are matched by name."""

from __future__ import annotations

import pytest

from recollect import AgentMemory
from recollect.errors import PlanChanged
from tests.flows.durable.working import Killed, Trail, kill


async def killed_in(agent, trail: Trail, names: str) -> None:
    """Run the steps and kill the run in the last one."""
    *before, last = names.split()
    with pytest.raises(Killed):
        await agent().run("t", [*trail.steps(" ".join(before)), trail.step(last, kill)])


@pytest.mark.parametrize("plan", ["b a c", "a x c", "x a b c", "a", "a b x", ""])
async def test_plan_that_moves_or_renames_begun_steps_raises(memory: AgentMemory, agent, trail, plan: str):
    # Mutant: only finished steps are checked ("a b x": c was begun, and its effect may have happened).
    await killed_in(agent, trail, "a b c")
    before = await memory.checkpoints.task("t")
    with pytest.raises(PlanChanged, match="by_name"):
        await agent().run("t", trail.steps(plan))
    assert trail.ran == ["a", "b", "c"]
    assert await memory.checkpoints.task("t") == before


@pytest.mark.parametrize("plan", ["a b c d", "a b c x y"])
async def test_steps_not_begun_may_change(agent, trail, plan: str):
    await killed_in(agent, trail, "a b c")
    assert len((await agent().run("t", trail.steps(plan)))["completed"]) == len(plan.split())


async def test_by_name_continues_with_moved_steps(memory: AgentMemory, agent, trail):
    # Mutant: a renamed step does not keep its idempotency key.
    await killed_in(agent, trail, "a b c")
    state = await agent(on_plan_change="by_name").run("t", trail.steps("x b a y c"))
    assert trail.ran == ["a", "b", "c", "x", "y", "c"]
    assert trail.keys[2] == trail.keys[5]
    assert sorted(state["completed"]) == ["step_0_x", "step_1_b", "step_2_a", "step_3_y", "step_4_c"]
    assert state["results"] == {"step_0_x": "X", "step_1_b": "B", "step_2_a": "A", "step_3_y": "Y", "step_4_c": "C"}
    assert await agent().run("t", trail.steps("x b a y c")) == state  # this is the stored plan from now on
    notes = {note.key: (note.status, note.attempts) for note in await memory.checkpoints.steps("t")}
    assert notes["step_4_c"] == ("completed", 2)
    assert notes["step_2_c"][0] == "failed"


async def test_by_name_keeps_results_of_removed_steps(agent, trail):
    await killed_in(agent, trail, "a b c")
    state = await agent(on_plan_change="by_name").run("t", trail.steps("b c"))
    assert state["results"] == {"step_0_a": "A", "step_0_b": "B", "step_1_c": "C"}


async def test_by_name_matches_steps_of_the_same_name_by_order(agent, trail):
    await killed_in(agent, trail, "a a b")
    state = await agent(on_plan_change="by_name").run("t", trail.steps("x a a a b"))
    assert trail.ran == ["a", "a", "b", "x", "a", "b"]
    assert len(state["completed"]) == 5


async def test_plan_hash_depends_on_the_steps(memory: AgentMemory, agent, trail):
    hashes = []
    for plan in ("a b", "a b", "a b c"):
        await agent().run("t", trail.steps(plan))
        task = await memory.checkpoints.task("t")
        assert task is not None
        hashes.append(task.plan_hash)
    assert hashes[0] == hashes[1] != hashes[2]
