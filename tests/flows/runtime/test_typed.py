"""What an editor is told of a step's context is what the step gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import pytest

from recollect import AgentMemory, BadInput, ResumableAgent, StepContext, WorkingMemory, sync
from tests.embedders import HashEmbedder


async def test_a_step_has_a_memory_by_its_type(agent: Callable[..., ResumableAgent]):
    async def look(state: dict[str, Any], ctx: StepContext) -> list[bool]:
        # The checker refuses this line when either is typed Any.
        assert_type(ctx.memory, AgentMemory)
        assert_type(ctx.working, WorkingMemory)
        return [isinstance(ctx.memory, AgentMemory), isinstance(ctx.working, WorkingMemory)]

    state = await agent().run("look", [look])
    assert state["results"]["step_0_look"] == [True, True]


def test_a_plain_step_has_the_one_that_is_not_awaited(place: str):
    def look(state: dict[str, Any], ctx: sync.StepContext) -> list[bool]:
        assert_type(ctx.memory, sync.AgentMemory)
        assert_type(ctx.working, sync.WorkingMemory)
        return [isinstance(ctx.memory, sync.AgentMemory), isinstance(ctx.working, sync.WorkingMemory)]

    with sync.AgentMemory.open(place, embedder=HashEmbedder()) as memory:
        assert sync.ResumableAgent(memory).run("look", [look])["results"]["step_0_look"] == [True, True]


def test_the_context_of_plain_steps_has_all_that_the_other_has():
    said = {name for name in vars(StepContext) if name[0] != "_"}
    assert said <= {name for name in vars(sync.StepContext) if name[0] != "_"}
    assert set(sync.StepContext.__annotations__) == {"task_id", "step", "attempt", "idempotency_key"}


@pytest.mark.parametrize("given", [(), ("x.db",), ("x.db", "ada"), (None, None)])
@pytest.mark.parametrize("kind", [AgentMemory, sync.AgentMemory])
def test_whoever_makes_a_memory_is_told_to_open_one(kind: Any, given: tuple[Any, ...]):
    for named in ({}, {"user": "ada"}):
        with pytest.raises(BadInput, match=r"AgentMemory\.open\("):
            kind(*given, **named)
