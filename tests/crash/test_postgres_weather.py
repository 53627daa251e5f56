"""D8 on PostgreSQL: when nobody can tell whether a write arrived, to ask again neither doubles nor loses it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from recollect.errors import Conflict, StoreUnavailable
from recollect.stores.ops import Append, Entry, Save
from recollect.stores.postgres import PostgresStore
from recollect.stores.postgres import server as postgres_server
from recollect.testing.samples import ADA, START
from tests.crash.proxy import FAULTS, Fault, FaultProxy
from tests.crash.table import Table
from tests.servers.postgres import Server

WRITERS, TIMES = 4, 25
# How long an answer is waited for where none comes: each black hole costs that.
PATIENCE = 1.5
# Of all that passes, so much: a write is two journeys.
OFTEN: dict[Fault, float] = {"lost": 0.06, "reset": 0.06, "truncated": 0.06, "black hole": 0.03}
GONE = 10
TASKS = ADA.space("checkpoints")


@dataclass
class Stubborn:
    """A writer that tries until it is told that it is done. What it writes has a name, and says what it has seen."""

    name: str
    named: bool = True
    attempts: int = 0
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = replace(ADA, session=self.name).space("conversation")

    async def run(self, store: PostgresStore) -> None:
        for number in range(TIMES):
            while not await self._written(store, number):  # noqa: ASYNC110 - a server that is back tells nobody
                await asyncio.sleep(0.01)

    async def _written(self, store: PostgresStore, number: int) -> bool:
        self.attempts += 1
        id = f"{number}" if self.named else f"{number}, attempt {self.attempts}"
        entry = Entry(id=id, kind="user", content=f"{number}", at=START)
        save = Save(space=TASKS, task=self.name, state=f"[{number}]", expect=number if self.named else None)
        began = time.monotonic()
        try:
            await store.write(Append(space=self.log, entry=entry), save)
        except StoreUnavailable:
            return False
        except Conflict:
            return True  # it was done, and only the answer was lost
        finally:
            self.waits.append(time.monotonic() - began)
        return True

    async def faults(self, store: PostgresStore) -> list[str]:
        there = [entry.content for entry in await store.read(self.log)]
        task = await store.task(TASKS, self.name)
        found = []
        if there != [str(number) for number in range(TIMES)]:
            found.append(f"{self.name} wrote {TIMES} entries, and there are {there}")
        if task is None or task.version != TIMES:
            found.append(f"{self.name} saved {TIMES} times, and its task is {task}")
        return found


@asynccontextmanager
async def weather(server: Server, fault: Fault, chance: random.Random) -> AsyncIterator[tuple[FaultProxy, str]]:
    name = f"weather{chance.getrandbits(32)}"
    url = await asyncio.to_thread(server.create, name)
    proxy = FaultProxy(server.port, fault, chance, often=OFTEN[fault])
    port = await proxy.start()
    try:
        yield proxy, url.replace(f":{server.port}/", f":{port}/") + "?connect_timeout=2"
    finally:
        await proxy.stop()
        await asyncio.to_thread(server.drop, name)


async def violations(writers: list[Stubborn], proxy: FaultProxy, url: str) -> list[str]:
    store = await PostgresStore.open(url, connections=WRITERS)
    await asyncio.gather(*(store.read(writer.log) for writer in writers))  # all connections are made
    proxy.calm = False
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run(store))
    proxy.calm = True
    found = [fault for writer in writers for fault in await writer.faults(store)]
    found += await store.check()
    await store.close()
    return found


@pytest.mark.parametrize("fault", FAULTS)
async def test_to_ask_again_neither_doubles_nor_loses(
    postgres: Server, fault: Fault, chance: random.Random, table: Table, monkeypatch: pytest.MonkeyPatch
):
    if fault == "black hole":
        monkeypatch.setattr(postgres_server, "_PATIENCE_SECONDS", PATIENCE)
    writers = [Stubborn(f"w{number}") for number in range(WRITERS)]
    async with weather(postgres, fault, chance) as (proxy, url):
        found = await violations(writers, proxy, url)
    table.held("D8", f"{fault}: {proxy.failures} in {WRITERS * TIMES} writes on PostgreSQL", len(found))
    assert found == []
    assert proxy.failures >= 3
    assert max(wait for writer in writers for wait in writer.waits) < 60, "somebody waited for an answer for ever"


async def test_a_write_without_a_name_of_its_own_is_doubled(postgres: Server, chance: random.Random, table: Table):
    writers = [Stubborn(f"w{number}", named=False) for number in range(WRITERS)]
    async with weather(postgres, "reset", chance) as (proxy, url):
        found = await violations(writers, proxy, url)
    table.seen("D8", "writes with a new name at each attempt", len(found))
    assert found


async def test_a_server_that_is_gone_in_mid_run_costs_a_wait_and_nothing_else(chance: random.Random, table: Table):
    server = await asyncio.to_thread(Server)
    try:
        store = await PostgresStore.open(await asyncio.to_thread(server.create, "gone"), connections=WRITERS)
        writers = [Stubborn(f"w{number}") for number in range(WRITERS)]
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run(store))
            await asyncio.sleep(chance.uniform(0.05, 0.2))
            await asyncio.to_thread(server.crash)
            await asyncio.sleep(GONE)
            missed = [writer.attempts for writer in writers]
            await asyncio.to_thread(server.start)
        found = [fault for writer in writers for fault in await writer.faults(store)]
        found += await store.check()
        table.held("D8", f"PostgreSQL gone for {GONE} s among {sum(missed)} attempts", len(found))
        assert found == []
        assert sum(missed) > WRITERS, "nobody noticed"
        await store.close()
    finally:
        await asyncio.to_thread(server.close)
