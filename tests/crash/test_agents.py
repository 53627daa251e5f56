"""R1: every step counts once although workers on the same tasks are killed and stopped."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.crash import oracle
from tests.crash.acknowledgments import Ledger
from tests.crash.forkserver import ForkServer
from tests.crash.result_table import Table
from tests.crash.store_locations import Backend, LogAndTasks, store_at
from tests.crash.task_worker import LEASE, SPACE

WORKERS = 4
STEPS = 20
TASKS = 64
ROUNDS = int(os.environ.get("CRASH_ROUNDS", "1"))
SMALL = 12
# A zombie reaches the fence only if another worker took its task meanwhile, which is rare on a slow machine.
MAX_ROUNDS = 6


class Progress(NamedTuple):
    """The progress of a task; none of its numbers may ever decrease."""

    version: int
    fence: int
    completed: int


class Chaos:
    """Workers on the same tasks, which are killed and stopped at random."""

    def __init__(self, place: str, ledger: Ledger, rng: random.Random, tasks: int, mutant: str = "") -> None:
        # The mutants concern zombies, which come from stopped workers only.
        self._killing = 0.1 if mutant else 0.5
        self._between = (5, 25) if mutant else (8, 60)
        self._place = place
        self._ledger = ledger
        self._rng = rng
        self._tasks = tasks
        self._fork_server = ForkServer(ledger.writing, mutant=mutant)
        self._frozen: dict[int, float] = {}
        self.kills = self.freezes = 0
        self.found: list[str] = []

    async def run(self, *, until: Callable[[list[str]], bool] | None = None) -> list[str]:
        """Run until all workers have ended; return the faults found on the way and at the end.

        A mutant may never end: `until` receives the faults found so far and returns whether to stop.
        """
        workers = [self._start_worker() for _ in range(WORKERS)]
        store = await store_at(self._place)
        seen: dict[str, Progress] = {}
        next_interrupt = 0
        try:
            while workers := [worker for worker in workers if self._fork_server.is_alive(worker)]:
                self._ledger.wait(0.05)
                self._continue_due()
                # By progress, not by time, so that the work gets done on a slow machine, too.
                if len(self._ledger.lines) >= next_interrupt:
                    workers = self._interrupt(workers)
                    next_interrupt = len(self._ledger.lines) + self._rng.randint(*self._between)
                seen = await self._check_progress(store, seen)
                if until is not None and until([*self.found, *oracle.find_note_faults(self._ledger.lines)]):
                    break
            for worker in workers:
                self._fork_server.kill(worker)
            self._ledger.read()
            self.found += await self._find_final_faults(store)
        finally:
            await store.close()
            errors = self._fork_server.read_errors()
        # The last line of a traceback names the unexpected error.
        return self.found + errors.splitlines()[-1:]

    async def _check_progress(self, store: LogAndTasks, before: dict[str, Progress]) -> dict[str, Progress]:
        """Return the progress of each task, and record every decrease as a fault."""
        now: dict[str, Progress] = {}
        for task in await store.tasks(SPACE, limit=10_000):
            old_progress = before.get(task.id)
            if old_progress is not None and (old_progress.version, old_progress.fence) == (task.version, task.fence):
                now[task.id] = old_progress
                continue
            done = len(await oracle.load_completed(store, task.id))
            now[task.id] = Progress(task.version, task.fence, done)
            if old_progress is not None and any(new < old for new, old in zip(now[task.id], old_progress, strict=True)):
                self.found.append(f"{task.id} went back from {old_progress} to {now[task.id]}")
        return now

    def _start_worker(self) -> int:
        seed = self._rng.getrandbits(32)
        return self._fork_server.start_child(
            "task_worker", "compete", self._place, self._ledger.writing, seed, self._tasks, STEPS
        )

    def _interrupt(self, workers: list[int]) -> list[int]:
        """Kill a worker and start another, or stop it for longer than its lease."""
        awake = [worker for worker in workers if worker not in self._frozen]
        if not awake:
            return workers
        victim = self._rng.choice(awake)
        if self._rng.random() < self._killing:
            self._fork_server.kill(victim)
            self.kills += 1
            return [*(worker for worker in workers if worker != victim), self._start_worker()]
        self._fork_server.send(victim, signal.SIGSTOP)
        self._frozen[victim] = time.monotonic() + LEASE * self._rng.uniform(1.1, 2)
        self.freezes += 1
        return workers

    def _continue_due(self) -> None:
        for worker, until in list(self._frozen.items()):
            if time.monotonic() >= until:
                self._fork_server.send(worker, signal.SIGCONT)
                del self._frozen[worker]

    async def _find_final_faults(self, store: LogAndTasks) -> list[str]:
        found = oracle.find_note_faults(self._ledger.lines)
        for record in await oracle.load_records(store):
            found += record.find_faults()
            if (record.status, len(record.completed)) != ("done", STEPS):
                found.append(f"{record.task} is {record.status} with {record.completed}")
        landed = oracle.collect_effects(self._ledger.lines)
        if len(landed) != self._tasks * STEPS:
            found.append(f"{len(landed)} effects landed, of {self._tasks * STEPS}")
        return found + await store.check()


@pytest.mark.promise("R1")
@pytest.mark.timeout(300 + 120 * ROUNDS)
async def test_steps_count_once_when_workers_are_killed_and_frozen(backend: Backend, rng: random.Random, table: Table):
    found: list[str] = []
    sums: Counter[str] = Counter()
    for number in range(ROUNDS):
        ledger = Ledger()
        chaos = Chaos(backend.new(), ledger, rng, TASKS)
        found += [f"round {number}: {fault}" for fault in await chaos.run()]
        sums += Counter(line[0] for line in ledger.lines)
        sums += Counter(kills=chaos.kills, freezes=chaos.freezes, landed=len(oracle.collect_effects(ledger.lines)))
        ledger.close()
    done = f"{WORKERS} workers, {ROUNDS * TASKS * STEPS} steps, {sums['kills']} kills, {sums['freezes']} freezes"
    table.add_result("R1", f"{backend.name}: {done}: {sums['effect']} bodies run, {sums['landed']} effects", len(found))
    assert found == []
    assert sums["kills"] > 10
    assert sums["freezes"] > 10
    assert sums["effect"] > ROUNDS * TASKS * STEPS, "no step ran twice: this run tests nothing"


@pytest.mark.promise("R1")
@pytest.mark.timeout(300 + 120 * MAX_ROUNDS)
async def test_fence_rejects_zombie_workers_without_heartbeat_check(backend: Backend, rng: random.Random, table: Table):
    found: list[str] = []
    rounds = freezes = refused = 0
    while not refused and rounds < MAX_ROUNDS:
        ledger = Ledger()
        chaos = Chaos(backend.new(), ledger, rng, SMALL, mutant="ignore_lost_lease")
        found += await chaos.run()
        rounds, freezes = rounds + 1, freezes + chaos.freezes
        refused = sum(line[0] == "lost" for line in ledger.lines)
        ledger.close()
    done = f"workers that ignore a lost lease, {rounds * SMALL * STEPS} steps"
    table.add_result("R1", f"{backend.name}: {done}, {freezes} freezes, {refused} zombies refused", len(found))
    assert found == []
    assert refused > 0, "no zombie reached the fence: this run tests nothing"


@pytest.mark.mutant("R1")
@pytest.mark.mutant("R3")
@pytest.mark.parametrize("backend", ["redis"], indirect=True)
async def test_redis_commit_without_row_comparison_is_detected(
    backend: Backend, ledger: Ledger, rng: random.Random, table: Table
):
    chaos = Chaos(backend.new(), ledger, rng, SMALL, mutant="skip_row_comparison")
    found = await chaos.run(until=bool)
    table.add_mutant("R1", f"{backend.name}: lost leases ignored, rows not compared", len(found))
    assert found


@pytest.mark.mutant("R1")
@pytest.mark.mutant("R3")
async def test_zombie_write_without_fence_is_detected(
    backend: Backend, ledger: Ledger, rng: random.Random, table: Table
):
    def has_duplicates(found: list[str]) -> bool:
        return any("times" in fault for fault in found)

    chaos = Chaos(backend.new(), ledger, rng, SMALL, mutant="last_write_wins")
    found = await chaos.run(until=has_duplicates)
    table.add_mutant("R1", f"{backend.name}: no lease check, no fence, no version", len(found))
    assert has_duplicates(found)
