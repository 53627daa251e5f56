"""A process killed before or after a completion: step, memories and thoughts are all stored, or none is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.durable.failpoints import FAILPOINTS_VARIABLE
from tests.embedders import HashEmbedder

ROOT = Path(__file__).resolve().parents[3]


def run(path: Path, rules: str = "") -> int:
    return subprocess.run(
        [sys.executable, "-m", "tests.flows.durable.killed_worker", str(path)],
        cwd=ROOT,
        env={**os.environ, FAILPOINTS_VARIABLE: rules},
        timeout=60,
        check=False,
    ).returncode


async def count_stored(path: Path) -> tuple[int, int, int, int]:
    """Count the completed steps, facts, messages, and thoughts in the checkpoint."""
    async with AgentMemory.open(path, embedder=HashEmbedder()) as memory:
        state = await memory.checkpoints.restore("t") or {"completed": []}
        facts = (await memory.stats()).items
        messages = len(await memory.conversation.get_last_n(20))
        checkpoint = await memory.checkpoints._store.checkpoint(memory.checkpoints._space, "t")
        assert checkpoint is not None
        assert await memory.check() == []
        return len(state["completed"]), facts, messages, len(json.loads(checkpoint.state)["working"]["scratchpad"])


@pytest.mark.parametrize(("point", "done"), [("body.after", 1), ("completion.before", 1), ("completion.after", 2)])
async def test_killed_step_commits_with_its_memories_or_not_at_all(tmp_path: Path, point: str, done: int):
    # Mutant: collected writes are in a separate transaction before the completion.
    path = tmp_path / "agent.db"
    assert run(path, f"{point}=kill9@2") == -signal.SIGKILL
    assert await count_stored(path) == (done, done, 2 * done, done)
    assert run(path) == 0
    assert await count_stored(path) == (3, 3, 6, 3)
