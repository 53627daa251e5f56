"""Nobody waits for ever: not for a call that was called off, and not for one who is frozen in the middle of a write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from recollect.errors import LeaseHeld, StoreUnavailable
from recollect.stores.postgres import PostgresStore, server
from recollect.stores.postgres.locks import task_lock
from recollect.testing.samples import MINUTE, TASKS, save
from tests.servers.postgres import Server


@pytest.fixture
def doomed() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


async def waiting(store: PostgresStore, *, again: asyncio.Event) -> asyncio.Task[None]:
    """A write that waits for somebody who holds its task's lock."""
    holding = asyncio.Event()

    async def hold() -> None:
        async with store._server.writing("acme", task_lock(TASKS, "t")):
            holding.set()
            await again.wait()

    holder = asyncio.create_task(hold())
    await holding.wait()
    writer = asyncio.create_task(store.write(save("[1]")))
    holder.add_done_callback(lambda done: done.cancelled() or done.exception())  # it dies with its server
    while True:
        async with store._server.reading("acme") as work:
            [[blocked]] = await work.rows("select count(*) from pg_locks where not granted", {})
        if blocked:
            return writer


async def test_a_call_is_off_though_the_server_dies_meanwhile(doomed: Server):
    # Mutant: the driver's last word, an error of the line, in place of the end that was asked for.
    store = await PostgresStore.open(await asyncio.to_thread(doomed.create, "off"), connections=4)
    again = asyncio.Event()
    writer = await waiting(store, again=again)
    doomed.crash()  # the loop stands still meanwhile: the writer learns of both at once
    writer.cancel()
    await asyncio.wait([writer])
    again.set()
    assert writer.cancelled()
    with pytest.raises(StoreUnavailable):
        await store.write(save("[2]"))
    await store.close()


async def test_one_who_is_frozen_in_a_transaction_holds_up_the_others_for_a_while_only(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
):
    # Mutant: no limit; the claim then waits for as long as the other is frozen.
    monkeypatch.setattr(server, "_FROZEN_MS", 500)
    url = await asyncio.to_thread(postgres.create, "frozen")
    frozen, other = await PostgresStore.open(url), await PostgresStore.open(url)

    async def freeze() -> None:
        async with frozen._server.writing("acme", task_lock(TASKS, "t")) as work:
            async with asyncio.timeout(20):
                await other.claim(TASKS, "t", "w1", MINUTE)
            await work.rows("select 1", {})

    with pytest.raises(StoreUnavailable, match="idle-in-transaction"):
        await freeze()
    # Both are well afterwards.
    await other.claim(TASKS, "t", "w1", MINUTE)
    with pytest.raises(LeaseHeld):
        await frozen.claim(TASKS, "t", "w2", MINUTE)
    await frozen.close()
    await other.close()
