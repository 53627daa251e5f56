"""Properties of lifecycle runs over random histories: idempotence, plans, and equal backends."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given

from recollect import AgentMemory
from recollect.lifecycle import LifecycleReport
from recollect.testing import ManualClock
from tests.budgets import limit_examples
from tests.embedders import HashEmbedder
from tests.flows.lifecycle.histories import STEPS, Step, apply_steps
from tests.flows.lifecycle.talk import everything, facts


@asynccontextmanager
async def open_memory(backend: str, clock: ManualClock) -> AsyncIterator[AgentMemory]:
    with tempfile.TemporaryDirectory() as directory:
        place = "memory://" if backend == "memory" else str(Path(directory) / "agent.db")
        async with AgentMemory.open(place, user="ada", embedder=HashEmbedder(), clock=clock) as memory:
            yield memory


def drop_merges_of_promoted(report: LifecycleReport, planned: LifecycleReport) -> dict[str, object]:
    """Return the actions without merges of facts that the same run promoted, which a plan cannot predict."""
    new = {action.id for action in planned.promoted}
    actions = {
        kind: {(action.id, action.reason, action.into) for action in found} for kind, found in report.actions.items()
    }
    actions["merged"] = {merge for merge in actions["merged"] if merge[0] not in new and merge[2] not in new}
    return dict(actions)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@limit_examples(0.3)
@given(steps=STEPS)
async def test_second_run_at_the_same_time_changes_nothing(backend: str, steps: list[Step]):
    clock = ManualClock()
    async with open_memory(backend, clock) as memory:
        await apply_steps(memory, clock, steps)
        await memory.lifecycle.run_once()
        before = await everything(memory)
        again = await memory.lifecycle.run_once()
        assert not again
        assert await everything(memory) == before


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@limit_examples(0.3)
@given(steps=STEPS)
async def test_plan_changes_nothing_and_matches_the_run(backend: str, steps: list[Step]):
    clock = ManualClock()
    async with open_memory(backend, clock) as memory:
        await apply_steps(memory, clock, steps)
        before = await everything(memory)
        planned = await memory.lifecycle.plan()
        assert planned.planned
        assert await everything(memory) == before
        done = await memory.lifecycle.run_once()
        assert drop_merges_of_promoted(done, planned) == drop_merges_of_promoted(planned, planned)


@limit_examples(0.4)
@given(steps=STEPS)
async def test_backends_produce_the_same_facts(steps: list[Step]):
    known = []
    for backend in ("memory", "sqlite"):
        clock = ManualClock()
        async with open_memory(backend, clock) as memory:
            await apply_steps(memory, clock, steps)
            report = await memory.lifecycle.run_once()
            known.append(
                (report.counts, [(item.content, item.importance, item.superseded_by) for item in await facts(memory)])
            )
    assert known[0] == known[1]
