"""D9: a wrong clock delays work but loses no data."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from datetime import timedelta
from itertools import pairwise

import pytest

from recollect.lifecycle import runner
from recollect.testing.factories import ManualClock
from tests.crash.acknowledgments import Ledger
from tests.crash.forkserver import ForkServer
from tests.crash.result_table import Table
from tests.crash.store_locations import Backend, store_at
from tests.crash.task_worker import open_memory
from tests.crash.turn_history import TASKS

SECONDS = float(os.environ.get("CRASH_CLOCK_SECONDS", "4"))
MUTANT_SECONDS = 1.5
HOUR = 3600
TEN_YEARS = 10 * 365 * 24 * HOUR

# Offset and jump in seconds: two clocks are an hour off, one each way, and one jumps ten years ahead half-way through.
CLOCKS = ((0, 0), (0, 0), (0, 0), (0, TEN_YEARS), (HOUR, 0), (-HOUR, 0))


def run_contenders(place: str, ledger: Ledger, seconds: float, mutant: str = "") -> list[list[str]]:
    """Let workers with these clocks increment the same counters, and return their notes."""
    fork_server = ForkServer(ledger.writing, mutant=mutant)
    workers = [
        fork_server.start_child("lease_contender", place, f"w{n}", ledger.writing, seconds, wrong, jump)
        for n, (wrong, jump) in enumerate(CLOCKS)
    ]
    while any(map(fork_server.is_alive, workers)):
        ledger.wait(0.05)
    fork_server.close()
    ledger.read()
    return ledger.lines


def find_lost_updates(lines: list[list[str]]) -> list[str]:
    """Return counts that were acknowledged twice and fences out of order: both must increase with each save."""
    saved: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        if line[0] == "saved":
            saved[line[2]].append((int(line[4]), int(line[3])))
    found = []
    for task, pairs in saved.items():
        counts = Counter(count for count, _ in pairs)
        found += [f"{task}: number {count} was acknowledged {many} times" for count, many in counts.items() if many > 1]
        found += [
            f"{task}: fence {later} wrote after fence {earlier}"
            for (_, earlier), (_, later) in pairwise(sorted(pairs))
            if later <= earlier
        ]
    return found


@pytest.mark.promise("D9")
@pytest.mark.timeout(300 + 3 * SECONDS)
async def test_workers_with_different_clocks_lose_no_update(backend: Backend, ledger: Ledger, table: Table):
    place = backend.new()
    lines = run_contenders(place, ledger, SECONDS)
    found = find_lost_updates(lines)
    store = await store_at(place)
    versions = {task.id: task.version for task in await store.tasks(TASKS)}
    await store.close()
    totals = Counter(line[0] for line in lines)
    done = (
        f"{len(CLOCKS)} workers, clocks ±1 h, a jump of ten years: {totals['saved']} saves, {totals['refused']} zombies"
    )
    table.add_result("D9", f"{backend.name}: {done} refused", len(found))
    assert found == []
    assert versions == Counter(line[2] for line in lines if line[0] == "saved")
    assert totals["refused"] > 0, "no zombie was rejected: this run tests nothing"
    assert {line[1] for line in lines if line[0] == "saved"} == {f"w{n}" for n in range(len(CLOCKS))}


@pytest.mark.mutant("D9")
def test_lost_update_without_fence_is_detected(backend: Backend, ledger: Ledger, table: Table):
    found = find_lost_updates(run_contenders(backend.new(), ledger, MUTANT_SECONDS, "ignore_fence"))
    table.add_mutant("D9", f"{backend.name}: no fence, {MUTANT_SECONDS} s", len(found))
    assert found


async def find_missing_after_jump(place: str) -> list[str]:
    """Set the clock ten years ahead and back, and return the data that is missing afterwards."""
    clock = ManualClock()
    async with open_memory(place, clock) as memory:
        await memory.remember("The office is in Lisbon.")
        await memory.episodic.store("The office moved.")
        await memory.checkpoints.checkpoint("t", {"step": 3})
        await memory.lifecycle.run_once()
    clock.forward(timedelta(seconds=TEN_YEARS))
    async with open_memory(place, clock) as memory:
        hidden = (await memory.checkpoints.restore("t"), await memory.episodic.get_recent())
        assert hidden == (None, []), "expired data is hidden at once"
        await memory.lifecycle.run_once()
    clock.back(timedelta(seconds=TEN_YEARS))
    async with open_memory(place, clock) as memory:
        present = {
            "fact": (await memory.recall("Where is the office?")).hits,
            "episode": await memory.episodic.get_recent(),
            "checkpoint": await memory.checkpoints.restore("t") == {"step": 3},
        }
    return [what for what, found in present.items() if not found]


@pytest.mark.promise("D9")
async def test_clock_jump_of_ten_years_drops_nothing(backend: Backend, table: Table):
    missing = await find_missing_after_jump(backend.new())
    table.add_result(
        "D9",
        f"{backend.name}: a jump of ten years and back, with a lifecycle run in between: nothing dropped",
        len(missing),
    )
    assert missing == []


@pytest.mark.mutant("D9")
async def test_data_loss_without_clock_check_is_detected(
    backend: Backend, table: Table, monkeypatch: pytest.MonkeyPatch
):
    async def accept_any(run: object) -> bool:
        return True

    monkeypatch.setattr(runner, "is_clock_plausible", accept_any)
    missing = await find_missing_after_jump(backend.new())
    table.add_mutant("D9", f"{backend.name}: every clock is accepted", len(missing))
    assert missing
