"""Every backend, empty and open, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psycopg
import pytest

from recollect.stores.in_memory import InMemoryStore
from recollect.stores.postgres import PostgresStore
from recollect.stores.sqlite import SqliteStore
from recollect.testing import ManualClock
from tests.servers.postgres import Server

AnyStore = InMemoryStore | SqliteStore | PostgresStore

# Faster than a database a test: most partitions stay empty, and to delete nothing from them costs next to nothing.
_EMPTY = """
    set recollect.everyone = 'on';
    delete from recollect.meta where name <> 'schema';
    delete from recollect.spaces;
    delete from recollect.records;
    delete from recollect.paths;
    delete from recollect.vectors;
    delete from recollect.postings;
    delete from recollect.entries;
    delete from recollect.tasks;
    delete from recollect.checkpoints;
    delete from recollect.steps;
"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def postgres_url(postgres: Server) -> str:
    """A database that the contract's tests take turns with."""
    return postgres.create("contract")


@pytest.fixture(params=["in_memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[AnyStore]:
    match request.param:
        case "in_memory":
            opened: AnyStore = InMemoryStore(clock=clock)
        case "sqlite":
            opened = SqliteStore.open(tmp_path / "store.db", readers=2, clock=clock)
        case _:
            opened = await _empty_postgres(request.getfixturevalue("postgres_url"), clock)
    yield opened
    await opened.close()


@pytest.fixture
async def reopen(
    request: pytest.FixtureRequest, store: SqliteStore | PostgresStore, clock: ManualClock
) -> AsyncIterator[Callable[[], Awaitable[SqliteStore | PostgresStore]]]:
    opened: list[SqliteStore | PostgresStore] = [store]

    async def again() -> SqliteStore | PostgresStore:
        await opened[-1].close()
        if isinstance(store, SqliteStore):
            opened.append(SqliteStore.open(store.path, readers=2, clock=clock))
        else:
            url = request.getfixturevalue("postgres_url")
            opened.append(await PostgresStore.open(url, connections=4, clock=clock))
        return opened[-1]

    yield again
    await opened[-1].close()


async def _empty_postgres(url: str, clock: ManualClock) -> PostgresStore:
    opened = await PostgresStore.open(url, connections=4, clock=clock)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(_EMPTY)
    return opened
