"""D9: a worker whose clock leaps an hour or two ahead believes that tasks have expired, and costs nobody their work."""

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
from recollect.testing.clock import ManualClock
from tests.crash import mutants
from tests.crash.agents import opened
from tests.crash.ledger import Ledger
from tests.crash.nursery import Nursery
from tests.crash.places import Ground, on_sqlite
from tests.crash.table import Table

SECONDS = float(os.environ.get("CRASH_CLOCK_SECONDS", "4")) / 2
MUTANT_SECONDS = 1.5
HOUR = 3600
# Two whose clocks are right, and two that leap half-way through: as far as the ttl, and nearly as far as ttl and grace.
LEAPS = (0, 0, HOUR, 2 * HOUR - 60)
AHEAD = {f"w{n}" for n, leap in enumerate(LEAPS) if leap}
KEPT = 3


def kept_by(place: str, ledger: Ledger, seconds: float, mutant: str = "") -> list[list[str]]:
    """Let workers keep states in the same tasks, with the default ttl; what each was told."""
    nursery = Nursery(ledger.writing, mutant=mutant)
    workers = [nursery.child("keeper", place, f"w{n}", ledger.writing, seconds, leap) for n, leap in enumerate(LEAPS)]
    while any(map(nursery.lives, workers)):
        ledger.wait(0.05)
    nursery.end()
    ledger.read()
    return ledger.lines


def lost_history(lines: list[list[str]]) -> list[str]:
    """Each version of a task is given once, and whoever kept one finds it or later ones, and those before, unbroken.

    One who is ahead may find nothing: what another has kept meanwhile is hidden from them, and no more than that.
    """
    given = Counter((line[2], int(line[3])) for line in lines if line[0] == "kept")
    found = [f"{task}: version {version} was given {many} times" for (task, version), many in given.items() if many > 1]
    for _, me, task, told, *rest in (line for line in lines if line[0] == "history"):
        versions = [int(version) for version in rest]
        if not versions and me in AHEAD:
            continue
        newest = versions[0] if versions else 0
        if newest < int(told) or versions != list(range(newest, max(newest - KEPT, 0), -1)):
            found.append(f"{task}: {me} kept version {told} and found {versions}")
    return found


@pytest.mark.timeout(300 + 3 * SECONDS)
def test_a_clock_that_leaps_past_the_ttl_drops_no_history(ground: Ground, ledger: Ledger, table: Table):
    lines = kept_by(ground.new(), ledger, SECONDS)
    found = lost_history(lines)
    many = sum(line[0] == "kept" for line in lines)
    done = f"{len(LEAPS)} workers, two of which leap 1–2 h, default ttl, lifecycle runs: {many} checkpoints"
    table.held("D9", f"{ground.name}: {done}, no history lost", len(found))
    assert found == []
    assert {line[1] for line in lines} == {f"w{n}" for n in range(len(LEAPS))}


def test_history_that_is_dropped_is_seen(ground: Ground, ledger: Ledger, table: Table):
    found = lost_history(kept_by(ground.new(), ledger, MUTANT_SECONDS, "graceless"))
    table.seen("D9", f"{ground.name}: by the machine's clock and without grace, {MUTANT_SECONDS} s", len(found))
    assert found


def test_history_that_a_write_drops_is_seen(tmp_path: Path, ledger: Ledger, table: Table):
    found = lost_history(kept_by(on_sqlite(tmp_path).new(), ledger, MUTANT_SECONDS, "dropping"))
    table.seen("D9", f"SQLite: a write drops what has expired, {MUTANT_SECONDS} s", len(found))
    assert found


class Killed(BaseException):
    """The end of a worker, as near as one process comes to it."""


def plan(many: int, effects: list[str], dies_at: int | None = None) -> list[Callable[..., Any]]:
    def made(place: int) -> Callable[..., Any]:
        async def effect(state: dict[str, Any], ctx: Any) -> int:
            if place == dies_at:
                raise Killed
            effects.append(ctx.idempotency_key)
            return place

        return effect

    return [made(place) for place in range(many)]


async def repeated(place: str, ahead: float) -> list[str]:
    """The effects that happen again when a task that one worker left is resumed by another, whose clock is ahead."""
    clock, effects = ManualClock(), list[str]()
    async with opened(place, clock) as memory:
        with pytest.raises(Killed):
            await ResumableAgent(memory, ttl=HOUR).run("t", plan(25, effects, dies_at=18))
    clock.forward(timedelta(seconds=ahead))
    async with opened(place, clock) as memory:
        state = await ResumableAgent(memory, ttl=HOUR).run("t", plan(25, effects))
        assert len(state["completed"]) == 25
    clock.back(timedelta(seconds=ahead))
    async with opened(place, clock) as memory:
        assert await ResumableAgent(memory, ttl=HOUR).run("t", plan(25, effects)) == state
    assert len(set(effects)) == 25
    return [key for key, many in Counter(effects).items() if many > 1]


@pytest.mark.parametrize("ahead", [HOUR, 1.5 * HOUR, 2 * HOUR])
async def test_no_effect_happens_again_because_a_clock_is_ahead(ground: Ground, table: Table, ahead: float):
    found = await repeated(ground.new(), ahead)
    table.held(
        "D9", f"{ground.name}: killed at 18 of 25, resumed by a clock that is {ahead / HOUR:g} h ahead", len(found)
    )
    assert found == []


async def test_an_effect_that_happens_again_is_seen(tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "apply", tasks.apply)  # so that what the mutant puts in is taken out again
    monkeypatch.setattr(tasks, "claim", tasks.claim)
    mutants.dropping()
    found = await repeated(on_sqlite(tmp_path).new(), 1.5 * HOUR)
    table.seen("D9", "SQLite: a claim drops what has expired", len(found))
    assert len(found) == 18
