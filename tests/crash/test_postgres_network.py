"""D8 on PostgreSQL: a retry of a write with an unknown outcome neither duplicates nor loses it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from recollect.errors import Conflict, StoreUnavailable
from recollect.stores.postgres import PostgresStore
from recollect.stores.postgres import transactions as postgres_server
from recollect.stores.writes import Append, Entry, Save
from recollect.testing.factories import ADA, START
from tests.crash.fault_proxy import FAULTS, Fault, FaultProxy
from tests.crash.result_table import Table
from tests.servers.postgres import Server

WRITERS, TIMES = 4, 25
# Timeout in seconds; each black hole costs one.
PATIENCE = 1.5
# Share of the chunks that fail; a write is two round trips.
FAULT_RATES: dict[Fault, float] = {"lost": 0.06, "reset": 0.06, "truncated": 0.06, "black hole": 0.03}
GONE = 10
TASKS = ADA.space("checkpoints")


@dataclass
class RetryingWriter:
    """A writer that retries until its write is acknowledged. If `named`, retries use the same id and `expect`."""

    name: str
    named: bool = True
    attempts: int = 0
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = replace(ADA, session=self.name).space("conversation")

    async def run(self, store: PostgresStore) -> None:
        for number in range(TIMES):
            while not await self._try_write(store, number):  # noqa: ASYNC110 - there is no event for the return of a server
                await asyncio.sleep(0.01)

    async def _try_write(self, store: PostgresStore, number: int) -> bool:
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
            return True  # the write succeeded and only its reply was lost
        finally:
            self.waits.append(time.monotonic() - began)
        return True

    async def find_faults(self, store: PostgresStore) -> list[str]:
        present = [entry.content for entry in await store.read(self.log)]
        task = await store.task(TASKS, self.name)
        found = []
        if present != [str(number) for number in range(TIMES)]:
            found.append(f"{self.name} wrote {TIMES} entries, the log has {present}")
        if task is None or task.version != TIMES:
            found.append(f"{self.name} saved {TIMES} times, and its task is {task}")
        return found


@asynccontextmanager
async def open_proxy(server: Server, fault: Fault, rng: random.Random) -> AsyncIterator[tuple[FaultProxy, str]]:
    name = f"proxy{rng.getrandbits(32)}"
    url = await asyncio.to_thread(server.create, name)
    proxy = FaultProxy(server.port, fault, rng, rate=FAULT_RATES[fault])
    port = await proxy.start()
    try:
        yield proxy, url.replace(f":{server.port}/", f":{port}/") + "?connect_timeout=2"
    finally:
        await proxy.stop()
        await asyncio.to_thread(server.drop, name)


async def run_writers(writers: list[RetryingWriter], proxy: FaultProxy, url: str) -> list[str]:
    store = await PostgresStore.open(url, connections=WRITERS)
    await asyncio.gather(*(store.read(writer.log) for writer in writers))  # opens all connections
    proxy.active = True
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run(store))
    proxy.active = False
    found = [fault for writer in writers for fault in await writer.find_faults(store)]
    found += await store.check()
    await store.close()
    return found


@pytest.mark.promise("D8")
@pytest.mark.parametrize("fault", FAULTS)
async def test_retry_after_network_fault_neither_duplicates_nor_loses(
    postgres: Server, fault: Fault, rng: random.Random, table: Table, monkeypatch: pytest.MonkeyPatch
):
    if fault == "black hole":
        monkeypatch.setattr(postgres_server, "_TRANSACTION_TIMEOUT_SECONDS", PATIENCE)
    writers = [RetryingWriter(f"w{number}") for number in range(WRITERS)]
    async with open_proxy(postgres, fault, rng) as (proxy, url):
        found = await run_writers(writers, proxy, url)
    table.add_result("D8", f"{fault}: {proxy.failures} in {WRITERS * TIMES} writes on PostgreSQL", len(found))
    assert found == []
    assert proxy.failures >= 3
    assert max(wait for writer in writers for wait in writer.waits) < 60, "a write waited longer than its timeout"


@pytest.mark.mutant("D8")
async def test_retry_with_new_id_duplicates_write(postgres: Server, rng: random.Random, table: Table):
    writers = [RetryingWriter(f"w{number}", named=False) for number in range(WRITERS)]
    async with open_proxy(postgres, "reset", rng) as (proxy, url):
        found = await run_writers(writers, proxy, url)
    table.add_mutant("D8", "writes with a new id at each attempt", len(found))
    assert found


@pytest.mark.promise("D8")
async def test_server_outage_delays_writers_and_loses_nothing(rng: random.Random, table: Table):
    server = await asyncio.to_thread(Server)
    try:
        store = await PostgresStore.open(await asyncio.to_thread(server.create, "gone"), connections=WRITERS)
        writers = [RetryingWriter(f"w{number}") for number in range(WRITERS)]
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run(store))
            await asyncio.sleep(rng.uniform(0.05, 0.2))
            await asyncio.to_thread(server.crash)
            await asyncio.sleep(GONE)
            attempts_during_outage = [writer.attempts for writer in writers]
            await asyncio.to_thread(server.start)
        found = [fault for writer in writers for fault in await writer.find_faults(store)]
        found += await store.check()
        table.add_result("D8", f"PostgreSQL gone for {GONE} s among {sum(attempts_during_outage)} attempts", len(found))
        assert found == []
        assert sum(attempts_during_outage) > WRITERS, "no write failed during the outage"
        await store.close()
    finally:
        await asyncio.to_thread(server.close)
