"""What a step costs: one durable commit more than the work itself."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, ResumableAgent, step
from recollect.stores.sqlite.writer import Writer
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.runtime.working import Waits


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Every commit of the writer as it happens: whether it was durable."""
    made: list[bool] = []
    transact: Any = Writer._transact

    def counted(self: Writer, jobs: Any, *rest: Any, **more: Any) -> Any:
        made.append(any(job.durable for job in jobs))
        return transact(self, jobs, *rest, **more)

    monkeypatch.setattr(Writer, "_transact", counted)
    return made


async def test_a_step_takes_one_durable_commit(tmp_path: Path, commits: list[bool]):
    # Mutant: `_fresh` that always answers None, so that no intent rides on a completion.
    async def work(state, ctx):
        await ctx.memory.remember(f"{ctx.step} was done.")  # rides along

    async with AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder()) as memory:
        await memory.remember("Something, so that the store is warm.")
        commits.clear()
        await ResumableAgent(memory, pace=Waits().pace).run("t", [work] * 25)
        assert len(commits) == 25 + 3  # a claim, the first intent, 25 completions, and giving the lease back
        assert all(commits)
        commits.clear()
        await ResumableAgent(memory, pace=Waits().pace).run("t", [work] * 25)
        assert commits == []  # what is done is only looked up


async def test_a_failed_attempt_takes_two(tmp_path: Path, commits: list[bool]):
    @step(retries=3)
    async def flaky(state, ctx):
        if ctx.attempt < 3:
            raise OSError

    async with AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder()) as memory:
        await ResumableAgent(memory, pace=Waits().pace).run("warm", [])
        commits.clear()
        await ResumableAgent(memory, pace=Waits().pace).run("t", [flaky])
        assert len(commits) == 1 + 3 + 2 * 2  # the failure, and the next intent


async def test_a_checkpoint_takes_one_commit_also_when_the_task_has_expired(tmp_path: Path, commits: list[bool]):
    # Mutant: the version is looked for among what is seen (each try is then refused, and costs a commit).
    clock = ManualClock()
    async with AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder(), clock=clock) as memory:
        await memory.checkpoints.checkpoint("t", {"n": 1})
        clock.forward(timedelta(hours=2))
        commits.clear()
        assert await memory.checkpoints.checkpoint("t", {"n": 2}) == 2
        assert commits == [True]
