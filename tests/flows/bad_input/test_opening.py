"""Early errors: a memory that was not awaited, and invalid steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from recollect import AgentMemory, ResumableAgent
from recollect.errors import BadInput


async def test_unawaited_open_raises_on_use(tmp_path):
    opening: Any = AgentMemory.open(tmp_path / "a.db")
    with pytest.raises(BadInput, match=r"await AgentMemory\.open"):
        await opening.remember("x")
    with pytest.raises(BadInput, match=r"recollect\.sync"), opening:
        pass
    assert not (tmp_path / "a.db").exists()
    copy.copy(opening)  # special method lookups by Python do not raise


async def test_invalid_steps_raise_before_anything_is_written(memory: AgentMemory):
    agent = ResumableAgent(memory)

    def nothing_taken() -> None: ...

    def too_much(state: Any, ctx: Any, more: Any) -> None: ...

    for steps in ([nothing_taken], [too_much], nothing_taken, 7, [None]):
        with pytest.raises(BadInput, match="step"):
            await agent.run("job", steps)  # type: ignore[arg-type]
    assert await memory.checkpoints.tasks() == []
    assert (await agent.run("job", [lambda state: 1, lambda state, ctx: 2, lambda *given: 3]))["completed"]
