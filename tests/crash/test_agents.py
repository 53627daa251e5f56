"""R1: workers are killed and frozen over the same tasks, and every step still counts once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.crash import verdict
from tests.crash.agents import LEASE, SPACE
from tests.crash.ledger import Ledger
from tests.crash.nursery import Nursery
from tests.crash.places import Ground, LogAndTasks, store_at
from tests.crash.table import Table

WORKERS = 4
STEPS = 20
TASKS = 64
ROUNDS = int(os.environ.get("CRASH_ROUNDS", "1"))
SMALL = 12
# A zombie comes to the fence if somebody else took its task while it was frozen, which on a slow machine is rare.
UNTIL_ONE_COMES = 6


class Seen(NamedTuple):
    """Where a task stands; none of it may ever be less than it was."""

    version: int
    fence: int
    completed: int


class Chaos:
    """Workers over the same tasks, of which one is always about to be killed or frozen."""

    def __init__(self, place: str, ledger: Ledger, chance: random.Random, tasks: int, mutant: str = "") -> None:
        # Mutants are about zombies, which killing makes none of.
        self._killing = 0.1 if mutant else 0.5
        self._between = (5, 25) if mutant else (8, 60)
        self._place = place
        self._ledger = ledger
        self._chance = chance
        self._tasks = tasks
        self._nursery = Nursery(ledger.writing, mutant=mutant)
        self._frozen: dict[int, float] = {}
        self.kills = self.freezes = 0
        self.found: list[str] = []

    async def run(self, *, until: Callable[[list[str]], bool] | None = None) -> list[str]:
        """Until all tasks are done by everybody; what was wrong on the way and at the end.

        Where everything may go wrong there may be no end: then only `until` what was found is what was looked for.
        """
        workers = [self._worker() for _ in range(WORKERS)]
        store = await store_at(self._place)
        seen: dict[str, Seen] = {}
        strike = 0
        try:
            while workers := [worker for worker in workers if self._nursery.lives(worker)]:
                self._ledger.wait(0.05)
                self._thaw()
                # By what was done, not by the time: however slow the machine, the work gets done in the end.
                if len(self._ledger.lines) >= strike:
                    workers = self._strike(workers)
                    strike = len(self._ledger.lines) + self._chance.randint(*self._between)
                seen = await self._look(store, seen)
                if until is not None and until([*self.found, *verdict.faults_of_lines(self._ledger.lines)]):
                    break
            for worker in workers:
                self._nursery.kill(worker)
            self._ledger.read()
            self.found += await self._faults_at_the_end(store)
        finally:
            await store.close()
            complaints = self._nursery.complaints()
        # The last line of a traceback says which error nobody expected.
        return self.found + complaints.splitlines()[-1:]

    async def _look(self, store: LogAndTasks, before: dict[str, Seen]) -> dict[str, Seen]:
        """Where each task stands, and what is wrong with the way from where it stood."""
        now: dict[str, Seen] = {}
        for task in await store.tasks(SPACE, limit=10_000):
            then = before.get(task.id)
            if then is not None and (then.version, then.fence) == (task.version, task.fence):
                now[task.id] = then
                continue
            done = len(await verdict.completed(store, task.id))
            now[task.id] = Seen(task.version, task.fence, done)
            if then is not None and any(new < old for new, old in zip(now[task.id], then, strict=True)):
                self.found.append(f"{task.id} went back from {then} to {now[task.id]}")
        return now

    def _worker(self) -> int:
        seed = self._chance.getrandbits(32)
        return self._nursery.child("agents", "compete", self._place, self._ledger.writing, seed, self._tasks, STEPS)

    def _strike(self, workers: list[int]) -> list[int]:
        """Kill one and start another in its place, or freeze it for longer than its lease."""
        awake = [worker for worker in workers if worker not in self._frozen]
        if not awake:
            return workers
        victim = self._chance.choice(awake)
        if self._chance.random() < self._killing:
            self._nursery.kill(victim)
            self.kills += 1
            return [*(worker for worker in workers if worker != victim), self._worker()]
        self._nursery.send(victim, signal.SIGSTOP)
        self._frozen[victim] = time.monotonic() + LEASE * self._chance.uniform(1.1, 2)
        self.freezes += 1
        return workers

    def _thaw(self) -> None:
        for worker, until in list(self._frozen.items()):
            if time.monotonic() >= until:
                self._nursery.send(worker, signal.SIGCONT)
                del self._frozen[worker]

    async def _faults_at_the_end(self, store: LogAndTasks) -> list[str]:
        found = verdict.faults_of_lines(self._ledger.lines)
        for story in await verdict.stories(store):
            found += story.faults()
            if (story.status, len(story.completed)) != ("done", STEPS):
                found.append(f"{story.task} is {story.status} with {story.completed}")
        landed = verdict.effects(self._ledger.lines)
        if len(landed) != self._tasks * STEPS:
            found.append(f"{len(landed)} effects landed, of {self._tasks * STEPS}")
        return found + await store.check()


@pytest.mark.timeout(300 + 120 * ROUNDS)
async def test_every_step_counts_once_whoever_is_killed(ground: Ground, chance: random.Random, table: Table):
    found: list[str] = []
    sums: Counter[str] = Counter()
    for number in range(ROUNDS):
        ledger = Ledger()
        chaos = Chaos(ground.new(), ledger, chance, TASKS)
        found += [f"round {number}: {fault}" for fault in await chaos.run()]
        sums += Counter(line[0] for line in ledger.lines)
        sums += Counter(kills=chaos.kills, freezes=chaos.freezes, landed=len(verdict.effects(ledger.lines)))
        ledger.close()
    done = f"{WORKERS} workers, {ROUNDS * TASKS * STEPS} steps, {sums['kills']} kills, {sums['freezes']} freezes"
    table.held("R1", f"{ground.name}: {done}: {sums['effect']} bodies run, {sums['landed']} effects", len(found))
    assert found == []
    assert sums["kills"] > 10
    assert sums["freezes"] > 10
    assert sums["effect"] > ROUNDS * TASKS * STEPS, "nothing was ever run again: this run shows nothing"


@pytest.mark.timeout(300 + 120 * UNTIL_ONE_COMES)
async def test_the_fence_alone_keeps_zombies_out(ground: Ground, chance: random.Random, table: Table):
    found: list[str] = []
    rounds = freezes = refused = 0
    while not refused and rounds < UNTIL_ONE_COMES:
        ledger = Ledger()
        chaos = Chaos(ground.new(), ledger, chance, SMALL, mutant="unwatched")
        found += await chaos.run()
        rounds, freezes = rounds + 1, freezes + chaos.freezes
        refused = sum(line[0] == "lost" for line in ledger.lines)
        ledger.close()
    done = f"the same with workers that ignore their own watch, {rounds * SMALL * STEPS} steps"
    table.held("R1", f"{ground.name}: {done}, {freezes} freezes, {refused} zombies refused", len(found))
    assert found == []
    assert refused > 0, "no zombie ever came to the fence: this run shows nothing"


@pytest.mark.parametrize("ground", ["redis"], indirect=True)
async def test_what_is_decided_on_old_rows_is_seen(ground: Ground, ledger: Ledger, chance: random.Random, table: Table):
    chaos = Chaos(ground.new(), ledger, chance, SMALL, mutant="heedless")
    found = await chaos.run(until=bool)
    table.seen("R1", f"{ground.name}: no watch, rows not compared", len(found))
    assert found


async def test_a_zombie_that_writes_is_seen(ground: Ground, ledger: Ledger, chance: random.Random, table: Table):
    def twice(found: list[str]) -> bool:
        return any("times" in fault for fault in found)

    chaos = Chaos(ground.new(), ledger, chance, SMALL, mutant="naive")
    found = await chaos.run(until=twice)
    table.seen("R1", f"{ground.name}: no watch, no fence, no version", len(found))
    assert twice(found)
