"""R2 on servers: killed in mid-run and started again, they know every intent behind an effect, and every step done."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash import verdict
from tests.crash.ledger import Ledger
from tests.crash.nursery import Nursery
from tests.crash.places import Ground, LogAndTasks, on_postgres, on_redis, store_at
from tests.crash.table import Table
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

WORKERS, STEPS, TASKS = 3, 20, 20
CRASHES = int(os.environ.get("CRASH_SERVERS", "8"))
MUTANT_CRASHES = 4


@dataclass(frozen=True)
class Doomed:
    """A server of the test's own; a forgetful one loses what it acknowledged."""

    ground: Ground
    crash: Callable[[], None]
    start: Callable[[], object]
    forget: Callable[[], None]
    mutant: str


@pytest.fixture(params=["redis", "postgres"])
def doomed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Doomed]:
    if request.param == "redis":
        redis = RedisServer(tmp_path / "redis").start()

        def forget() -> None:
            with redis.client() as client:
                client.config_set("appendonly", "no")

        yield Doomed(on_redis(tmp_path, redis), redis.kill, redis.start, forget, "")
        redis.kill()
    else:
        # It does not wait for the disk, which a stop of its processes alone cannot tell.
        postgres = Server()
        yield Doomed(on_postgres(postgres, "crash"), postgres.crash, postgres.start, lambda: None, "hasty")
        postgres.close()


async def endured(
    doomed: Doomed, ledger: Ledger, chance: random.Random, crashes: int, *, forgetful: bool = False
) -> list[str]:
    """What is wrong after each crash, and when all is done."""
    place = doomed.ground.new()
    store = await store_at(place)  # once: opened again, a server that forgets would be refused
    nursery = Nursery(ledger.writing, mutant=doomed.mutant if forgetful else "")
    workers = [
        nursery.child("agents", "endure", place, ledger.writing, chance.getrandbits(32), TASKS, STEPS)
        for _ in range(WORKERS)
    ]
    while sum(kind == "ready" for kind, *_ in ledger.lines) < WORKERS:  # opening has no patience with a crash
        ledger.wait(1)
    if forgetful:
        doomed.forget()
    found: list[str] = []
    # By what was done, not by the time: each step notes that it acts, and that it is done. The last of them are left
    # out, lest the workers be done before the last crash.
    moments = sorted(chance.randrange(10, TASKS * STEPS * 3 // 2) for _ in range(crashes))
    while any(map(nursery.lives, workers)):
        ledger.wait(0.02)
        if moments and len(ledger.lines) >= moments[0]:
            moments.pop(0)
            await asyncio.to_thread(doomed.crash)
            ledger.read()
            told = list(ledger.lines)
            await asyncio.to_thread(doomed.start)
            if forgetful:
                doomed.forget()
            for worker in workers:  # they would do a hundred steps meanwhile
                nursery.send(worker, signal.SIGSTOP)
            found += await faults(store, told)
            for worker in workers:
                nursery.send(worker, signal.SIGCONT)
    ledger.read()
    found += [*verdict.faults_of_lines(ledger.lines), *await faults(store, ledger.lines, ended=True)]
    await store.close()
    assert moments == []
    return found + nursery.complaints().splitlines()[-1:]


async def faults(store: LogAndTasks, told: Sequence[Sequence[str]], *, ended: bool = False) -> list[str]:
    """What the store does not know of what the oracle was told."""
    stories = await verdict.stories(store)
    found = verdict.forgotten(stories, told)
    if ended:
        found += [fault for story in stories for fault in story.faults()]
        found += [f"{story.task} is {story.status}" for story in stories if story.status != "done"]
        landed = (len(stories), len(verdict.effects(told)))
        found += [] if landed == (TASKS, TASKS * STEPS) else [f"{landed} tasks and effects"]
    return found


@pytest.mark.timeout(120 + 10 * CRASHES)
async def test_a_server_that_is_killed_knows_every_intent_behind_an_effect(
    doomed: Doomed, ledger: Ledger, chance: random.Random, table: Table
):
    found = await endured(doomed, ledger, chance, CRASHES)
    ran = sum(line[0] == "effect" for line in ledger.lines)
    done = f"{CRASHES} crashes of the server under {WORKERS} workers, {TASKS * STEPS} steps, {ran} bodies run"
    table.held("R2", f"{doomed.ground.name}: {done}", len(found))
    assert found == []


async def test_a_server_that_forgets_is_seen(doomed: Doomed, ledger: Ledger, chance: random.Random, table: Table):
    found = await endured(doomed, ledger, chance, MUTANT_CRASHES, forgetful=True)
    how = "synchronous_commit = off" if doomed.mutant else "appendonly no"
    table.seen("R2", f"{doomed.ground.name}: {how}, {MUTANT_CRASHES} crashes", len(found))
    assert any("without an intent" in fault or "is not" in fault for fault in found)
