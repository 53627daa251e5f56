"""Through a real PgBouncer: each transaction may be on another connection, and nobody can tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from recollect.errors import StoreUnavailable
from recollect.stores.evidence import Ask
from recollect.stores.ops import Append, Entry
from recollect.stores.postgres import PostgresStore, connections
from recollect.stores.postgres.journey import remember, remembers
from recollect.stores.where import Where
from recollect.testing import DurableContract, ErasingContract, ManualClock, TasksContract
from recollect.testing.gathering import GatheringContract
from recollect.testing.samples import MODEL, START, put, save
from recollect.values import Scope
from tests.servers.pooler import Pooler
from tests.servers.postgres import EMPTY, Server

CLIENTS, ROUNDS = 8, 6
_LEFT = """
    select coalesce(current_setting('recollect.tenant', true), ''),
        coalesce(current_setting('recollect.everyone', true), ''),
        current_setting('plan_cache_mode'),
        (select count(*) from pg_prepared_statements),
        (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())
"""


@pytest.fixture(scope="session")
def pooled_url(postgres: Server) -> Iterator[str]:
    postgres.create("pooled")
    pooler = Pooler(postgres)
    yield pooler.url("pooled")
    pooler.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(pooled_url: str, clock: ManualClock) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(pooled_url, connections=CLIENTS, clock=clock)
    async with await psycopg.AsyncConnection.connect(pooled_url) as connection:
        await connection.execute(EMPTY)
    yield opened
    await opened.close()


@pytest.fixture
async def reopen(
    store: PostgresStore, pooled_url: str, clock: ManualClock
) -> AsyncIterator[Callable[[], Awaitable[PostgresStore]]]:
    opened = [store]

    async def again() -> PostgresStore:
        await opened[-1].close()
        opened.append(await PostgresStore.open(pooled_url, connections=2, clock=clock))
        return opened[-1]

    yield again
    await opened[-1].close()


class TestThroughAPooler(TasksContract, GatheringContract, DurableContract, ErasingContract):
    pass


async def _busy(store: PostgresStore, name: str) -> list[Any]:
    """Everything a tenant of its own does, which must not see the others."""
    scope = Scope(tenant=f"tenant-{name}", user="ada")
    log, where = scope.space("conversation"), Where(scope.space("semantic"))
    seen: list[Any] = []
    for number in range(ROUNDS):
        entry = Entry(id=f"e{number}", kind="user", content=name, at=START)
        await store.write(put(f"i{number}", [1, 0, 0, 0], name, scope=scope), Append(space=log, entry=entry))
        ask = Ask(where, None, (name,), 10, 0, MODEL)
        seen.append(await store.gather(ask, lambda found, lookup: len(lookup.items([b.id for b in found.briefs]))))
        seen.append({one.content for one in await store.recent(log)})
    return seen


async def test_many_tenants_at_once_on_few_connections_see_only_their_own(store: PostgresStore):
    names = [f"name{number}" for number in range(CLIENTS)]
    async with asyncio.TaskGroup() as group:
        busy = [group.create_task(_busy(store, name)) for name in names]
    for name, task in zip(names, busy, strict=True):
        assert task.result() == [one for number in range(ROUNDS) for one in (number + 1, {name})]


async def test_nothing_stays_with_a_connection(store: PostgresStore, pooled_url: str):
    await _busy(store, "ada")
    await store.check()
    looking = psycopg.AsyncConnection.connect(pooled_url, autocommit=True, prepare_threshold=None)
    async with await looking as connection:
        for _ in range(6):  # each time on the next one
            assert await (await connection.execute(_LEFT)).fetchone() == ("", "", "auto", 0, 0)


async def test_a_connection_knows_whether_a_pooler_is_in_between(store: PostgresStore, postgres: Server):
    await store.check()
    assert [remembers(one) for one in store._server._connections._idle] == [False]
    direct = await PostgresStore.open(postgres.url("pooled"), connections=1)
    await direct.check()
    assert [remembers(one) for one in direct._server._connections._idle] == [True]
    await direct.close()


async def test_statements_that_a_server_remembers_are_missed_behind_a_pooler(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    ready = connections._made_ready

    async def believing(connection: psycopg.AsyncConnection[Any]) -> None:
        await ready(connection)
        remember(connection)

    monkeypatch.setattr(connections, "_made_ready", believing)
    with pytest.raises(StoreUnavailable, match="prepared statement"):
        await asyncio.gather(*(store.write(put(f"i{number}"), save("[1]")) for number in range(20)))
