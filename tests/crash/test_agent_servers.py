"""R2 on servers: after a kill and a restart they have every intent behind an effect, and every acknowledged step."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash import oracle
from tests.crash.acknowledgments import Ledger
from tests.crash.forkserver import ForkServer
from tests.crash.result_table import Table
from tests.crash.store_locations import Backend, LogAndTasks, on_postgres, on_redis, store_at
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

WORKERS, STEPS, TASKS = 3, 20, 20
CRASHES = int(os.environ.get("CRASH_SERVERS", "8"))
MUTANT_CRASHES = 4


@dataclass(frozen=True)
class CrashServer:
    """A server for one test; `forget` makes it lose acknowledged writes."""

    backend: Backend
    crash: Callable[[], None]
    start: Callable[[], object]
    forget: Callable[[], None]
    mutant: str


@pytest.fixture(params=["redis", "postgres"])
def crash_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CrashServer]:
    if request.param == "redis":
        redis = RedisServer(tmp_path / "redis").start()

        def forget() -> None:
            with redis.client() as client:
                client.config_set("appendonly", "no")

        yield CrashServer(on_redis(tmp_path, redis), redis.kill, redis.start, forget, "")
        redis.kill()
    else:
        # Without fsync: a stop of the processes alone cannot show the difference.
        postgres = Server()
        yield CrashServer(
            on_postgres(postgres, "crash"), postgres.crash, postgres.start, lambda: None, "asynchronous_commit"
        )
        postgres.close()


async def run_through_crashes(
    crash_server: CrashServer, ledger: Ledger, rng: random.Random, crashes: int, *, lossy: bool = False
) -> list[str]:
    """Crash the server under running workers; return the faults after each crash and at the end."""
    place = crash_server.backend.new()
    store = await store_at(place)  # opened once: a later open would reject a lossy server
    fork_server = ForkServer(ledger.writing, mutant=crash_server.mutant if lossy else "")
    workers = [
        fork_server.start_child("task_worker", "retry", place, ledger.writing, rng.getrandbits(32), TASKS, STEPS)
        for _ in range(WORKERS)
    ]
    while sum(kind == "ready" for kind, *_ in ledger.lines) < WORKERS:  # opening does not retry after a crash
        ledger.wait(1)
    if lossy:
        crash_server.forget()
    found: list[str] = []
    # By progress, not by time: each step writes two notes. The last quarter has no crash, so that the workers do not
    # finish before the last one.
    moments = sorted(rng.randrange(10, TASKS * STEPS * 3 // 2) for _ in range(crashes))
    while any(map(fork_server.is_alive, workers)):
        ledger.wait(0.02)
        if moments and len(ledger.lines) >= moments[0]:
            moments.pop(0)
            await asyncio.to_thread(crash_server.crash)
            ledger.read()
            notes = list(ledger.lines)
            await asyncio.to_thread(crash_server.start)
            if lossy:
                crash_server.forget()
            for worker in workers:  # or they would run a hundred steps during the check
                fork_server.send(worker, signal.SIGSTOP)
            found += await find_faults(store, notes)
            for worker in workers:
                fork_server.send(worker, signal.SIGCONT)
    ledger.read()
    found += [*oracle.find_note_faults(ledger.lines), *await find_faults(store, ledger.lines, ended=True)]
    await store.close()
    assert moments == []
    return found + fork_server.read_errors().splitlines()[-1:]


async def find_faults(store: LogAndTasks, notes: Sequence[Sequence[str]], *, ended: bool = False) -> list[str]:
    """Return the acknowledged effects and steps that the store lost; with `ended`, also unfinished tasks."""
    records = await oracle.load_records(store)
    found = oracle.find_lost_acknowledgments(records, notes)
    if ended:
        found += [fault for record in records for fault in record.find_faults()]
        found += [f"{record.task} is {record.status}" for record in records if record.status != "done"]
        landed = (len(records), len(oracle.collect_effects(notes)))
        found += [] if landed == (TASKS, TASKS * STEPS) else [f"{landed} tasks and effects"]
    return found


@pytest.mark.promise("R2")
@pytest.mark.timeout(120 + 10 * CRASHES)
async def test_server_kill_leaves_no_effect_without_intent(
    crash_server: CrashServer, ledger: Ledger, rng: random.Random, table: Table
):
    found = await run_through_crashes(crash_server, ledger, rng, CRASHES)
    ran = sum(line[0] == "effect" for line in ledger.lines)
    done = f"{CRASHES} crashes of the server under {WORKERS} workers, {TASKS * STEPS} steps, {ran} bodies run"
    table.add_result("R2", f"{crash_server.backend.name}: {done}", len(found))
    assert found == []


@pytest.mark.mutant("R2")
async def test_server_losing_acknowledged_writes_is_detected(
    crash_server: CrashServer, ledger: Ledger, rng: random.Random, table: Table
):
    found = await run_through_crashes(crash_server, ledger, rng, MUTANT_CRASHES, lossy=True)
    how = "synchronous_commit = off" if crash_server.mutant else "appendonly no"
    table.add_mutant("R2", f"{crash_server.backend.name}: {how}, {MUTANT_CRASHES} crashes", len(found))
    assert any("without an intent" in fault or "is not" in fault for fault in found)
