"""D7: an immediate stop of the server loses no acknowledged batch and leaves no partial batch."""

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
from recollect.stores.postgres import PostgresStore
from recollect.stores.postgres import transactions as postgres_server
from recollect.stores.writes import Append, Entry, Put, Save
from recollect.testing.factories import ADA, EVERYTHING, START, list_ids, make_item, make_put
from tests.crash.result_table import Table
from tests.servers.postgres import Server

STOPS = int(os.environ.get("CRASH_STOPS", "15"))
MUTANT_STOPS = 6
WRITERS = 4
WRITES_BETWEEN = 20
LOG, TASKS = ADA.space("conversation"), ADA.space("checkpoints")


@pytest.fixture
def own_server() -> Iterator[Server]:
    """Start a server for one test, without fsync: a stop of the processes alone cannot show the difference."""
    server = Server()
    yield server
    server.close()


@dataclass
class Run:
    """The outcomes of the writers, kept in this process."""

    acknowledged: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    over: bool = False

    async def write(self, store: PostgresStore, writer: int) -> None:
        """Write batches of an item, an entry and a state with the same name, until the run is over."""
        number = 0
        while not self.over:
            number += 1
            name = f"w{writer}-{number}"
            entry = Entry(id=name, kind="user", content=name, at=START)
            try:
                await store.write(
                    Put(item=make_item(name), terms=(name,), expect=0),
                    Append(space=LOG, entry=entry),
                    Save(space=TASKS, task=name, state="[1]", expect=0),
                )
            except StoreUnavailable:
                self.unknown.append(name)
                await asyncio.sleep(0.01)
            else:
                self.acknowledged.append(name)

    async def find_faults(self, store: PostgresStore) -> list[str]:
        found = []
        space = ADA.space("semantic")
        names = [*self.acknowledged, *self.unknown]
        items = {row.id for row in await store.get(space, *names)}
        entries = {row.id for row in await store.entries(LOG, *names)}
        tasks = {row.id for row in await store.tasks(TASKS, limit=len(names) + 1)}
        for name in names:
            present = (name in items, name in entries, name in tasks)
            if len(set(present)) > 1:
                found.append(f"{name} is there in part: {present}")
            elif name in self.acknowledged and not all(present):
                found.append(f"{name} was acknowledged and is missing")
        return found + await store.check()


async def _run_with_stops(server: Server, rng: random.Random, stops: int) -> tuple[Run, list[str]]:
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
            await asyncio.sleep(rng.uniform(0, 0.2))
            await asyncio.to_thread(server.crash)
            await asyncio.to_thread(server.start)
        await asyncio.sleep(0.1)
        run.over = True
    found = await run.find_faults(store)
    await store.close()
    return run, found


@pytest.mark.promise("D7")
async def test_immediate_stop_loses_no_acknowledged_batch(own_server: Server, rng: random.Random, table: Table):
    run, found = await _run_with_stops(own_server, rng, STOPS)
    done = f"{STOPS} immediate stops of PostgreSQL among {len(run.acknowledged)} acknowledged batches"
    table.add_result("D7", done, len(found))
    assert found == []
    assert run.unknown, "no stop interrupted a write"


@pytest.mark.mutant("D7")
async def test_asynchronous_commit_is_detected(
    own_server: Server, rng: random.Random, table: Table, monkeypatch: pytest.MonkeyPatch
):
    writing = postgres_server.PostgresServer.begin_write

    @asynccontextmanager
    async def begin_without_sync(self: Any, *args: Any, durable: bool = True):
        async with writing(self, *args, durable=False) as work:
            yield work

    monkeypatch.setattr(postgres_server.PostgresServer, "begin_write", begin_without_sync)
    _, found = await _run_with_stops(own_server, rng, MUTANT_STOPS)
    lost = [fault for fault in found if "acknowledged" in fault]
    table.add_mutant("D7", "synchronous_commit = off", len(lost))
    assert lost


async def test_store_turns_synchronous_commit_on(postgres: Server):
    # An administrator may have turned it off for the role or the database.
    url = await asyncio.to_thread(postgres.create, "weak")
    store = await PostgresStore.open(f"{url}?options=-c%20synchronous_commit%3Doff")
    async with store._server.begin_write("acme") as work:
        assert await work.fetch_rows("show synchronous_commit", {}) == [("on",)]
    await store.close()


async def test_store_raises_during_outage_and_reconnects(own_server: Server):
    url = await asyncio.to_thread(own_server.create, "gone")
    store = await PostgresStore.open(url, connections=4)
    await asyncio.gather(*(store.write(make_put(f"i{n}")) for n in range(8)))
    lease = await store.claim(TASKS, "t", "w1", timedelta(minutes=1))
    await asyncio.to_thread(own_server.crash)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.write(make_put("lost"), Save(space=TASKS, task="t", state="[1]", fence=lease.fence))
    await asyncio.to_thread(own_server.start)
    # Every connection in the pool is dead; the pool replaces them.
    await store.write(Save(space=TASKS, task="t", state="[2]", fence=lease.fence, expect=0))
    assert sorted(list_ids(await store.find(EVERYTHING))) == [f"i{n}" for n in range(8)]
    with pytest.raises(LeaseHeld):
        await store.claim(TASKS, "t", "w2", timedelta(minutes=1))
    again = await store.claim(TASKS, "t", "w1", timedelta(minutes=1))
    with pytest.raises(FencedOut):
        await store.write(Save(space=TASKS, task="t", state="[3]", fence=lease.fence))
    assert again.fence > lease.fence
    await store.close()
