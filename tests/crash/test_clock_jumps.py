"""D9: a worker whose clock jumps one or two hours ahead sees tasks as expired, but loses no work."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recollect import ResumableAgent
from recollect.stores.sqlite import tasks
from recollect.testing.factories import ManualClock
from tests.crash import mutants
from tests.crash.acknowledgments import Ledger
from tests.crash.forkserver import ForkServer
from tests.crash.result_table import Table
from tests.crash.store_locations import Backend, on_sqlite
from tests.crash.task_worker import open_memory

SECONDS = float(os.environ.get("CRASH_CLOCK_SECONDS", "4")) / 2
MUTANT_SECONDS = 1.5
HOUR = 3600
# Seconds. Two clocks are right and two jump half-way through: by the ttl, and by nearly ttl plus grace.
JUMPS = (0, 0, HOUR, 2 * HOUR - 60)
WORKERS_AHEAD = {f"w{n}" for n, leap in enumerate(JUMPS) if leap}
KEPT = 3


def run_checkpoint_writers(place: str, ledger: Ledger, seconds: float, mutant: str = "") -> list[list[str]]:
    """Let workers save checkpoints in the same tasks, with a ttl of an hour; return their notes."""
    fork_server = ForkServer(ledger.writing, mutant=mutant)
    workers = [
        fork_server.start_child("checkpoint_writer", place, f"w{n}", ledger.writing, seconds, leap)
        for n, leap in enumerate(JUMPS)
    ]
    while any(map(fork_server.is_alive, workers)):
        ledger.wait(0.05)
    fork_server.close()
    ledger.read()
    return ledger.lines


def find_lost_history(lines: list[list[str]]) -> list[str]:
    """Return versions that were assigned twice, and histories with gaps or without the saved version.

    A worker whose clock is ahead may find an empty history: the checkpoints of others are hidden from it.
    """
    given = Counter((line[2], int(line[3])) for line in lines if line[0] == "kept")
    found = [
        f"{task}: version {version} was assigned {many} times" for (task, version), many in given.items() if many > 1
    ]
    for _, worker, task, saved, *rest in (line for line in lines if line[0] == "history"):
        versions = [int(version) for version in rest]
        if not versions and worker in WORKERS_AHEAD:
            continue
        newest = versions[0] if versions else 0
        if newest < int(saved) or versions != list(range(newest, max(newest - KEPT, 0), -1)):
            found.append(f"{task}: {worker} saved version {saved} and found {versions}")
    return found


@pytest.mark.promise("D9")
@pytest.mark.timeout(300 + 3 * SECONDS)
def test_clock_jump_past_ttl_drops_no_history(backend: Backend, ledger: Ledger, table: Table):
    lines = run_checkpoint_writers(backend.new(), ledger, SECONDS)
    found = find_lost_history(lines)
    many = sum(line[0] == "kept" for line in lines)
    done = f"{len(JUMPS)} workers, two clocks jump 1–2 h ahead, ttl 1 h, lifecycle runs: {many} checkpoints"
    table.add_result("D9", f"{backend.name}: {done}, no history lost", len(found))
    assert found == []
    assert {line[1] for line in lines} == {f"w{n}" for n in range(len(JUMPS))}


@pytest.mark.mutant("D9")
def test_history_dropped_by_lifecycle_is_detected(backend: Backend, ledger: Ledger, table: Table):
    found = find_lost_history(run_checkpoint_writers(backend.new(), ledger, MUTANT_SECONDS, "purge_without_grace"))
    table.add_mutant("D9", f"{backend.name}: by the machine's clock and without grace, {MUTANT_SECONDS} s", len(found))
    assert found


@pytest.mark.mutant("D9")
def test_history_dropped_by_write_is_detected(tmp_path: Path, ledger: Ledger, table: Table):
    found = find_lost_history(
        run_checkpoint_writers(on_sqlite(tmp_path).new(), ledger, MUTANT_SECONDS, "drop_expired_on_write")
    )
    table.add_mutant("D9", f"SQLite: a write drops what has expired, {MUTANT_SECONDS} s", len(found))
    assert found


class Killed(BaseException):
    """An exception that ends a worker like a kill, within one process."""


def make_steps(many: int, effects: list[str], dies_at: int | None = None) -> list[Callable[..., Any]]:
    def make_step(place: int) -> Callable[..., Any]:
        async def effect(state: dict[str, Any], ctx: Any) -> int:
            if place == dies_at:
                raise Killed
            effects.append(ctx.idempotency_key)
            return place

        return effect

    return [make_step(place) for place in range(many)]


async def find_repeated_effects(place: str, ahead: float) -> list[str]:
    """Resume the task of a killed worker with a clock that is ahead, and return the repeated effects."""
    clock, effects = ManualClock(), list[str]()
    async with open_memory(place, clock) as memory:
        with pytest.raises(Killed):
            await ResumableAgent(memory, ttl=HOUR).run("t", make_steps(25, effects, dies_at=18))
    clock.forward(timedelta(seconds=ahead))
    async with open_memory(place, clock) as memory:
        state = await ResumableAgent(memory, ttl=HOUR).run("t", make_steps(25, effects))
        assert len(state["completed"]) == 25
    clock.back(timedelta(seconds=ahead))
    async with open_memory(place, clock) as memory:
        assert await ResumableAgent(memory, ttl=HOUR).run("t", make_steps(25, effects)) == state
    assert len(set(effects)) == 25
    return [key for key, many in Counter(effects).items() if many > 1]


@pytest.mark.promise("D9")
@pytest.mark.parametrize("ahead", [HOUR, 1.5 * HOUR, 2 * HOUR])
async def test_resume_with_clock_ahead_repeats_no_effect(backend: Backend, table: Table, ahead: float):
    found = await find_repeated_effects(backend.new(), ahead)
    table.add_result(
        "D9", f"{backend.name}: killed at 18 of 25, resumed by a clock that is {ahead / HOUR:g} h ahead", len(found)
    )
    assert found == []


@pytest.mark.mutant("D9")
async def test_repeated_effect_is_detected(tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "apply_task_writes", tasks.apply_task_writes)  # restored at the end of the test
    monkeypatch.setattr(tasks, "claim_task", tasks.claim_task)
    mutants.drop_expired_on_write()
    found = await find_repeated_effects(on_sqlite(tmp_path).new(), 1.5 * HOUR)
    table.add_mutant("D9", "SQLite: a claim drops what has expired", len(found))
    assert len(found) == 18
