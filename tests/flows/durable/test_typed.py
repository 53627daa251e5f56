"""The types of a step's context match what the step gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import pytest

from recollect import AgentMemory, ResumableAgent, StepContext, WorkingMemory, sync
from recollect.errors import BadInput
from tests.embedders import HashEmbedder


async def test_step_context_has_the_typed_memory(agent: Callable[..., ResumableAgent]):
    async def look(state: dict[str, Any], ctx: StepContext) -> list[bool]:
        # mypy rejects these lines if either is typed Any.
        assert_type(ctx.memory, AgentMemory)
        assert_type(ctx.working, WorkingMemory)
        return [isinstance(ctx.memory, AgentMemory), isinstance(ctx.working, WorkingMemory)]

    state = await agent().run("look", [look])
    assert state["results"]["step_0_look"] == [True, True]


def test_plain_step_context_has_the_blocking_memory(place: str):
    def look(state: dict[str, Any], ctx: sync.StepContext) -> list[bool]:
        assert_type(ctx.memory, sync.AgentMemory)
        assert_type(ctx.working, sync.WorkingMemory)
        return [isinstance(ctx.memory, sync.AgentMemory), isinstance(ctx.working, sync.WorkingMemory)]

    with sync.AgentMemory.open(place, embedder=HashEmbedder()) as memory:
        assert sync.ResumableAgent(memory).run("look", [look])["results"]["step_0_look"] == [True, True]


def test_plain_step_context_has_every_member():
    members = {name for name in vars(StepContext) if name[0] != "_"}
    assert members <= {name for name in vars(sync.StepContext) if name[0] != "_"}
    assert set(sync.StepContext.__annotations__) == {"task_id", "step", "attempt", "idempotency_key"}


@pytest.mark.parametrize("given", [(), ("x.db",), ("x.db", "ada"), (None, None)])
@pytest.mark.parametrize("kind", [AgentMemory, sync.AgentMemory])
def test_memory_constructor_raises_and_suggests_open(kind: Any, given: tuple[Any, ...]):
    for named in ({}, {"user": "ada"}):
        with pytest.raises(BadInput, match=r"AgentMemory\.open\("):
            kind(*given, **named)
