"""D7: a server that stops at once, in mid-run, loses nothing that was acknowledged, and leaves no half of a batch."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from recollect.errors import FencedOut, LeaseHeld, StoreUnavailable
from recollect.stores.ops import Append, Entry, Put, Save
from recollect.stores.postgres import PostgresStore
from recollect.stores.postgres import server as postgres_server
from recollect.testing.samples import ADA, EVERYTHING, START, ids, item, put
from tests.crash.table import Table
from tests.servers.postgres import Server

STOPS = int(os.environ.get("CRASH_STOPS", "15"))
MUTANT_STOPS = 6
WRITERS = 4
WRITES_BETWEEN = 20
LOG, TASKS = ADA.space("conversation"), ADA.space("checkpoints")


@pytest.fixture
def doomed() -> Iterator[Server]:
    """A server of the test's own. It does not wait for the disk, which a stop of its processes alone cannot tell."""
    server = Server()
    yield server
    server.close()


@dataclass
class Run:
    """What the writers were told, kept where no server can lose it."""

    acknowledged: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    over: bool = False

    async def write(self, store: PostgresStore, writer: int) -> None:
        """Items, entries and states, each of a batch of its own name, until the run is over."""
        number = 0
        while not self.over:
            number += 1
            name = f"w{writer}-{number}"
            entry = Entry(id=name, kind="user", content=name, at=START)
            try:
                await store.write(
                    Put(item=item(name), terms=(name,), expect=0),
                    Append(space=LOG, entry=entry),
                    Save(space=TASKS, task=name, state="[1]", expect=0),
                )
            except StoreUnavailable:
                self.unknown.append(name)
                await asyncio.sleep(0.01)
            else:
                self.acknowledged.append(name)

    async def faults(self, store: PostgresStore) -> list[str]:
        found = []
        space = ADA.space("semantic")
        names = [*self.acknowledged, *self.unknown]
        items = {one.id for one in await store.get(space, *names)}
        entries = {one.id for one in await store.entries(LOG, *names)}
        tasks = {one.id for one in await store.tasks(TASKS, limit=len(names) + 1)}
        for name in names:
            there = (name in items, name in entries, name in tasks)
            if len(set(there)) > 1:
                found.append(f"{name} is there by half: {there}")
            elif name in self.acknowledged and not all(there):
                found.append(f"{name} was acknowledged and is gone")
        return found + await store.check()


async def _stopped_again_and_again(server: Server, chance: random.Random, stops: int) -> tuple[Run, list[str]]:
    url = await asyncio.to_thread(server.create, "crash")
    store = await PostgresStore.open(url, connections=WRITERS)
    run = Run()
    async with asyncio.TaskGroup() as group:
        for writer in range(WRITERS):
            group.create_task(run.write(store, writer))
        for _ in range(stops):
            before = len(run.acknowledged)
            while len(run.acknowledged) < before + WRITES_BETWEEN:  # noqa: ASYNC110 - a few, of many writers
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0, 0.2))
            await asyncio.to_thread(server.crash)
            await asyncio.to_thread(server.start)
        await asyncio.sleep(0.1)
        run.over = True
    found = await run.faults(store)
    await store.close()
    return run, found


async def test_a_server_that_stops_at_once_loses_nothing_acknowledged(
    doomed: Server, chance: random.Random, table: Table
):
    run, found = await _stopped_again_and_again(doomed, chance, STOPS)
    done = f"{STOPS} immediate stops of PostgreSQL among {len(run.acknowledged)} acknowledged batches"
    table.held("D7", done, len(found))
    assert found == []
    assert run.unknown, "no stop fell into a write"


async def test_commits_that_do_not_wait_for_the_disk_are_seen(
    doomed: Server, chance: random.Random, table: Table, monkeypatch: pytest.MonkeyPatch
):
    writing = postgres_server.Server.writing

    @asynccontextmanager
    async def weak(self: Any, *about: Any, lasting: bool = True):
        async with writing(self, *about, lasting=False) as work:
            yield work

    monkeypatch.setattr(postgres_server.Server, "writing", weak)
    _, found = await _stopped_again_and_again(doomed, chance, MUTANT_STOPS)
    lost = [fault for fault in found if "acknowledged" in fault]
    table.seen("D7", "synchronous_commit = off", len(lost))
    assert lost


async def test_a_server_set_to_forget_is_made_to_remember(postgres: Server):
    """Whoever runs the server may have turned it off for others; what we acknowledge is kept all the same."""
    url = await asyncio.to_thread(postgres.create, "weak")
    store = await PostgresStore.open(f"{url}?options=-c%20synchronous_commit%3Doff")
    async with store._server.writing("acme") as work:
        assert await work.rows("show synchronous_commit", {}) == [("on",)]
    await store.close()


async def test_a_server_that_is_gone_for_a_while_is_missed_and_then_used_again(doomed: Server):
    url = await asyncio.to_thread(doomed.create, "gone")
    store = await PostgresStore.open(url, connections=4)
    await asyncio.gather(*(store.write(put(f"i{n}")) for n in range(8)))
    lease = await store.claim(TASKS, "t", "w1", timedelta(minutes=1))
    await asyncio.to_thread(doomed.crash)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.write(put("lost"), Save(space=TASKS, task="t", state="[1]", fence=lease.fence))
    await asyncio.to_thread(doomed.start)
    # Every connection in the pool is dead; nobody has to notice.
    await store.write(Save(space=TASKS, task="t", state="[2]", fence=lease.fence, expect=0))
    assert sorted(ids(await store.find(EVERYTHING))) == [f"i{n}" for n in range(8)]
    with pytest.raises(LeaseHeld):
        await store.claim(TASKS, "t", "w2", timedelta(minutes=1))
    again = await store.claim(TASKS, "t", "w1", timedelta(minutes=1))
    with pytest.raises(FencedOut):
        await store.write(Save(space=TASKS, task="t", state="[3]", fence=lease.fence))
    assert again.fence > lease.fence
    await store.close()
