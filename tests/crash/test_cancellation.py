"""Cancellation of a blocked write, and the timeout of an idle transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from recollect.errors import LeaseHeld, StoreUnavailable
from recollect.stores.postgres import PostgresStore, transactions
from recollect.stores.postgres.transactions import build_task_locks
from recollect.testing.factories import MINUTE, TASKS, make_save
from tests.servers.postgres import Server


@pytest.fixture
def own_server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


async def start_blocked_write(store: PostgresStore, *, release: asyncio.Event) -> asyncio.Task[None]:
    """Return a write that waits for the lock of its task, which another transaction holds."""
    holding = asyncio.Event()

    async def hold() -> None:
        async with store._server.begin_write("acme", build_task_locks(TASKS, "t")):
            holding.set()
            await release.wait()

    holder = asyncio.create_task(hold())
    await holding.wait()
    writer = asyncio.create_task(store.write(make_save("[1]")))
    holder.add_done_callback(lambda done: done.cancelled() or done.exception())  # it fails with its server
    while True:
        async with store._server.begin_read("acme") as work:
            [[blocked]] = await work.fetch_rows("select count(*) from pg_locks where not granted", {})
        if blocked:
            return writer


async def test_cancelled_write_stays_cancelled_when_server_crashes(own_server: Server):
    # Mutant: raise the driver's connection error instead of CancelledError.
    store = await PostgresStore.open(await asyncio.to_thread(own_server.create, "off"), connections=4)
    release = asyncio.Event()
    writer = await start_blocked_write(store, release=release)
    own_server.crash()  # blocks the loop, so that the writer sees the crash and the cancellation together
    writer.cancel()
    await asyncio.wait([writer])
    release.set()
    assert writer.cancelled()
    with pytest.raises(StoreUnavailable):
        await store.write(make_save("[2]"))
    await store.close()


async def test_idle_transaction_times_out_and_unblocks_other_clients(postgres: Server, monkeypatch: pytest.MonkeyPatch):
    # Mutant: no timeout; the claim waits as long as the other transaction is idle.
    monkeypatch.setattr(transactions, "_IDLE_TIMEOUT_MS", 500)
    url = await asyncio.to_thread(postgres.create, "frozen")
    frozen, other = await PostgresStore.open(url), await PostgresStore.open(url)

    async def freeze() -> None:
        async with frozen._server.begin_write("acme", build_task_locks(TASKS, "t")) as work:
            async with asyncio.timeout(20):
                await other.claim(TASKS, "t", "w1", MINUTE)
            await work.fetch_rows("select 1", {})

    with pytest.raises(StoreUnavailable, match="idle-in-transaction"):
        await freeze()
    # Both stores work afterwards.
    await other.claim(TASKS, "t", "w1", MINUTE)
    with pytest.raises(LeaseHeld):
        await frozen.claim(TASKS, "t", "w2", MINUTE)
    await frozen.close()
    await other.close()
