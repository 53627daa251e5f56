"""Whatever has happened: a second run finds nothing to do, and a plan tells what a run then does."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings

from recollect import AgentMemory
from recollect.lifecycle import LifecycleReport
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.lifecycle.histories import STEPS, Step, live
from tests.flows.lifecycle.talk import everything, facts


@asynccontextmanager
async def opened(backend: str, clock: ManualClock) -> AsyncIterator[AgentMemory]:
    with tempfile.TemporaryDirectory() as directory:
        place = "memory://" if backend == "memory" else str(Path(directory) / "agent.db")
        async with AgentMemory.open(place, user="ada", embedder=HashEmbedder(), clock=clock) as memory:
            yield memory


def without_merges_of_the_new(report: LifecycleReport, planned: LifecycleReport) -> dict[str, object]:
    """The actions, but for merges with what the very same run promoted: a plan cannot foresee those."""
    new = {action.id for action in planned.promoted}
    actions = {kind: {(one.id, one.reason, one.into) for one in found} for kind, found in report.actions.items()}
    actions["merged"] = {one for one in actions["merged"] if one[0] not in new and one[2] not in new}
    return dict(actions)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@settings(max_examples=100)
@given(steps=STEPS)
async def test_a_second_run_at_the_same_moment_finds_nothing_to_do(backend: str, steps: list[Step]):
    clock = ManualClock()
    async with opened(backend, clock) as memory:
        await live(memory, clock, steps)
        await memory.lifecycle.run_once()
        before = await everything(memory)
        again = await memory.lifecycle.run_once()
        assert not again
        assert await everything(memory) == before


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@settings(max_examples=100)
@given(steps=STEPS)
async def test_a_plan_changes_nothing_and_comes_true(backend: str, steps: list[Step]):
    clock = ManualClock()
    async with opened(backend, clock) as memory:
        await live(memory, clock, steps)
        before = await everything(memory)
        planned = await memory.lifecycle.plan()
        assert planned.planned
        assert await everything(memory) == before
        done = await memory.lifecycle.run_once()
        assert without_merges_of_the_new(done, planned) == without_merges_of_the_new(planned, planned)


@settings(max_examples=40)
@given(steps=STEPS)
async def test_every_backend_does_the_same(steps: list[Step]):
    known = []
    for backend in ("memory", "sqlite"):
        clock = ManualClock()
        async with opened(backend, clock) as memory:
            await live(memory, clock, steps)
            report = await memory.lifecycle.run_once()
            known.append(
                (report.counts, [(item.content, item.importance, item.superseded_by) for item in await facts(memory)])
            )
    assert known[0] == known[1]
