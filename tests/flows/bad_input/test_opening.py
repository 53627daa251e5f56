"""A memory that was not awaited, and steps that are none: told at once, and nothing is begun."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from recollect import AgentMemory, BadInput, ResumableAgent


async def test_who_forgets_to_await_is_told_so(tmp_path):
    opening: Any = AgentMemory.open(tmp_path / "a.db")
    with pytest.raises(BadInput, match=r"await AgentMemory\.open"):
        await opening.remember("x")
    with pytest.raises(BadInput, match=r"recollect\.sync"), opening:
        pass
    assert not (tmp_path / "a.db").exists()
    copy.copy(opening)  # what Python itself looks for is not taken for a call of ours


async def test_steps_that_are_none_are_refused_before_anything_is_noted(memory: AgentMemory):
    agent = ResumableAgent(memory)

    def nothing_taken() -> None: ...

    def too_much(state: Any, ctx: Any, more: Any) -> None: ...

    for steps in ([nothing_taken], [too_much], nothing_taken, 7, [None]):
        with pytest.raises(BadInput, match="step"):
            await agent.run("job", steps)  # type: ignore[arg-type]
    assert await memory.checkpoints.tasks() == []
    assert (await agent.run("job", [lambda state: 1, lambda state, ctx: 2, lambda *given: 3]))["completed"]
