"""A widely published agent loop runs unchanged on `memory.checkpoints` as its state manager."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, sync
from tests.embedders import HashEmbedder
from tests.flows.durable.working import Killed


class NaiveAgent:
    """The published class, unchanged except for the types."""

    def __init__(self, state_manager: Any) -> None:
        self.state_manager = state_manager

    async def run(self, task_id: str, steps: list[Any]) -> None:
        state = self.state_manager.restore(task_id) or {"completed": [], "results": {}}
        completed = set(state["completed"])

        for i, step in enumerate(steps):
            step_name = f"step_{i}_{step.__name__}"

            if step_name in completed:
                continue  # Skip already-completed steps (idempotency)

            result = await step(state)
            state["results"][step_name] = result
            state["completed"].append(step_name)
            self.state_manager.checkpoint(task_id, state)  # Save after each step


def steps_of(ran: list[int], deadly: int | None) -> list[Any]:
    def made(number: int) -> Any:
        async def step(state: dict[str, Any]) -> int:
            ran.append(number)
            if number == deadly:
                raise Killed
            return len(state["completed"])

        return step

    return [made(number) for number in range(25)]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_published_loop_resumes_at_18_of_25(kind: str, tmp_path: Path):
    place = "memory://" if kind == "memory" else str(tmp_path / "agent.db")
    ran: list[int] = []
    with sync.AgentMemory.open(place, embedder=HashEmbedder()) as memory:
        with pytest.raises(Killed):
            asyncio.run(NaiveAgent(memory.checkpoints).run("t", steps_of(ran, 17)))
        asyncio.run(NaiveAgent(memory.checkpoints).run("t", steps_of(ran, None)))
        assert ran == [*range(18), *range(17, 25)]
        state = memory.checkpoints.restore("t")
        assert state is not None
        assert len(state["completed"]) == 25


async def test_resumable_agent_continues_the_published_loop(memory: AgentMemory, agent, trail):
    """`ResumableAgent` uses the same step names as the published loop."""
    state: dict[str, Any] = await memory.checkpoints.restore("t") or {"completed": [], "results": {}}
    first = trail.steps("a b c")[0]
    state["results"]["step_0_a"] = await first(state, type("Context", (), {"idempotency_key": ""}))
    state["completed"].append("step_0_a")
    await memory.checkpoints.checkpoint("t", state)
    done = await agent().run("t", trail.steps("a b c"))
    assert trail.ran == ["a", "b", "c"]
    assert done["results"] == {"step_0_a": "A", "step_1_b": "B", "step_2_c": "C"}
