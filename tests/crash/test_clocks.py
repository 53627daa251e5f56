"""D9: a wrong clock costs time, never safety."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from datetime import timedelta
from itertools import pairwise

import pytest

from recollect.lifecycle import lifecycle
from recollect.testing.clock import ManualClock
from tests.crash.agents import opened
from tests.crash.history import TASKS
from tests.crash.ledger import Ledger
from tests.crash.nursery import Nursery
from tests.crash.places import Ground, store_at
from tests.crash.table import Table

SECONDS = float(os.environ.get("CRASH_CLOCK_SECONDS", "4"))
MUTANT_SECONDS = 1.5
HOUR = 3600
TEN_YEARS = 10 * 365 * 24 * HOUR

# A third of the workers an hour off, one each way; one of the others leaps ten years ahead half-way through.
CLOCKS = ((0, 0), (0, 0), (0, 0), (0, TEN_YEARS), (HOUR, 0), (-HOUR, 0))


def contended(place: str, ledger: Ledger, seconds: float, mutant: str = "") -> list[list[str]]:
    """Let workers with these clocks count in the same tasks; what each was told."""
    nursery = Nursery(ledger.writing, mutant=mutant)
    workers = [
        nursery.child("contender", place, f"w{n}", ledger.writing, seconds, wrong, jump)
        for n, (wrong, jump) in enumerate(CLOCKS)
    ]
    while any(map(nursery.lives, workers)):
        ledger.wait(0.05)
    nursery.end()
    ledger.read()
    return ledger.lines


def lost_updates(lines: list[list[str]]) -> list[str]:
    """Who holds a lease reads before it writes, so the counts of a task run 1, 2, 3, … and the fences with them."""
    saved: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        if line[0] == "saved":
            saved[line[2]].append((int(line[4]), int(line[3])))
    found = []
    for task, pairs in saved.items():
        counts = Counter(count for count, _ in pairs)
        found += [f"{task}: {many} were told they wrote number {count}" for count, many in counts.items() if many > 1]
        found += [
            f"{task}: fence {later} wrote after fence {earlier}"
            for (_, earlier), (_, later) in pairwise(sorted(pairs))
            if later <= earlier
        ]
    return found


@pytest.mark.timeout(300 + 3 * SECONDS)
async def test_workers_whose_clocks_differ_never_overwrite_each_other(ground: Ground, ledger: Ledger, table: Table):
    place = ground.new()
    lines = contended(place, ledger, SECONDS)
    found = lost_updates(lines)
    store = await store_at(place)
    versions = {task.id: task.version for task in await store.tasks(TASKS)}
    await store.close()
    told = Counter(line[0] for line in lines)
    done = (
        f"{len(CLOCKS)} workers, clocks ±1 h and a leap of ten years: {told['saved']} saves, {told['refused']} zombies"
    )
    table.held("D9", f"{ground.name}: {done} refused", len(found))
    assert found == []
    assert versions == Counter(line[2] for line in lines if line[0] == "saved")
    assert told["refused"] > 0, "no zombie ever woke up: this run shows nothing"
    assert {line[1] for line in lines if line[0] == "saved"} == {f"w{n}" for n in range(len(CLOCKS))}


def test_a_zombie_that_is_let_in_is_seen(ground: Ground, ledger: Ledger, table: Table):
    found = lost_updates(contended(ground.new(), ledger, MUTANT_SECONDS, "unfenced"))
    table.seen("D9", f"{ground.name}: no fence, {MUTANT_SECONDS} s", len(found))
    assert found


async def after_a_leap(place: str) -> list[str]:
    """What is gone when the clock is right again, after it had been ten years ahead for a while."""
    clock = ManualClock()
    async with opened(place, clock) as memory:
        await memory.remember("The office is in Lisbon.")
        await memory.episodic.store("The office moved.")
        await memory.checkpoints.checkpoint("t", {"step": 3})
        await memory.lifecycle.run_once()
    clock.forward(timedelta(seconds=TEN_YEARS))
    async with opened(place, clock) as memory:
        hidden = (await memory.checkpoints.restore("t"), await memory.episodic.get_recent())
        assert hidden == (None, []), "what has expired is hidden at once"
        await memory.lifecycle.run_once()
    clock.back(timedelta(seconds=TEN_YEARS))
    async with opened(place, clock) as memory:
        there = {
            "fact": (await memory.recall("Where is the office?")).hits,
            "episode": await memory.episodic.get_recent(),
            "checkpoint": await memory.checkpoints.restore("t") == {"step": 3},
        }
    return [what for what, found in there.items() if not found]


async def test_a_leap_of_ten_years_hides_and_drops_nothing(ground: Ground, table: Table):
    gone = await after_a_leap(ground.new())
    table.held(
        "D9",
        f"{ground.name}: a leap of ten years and back, with a lifecycle run in between: nothing dropped",
        len(gone),
    )
    assert gone == []


async def test_a_leap_that_is_believed_is_seen(ground: Ground, table: Table, monkeypatch: pytest.MonkeyPatch):
    async def believable(run: object) -> bool:
        return True

    monkeypatch.setattr(lifecycle, "is_believable", believable)
    gone = await after_a_leap(ground.new())
    table.seen("D9", f"{ground.name}: every clock is believed", len(gone))
    assert gone
