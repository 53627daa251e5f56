"""Store fixtures of the contract tests, for all backends."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from recollect.stores.chroma import ChromaStore
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.postgres import PostgresStore
from recollect.stores.redis import RedisStore
from recollect.stores.sqlite import EncryptionKey, SqliteStore
from recollect.testing import ManualClock
from tests.servers.chroma import ChromaServer
from tests.servers.postgres import EMPTY, Server
from tests.servers.redis import RedisCluster, RedisServer

_databases = itertools.count()
KEY = EncryptionKey("5eed" * 16)

AnyStore = InMemoryStore | SqliteStore | PostgresStore | RedisStore | ChromaStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def postgres_url(postgres: Server) -> str:
    """Create the database that all contract tests share."""
    return postgres.create("contract")


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def chroma_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChromaServer]:
    """Start one server for all tests; each test uses its own database."""
    server = ChromaServer(tmp_path_factory.mktemp("chroma") / "data").start()
    yield server
    server.kill()


@pytest.fixture(params=["in_memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[AnyStore]:
    opened = await _open_store(request, tmp_path, clock)
    yield opened
    await opened.close()


async def _open_store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AnyStore:
    match request.param:
        case "in_memory":
            return InMemoryStore(clock=clock)
        case "sqlite":
            return SqliteStore.open(tmp_path / "store.db", readers=2, clock=clock)
        case "sqlite_encrypted":
            return SqliteStore.open(tmp_path / "store.db", readers=2, clock=clock, key=KEY)
        case "postgres":
            return await _empty_postgres(request.getfixturevalue("postgres_url"), clock)
        case "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            with server.client() as client:
                client.flushall()
            return await RedisStore.open(server.url, clock=clock)
        case "redis_cluster":
            cluster: RedisCluster = request.getfixturevalue("redis_cluster")
            cluster.flush()
            return await RedisStore.open(cluster.url, clock=clock)
        case "chroma":
            return await ChromaStore.open(f"chroma:{tmp_path / 'chroma'}")
        case "chroma_server":
            return await ChromaStore.open(_new_database(request.getfixturevalue("chroma_server")))
        case other:
            raise AssertionError(other)


@pytest.fixture
async def reopen(
    request: pytest.FixtureRequest, store: AnyStore, clock: ManualClock
) -> AsyncIterator[Callable[[], Awaitable[AnyStore]]]:
    opened = [store]

    async def close_and_open() -> AnyStore:
        await opened[-1].close()
        match store:
            case SqliteStore():
                key = KEY if store.encrypted else None
                opened.append(SqliteStore.open(store.path, readers=2, clock=clock, key=key))
            case PostgresStore():
                url = request.getfixturevalue("postgres_url")
                opened.append(await PostgresStore.open(url, connections=4, clock=clock))
            case RedisStore():
                opened.append(await RedisStore.open(store.url, clock=clock))
            case ChromaStore():
                opened.append(await ChromaStore.open(store.url))
        return opened[-1]

    yield close_and_open
    await opened[-1].close()


def _new_database(server: ChromaServer) -> str:
    return server.create(f"contract{next(_databases)}")


async def _empty_postgres(url: str, clock: ManualClock) -> PostgresStore:
    opened = await PostgresStore.open(url, connections=4, clock=clock)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(EMPTY)
    return opened
