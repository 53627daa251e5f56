"""The PostgreSQL store behind a real PgBouncer, where each transaction may use another connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from recollect.errors import StoreUnavailable
from recollect.stores.filters import Where
from recollect.stores.postgres import PostgresStore, connections
from recollect.stores.postgres.connections import PostgresConnection
from recollect.stores.search import EvidenceQuery
from recollect.stores.writes import Append, Entry
from recollect.testing import DurableContract, ErasureContract, ManualClock, TasksContract
from recollect.testing.factories import MODEL, START, make_put, make_save
from recollect.testing.search import SearchContract
from recollect.types import Scope
from tests.servers.pooler import Pooler
from tests.servers.postgres import EMPTY, Server

CLIENTS, ROUNDS = 8, 6
_SESSION_STATE = """
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


class TestPooledContracts(TasksContract, SearchContract, DurableContract, ErasureContract):
    pass


async def _use_as_tenant(store: PostgresStore, name: str) -> list[Any]:
    """Write and read as one tenant, and return the data that it sees."""
    scope = Scope(tenant=f"tenant-{name}", user="ada")
    log, where = scope.space("conversation"), Where(scope.space("semantic"))
    seen: list[Any] = []
    for number in range(ROUNDS):
        entry = Entry(id=f"e{number}", kind="user", content=name, at=START)
        await store.write(make_put(f"i{number}", [1, 0, 0, 0], name, scope=scope), Append(space=log, entry=entry))
        ask = EvidenceQuery(where, None, (name,), 10, 0, MODEL)
        seen.append(await store.gather(ask, lambda found, lookup: len(lookup.items([b.id for b in found.briefs]))))
        seen.append({one.content for one in await store.recent(log)})
    return seen


async def test_tenants_on_shared_connections_see_only_their_own_data(store: PostgresStore):
    names = [f"name{number}" for number in range(CLIENTS)]
    async with asyncio.TaskGroup() as group:
        busy = [group.create_task(_use_as_tenant(store, name)) for name in names]
    for name, task in zip(names, busy, strict=True):
        assert task.result() == [one for number in range(ROUNDS) for one in (number + 1, {name})]


async def test_connection_keeps_no_session_state(store: PostgresStore, pooled_url: str):
    await _use_as_tenant(store, "ada")
    await store.check()
    connecting = psycopg.AsyncConnection.connect(pooled_url, autocommit=True, prepare_threshold=None)
    async with await connecting as connection:
        for _ in range(6):  # each time on the next connection
            assert await (await connection.execute(_SESSION_STATE)).fetchone() == ("", "", "auto", 0, 0)


async def test_connection_detects_a_pooler(store: PostgresStore, postgres: Server):
    await store.check()
    assert [one.prepared for one in store._server._idle] == [None]
    direct = await PostgresStore.open(postgres.url("pooled"), connections=1)
    await direct.check()
    assert [one.prepared is None for one in direct._server._idle] == [False]
    await direct.close()


async def test_prepared_statements_fail_behind_a_pooler(store: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    configure = connections._configure_connection

    async def configure_as_direct(connection: PostgresConnection) -> None:
        await configure(connection)
        connection.prepared = {}

    monkeypatch.setattr(connections, "_configure_connection", configure_as_direct)
    with pytest.raises(StoreUnavailable, match="prepared statement"):
        await asyncio.gather(*(store.write(make_put(f"i{number}"), make_save("[1]")) for number in range(20)))
