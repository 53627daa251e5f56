"""A process killed on either side of a completion: step, memories and thoughts are all there, or none is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.runtime.failpoints import VARIABLE
from tests.embedders import HashEmbedder

ROOT = Path(__file__).resolve().parents[3]


def run(path: Path, rules: str = "") -> int:
    return subprocess.run(
        [sys.executable, "-m", "tests.flows.runtime.dying", str(path)],
        cwd=ROOT,
        env={**os.environ, VARIABLE: rules},
        timeout=60,
        check=False,
    ).returncode


async def held(path: Path) -> tuple[int, int, int, int]:
    """Steps that are completed, facts, messages, and thoughts in the checkpoint."""
    async with AgentMemory.open(path, embedder=HashEmbedder()) as memory:
        state = await memory.checkpoints.restore("t") or {"completed": []}
        facts = (await memory.stats()).items
        messages = len(await memory.conversation.get_last_n(20))
        kept = await memory.checkpoints.store.checkpoint(memory.checkpoints.space, "t")
        assert kept is not None
        assert await memory.check() == []
        return len(state["completed"]), facts, messages, len(json.loads(kept.state)["working"]["scratchpad"])


@pytest.mark.parametrize(("point", "done"), [("body.after", 1), ("completion.before", 1), ("completion.after", 2)])
async def test_a_step_and_what_it_remembered_land_together_or_not_at_all(tmp_path: Path, point: str, done: int):
    # Mutant: collected writes in a transaction of their own, before the completion.
    path = tmp_path / "agent.db"
    assert run(path, f"{point}=kill9@2") == -signal.SIGKILL
    assert await held(path) == (done, done, 2 * done, done)
    assert run(path) == 0
    assert await held(path) == (3, 3, 6, 3)
