"""Commits of a task: each step takes one durable commit."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, ResumableAgent, step
from recollect.stores.sqlite.threads import SqliteWriter
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.durable.working import Waits


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each commit of the SQLite writer whether it was durable."""
    made: list[bool] = []
    transact: Any = SqliteWriter._transact

    def counted(self: SqliteWriter, jobs: Any, *rest: Any, **more: Any) -> Any:
        made.append(any(job.durable for job in jobs))
        return transact(self, jobs, *rest, **more)

    monkeypatch.setattr(SqliteWriter, "_transact", counted)
    return made


async def test_step_takes_one_durable_commit(tmp_path: Path, commits: list[bool]):
    # Mutant: `_prepare_next` always returns None, so that no intent is committed with a completion.
    async def work(state, ctx):
        await ctx.memory.remember(f"{ctx.step} was done.")  # committed with the completion

    async with AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder()) as memory:
        await memory.remember("Something, so that the store is warm.")
        commits.clear()
        await ResumableAgent(memory, _timing=Waits().pace).run("t", [work] * 25)
        assert len(commits) == 25 + 3  # the claim, the first intent, 25 completions and the release of the lease
        assert all(commits)
        commits.clear()
        await ResumableAgent(memory, _timing=Waits().pace).run("t", [work] * 25)
        assert commits == []  # a done task is only read


async def test_failed_attempt_takes_two_commits(tmp_path: Path, commits: list[bool]):
    @step(retries=3)
    async def flaky(state, ctx):
        if ctx.attempt < 3:
            raise OSError

    async with AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder()) as memory:
        await ResumableAgent(memory, _timing=Waits().pace).run("warm", [])
        commits.clear()
        await ResumableAgent(memory, _timing=Waits().pace).run("t", [flaky])
        assert len(commits) == 1 + 3 + 2 * 2  # each failure and each next intent


async def test_checkpoint_of_an_expired_task_takes_one_commit(tmp_path: Path, commits: list[bool]):
    # Mutant: the version is read without expired tasks (each attempt is then rejected and costs a commit).
    clock = ManualClock()
    async with AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder(), clock=clock) as memory:
        await memory.checkpoints.checkpoint("t", {"n": 1})
        clock.forward(timedelta(hours=2))
        commits.clear()
        assert await memory.checkpoints.checkpoint("t", {"n": 2}) == 2
        assert commits == [True]
