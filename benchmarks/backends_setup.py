"""Setup of `backends.py`: for each backend, start its server, open the baseline, and make copies for the replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from backends_baselines import ChromaBaseline, PostgresBaseline, RedisBaseline, SqliteBaseline
from backends_replay import PostgresPlayer, RedisPlayer, Replica
from latency_proxy import LatencyProxy
from psycopg import sql

from tests.servers.chroma import ChromaServer
from tests.servers.postgres import Server as PostgresServer
from tests.servers.redis import RedisServer

Baseline = SqliteBaseline | PostgresBaseline | RedisBaseline | ChromaBaseline
NAMES = ("in_memory", "sqlite", "postgres", "redis", "chroma")
FACT_CALLS = ("remember", "recall")
LOG_CALLS = ("record_turn", "checkpoint")
_POSTGRES_OPTIONS = ("max_connections=200",)
# Two ways to replay statements: with the driver's cursors, and with the store's own pipelines.
ENGINE, OWN_STATEMENTS = REPLAYS = ("engine", "own_statements")


@dataclass(frozen=True, slots=True)
class Backend:
    """A running backend and the calls that are timed on it."""

    name: str
    store: str | dict[str, str]
    calls: tuple[str, ...]
    baseline: Baseline | None = None
    copy: Callable[[], Awaitable[dict[str, Replica]]] | None = None
    """Copies the databases, one copy for each way of replay; None if the engine runs in our process."""
    blocks: bool = False
    """The driver blocks its thread. Its time is measured inside of the call, and nothing is copied."""
    log_url: str | None = None
    """URL of a store that has logs only; a user's 100 items are then entries."""


@asynccontextmanager
async def prepare_backends(
    directory: Path, names: Sequence[str], connections: int, latency_ms: float
) -> AsyncIterator[list[Callable[[], Awaitable[Backend]]]]:
    """Yield a function for each backend that starts it; all are stopped at the end.

    With `latency_ms`, PostgreSQL and Redis are reached through a proxy with that round-trip time.
    """
    async with AsyncExitStack() as stack:
        starter = _Starter(stack, directory, connections, latency_ms)
        yield [getattr(starter, name) for name in names]


class _Starter:
    def __init__(self, stack: AsyncExitStack, directory: Path, connections: int, latency_ms: float) -> None:
        self._stack = stack
        self._directory = directory
        self._connections = connections
        self._latency_ms = latency_ms
        self._proxies: dict[int, LatencyProxy] = {}

    def _with_latency(self, url: str, server: Any) -> str:
        """Return the URL of the server through its proxy."""
        if not self._latency_ms:
            return url
        if server.port not in self._proxies:
            proxy = LatencyProxy(server.port, self._latency_ms)
            self._proxies[server.port] = self._stack.enter_context(_stopping(proxy, "stop"))
        return url.replace(f":{server.port}", f":{self._proxies[server.port].port}")

    async def in_memory(self) -> Backend:
        return Backend("in memory", "memory://", (*FACT_CALLS, *LOG_CALLS))

    async def sqlite(self) -> Backend:
        baseline = SqliteBaseline(self._directory / "baseline.db")
        self._stack.push_async_callback(baseline.close)
        return Backend("SQLite", str(self._directory / "ours.db"), (*FACT_CALLS, *LOG_CALLS), baseline)

    async def postgres(self) -> Backend:
        server = self._start_postgres()
        baseline = await PostgresBaseline.open(self._with_latency(server.create("baseline"), server), self._connections)
        self._stack.push_async_callback(baseline.close)

        async def copy() -> dict[str, Replica]:
            players = await self._copy_postgres(server)
            return self._close_at_exit({way: Replica(postgres=player) for way, player in players.items()})

        url = self._with_latency(server.create("ours"), server)
        return Backend("PostgreSQL", url, (*FACT_CALLS, *LOG_CALLS), baseline, copy)

    async def redis(self) -> Backend:
        """Return a Redis for logs and tasks, with facts and the turn index in PostgreSQL, as the docs recommend."""
        server = self._stack.enter_context(_stopping(RedisServer(self._directory / "redis").start(), "stop"))
        facts_server = self._start_postgres()
        url = self._with_latency(server.url, server)
        baseline = RedisBaseline(url)
        self._stack.push_async_callback(baseline.close)

        async def copy() -> dict[str, Replica]:
            players = await self._copy_postgres(facts_server)
            return self._close_at_exit(
                {
                    way: Replica(redis=await self._copy_redis(server, way), postgres=player)
                    for way, player in players.items()
                }
            )

        tiers = dict.fromkeys(("conversation", "episodic", "checkpoints"), url)
        calls = ("recall", "recall_sessions", "recall_episodes", *LOG_CALLS)
        facts = self._with_latency(facts_server.create("ours"), facts_server)
        return Backend("Redis", {"default": facts, **tiers}, calls, baseline, copy, log_url=url)

    async def chroma(self) -> Backend:
        server = self._stack.enter_context(_stopping(ChromaServer(self._directory / "chroma").start(), "stop"))
        baseline = await ChromaBaseline.open(server.port)
        store = {"default": str(self._directory / "logs.db"), "semantic": server.create("ours")}
        return Backend("Chroma", store, ("remember", "recall_facts"), baseline, blocks=True)

    def _start_postgres(self) -> PostgresServer:
        server: PostgresServer = self._stack.enter_context(_stopping(PostgresServer(_POSTGRES_OPTIONS), "close"))
        return server

    async def _copy_postgres(self, server: PostgresServer) -> dict[str, PostgresPlayer]:
        await asyncio.to_thread(_clone_database, server, REPLAYS)
        return {
            way: await PostgresPlayer.open(
                self._with_latency(server.url(way), server), self._connections + 4, pipelined=way == OWN_STATEMENTS
            )
            for way in REPLAYS
        }

    async def _copy_redis(self, server: RedisServer, way: str) -> RedisPlayer:
        replica = self._stack.enter_context(_stopping(RedisServer(self._directory / way).start(), "stop"))
        await asyncio.to_thread(_replicate, server, replica)
        return await RedisPlayer.open(self._with_latency(replica.url, replica), own_connections=way == OWN_STATEMENTS)

    def _close_at_exit(self, replicas: dict[str, Replica]) -> dict[str, Replica]:
        for replica in replicas.values():
            self._stack.push_async_callback(replica.close)
        return replicas


@contextmanager
def _stopping(server: Any, method: str) -> Any:
    try:
        yield server
    finally:
        getattr(server, method)()


def _clone_database(server: PostgresServer, names: Sequence[str]) -> None:
    """Copy the database `ours`, then vacuum and analyze every database, as autovacuum does after a while."""
    with psycopg.connect(server.url("postgres", "postgres"), autocommit=True) as admin:
        for name in names:
            admin.execute(sql.SQL("create database {} template ours owner recollect").format(sql.Identifier(name)))
        databases = [name for (name,) in admin.execute("select datname from pg_database where not datistemplate")]
    for name in databases:
        with psycopg.connect(server.url(name, "postgres"), autocommit=True) as admin:
            admin.execute("vacuum analyze")


def _replicate(server: RedisServer, replica: RedisServer) -> None:
    with replica.client() as client, server.client() as source:
        client.replicaof("127.0.0.1", server.port)
        while client.info("replication")["master_link_status"] != "up" or client.dbsize() < source.dbsize():
            pass
        client.replicaof("NO", "ONE")
