"""The places where memory can live: each with its server, the bare engine beside it, and a copy to play tapes to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from away import Away
from bare import BareChroma, BarePostgres, BareRedis, BareSqlite
from psycopg import sql
from tapes import PostgresPlayer, RedisPlayer, Twin

from tests.servers.chroma import ChromaServer
from tests.servers.postgres import Server as PostgresServer
from tests.servers.redis import RedisServer

Bare = BareSqlite | BarePostgres | BareRedis | BareChroma
NAMES = ("in_memory", "sqlite", "postgres", "redis", "chroma")
ITEMS = ("remember", "recall")
LOGS = ("record_turn", "checkpoint")
_ROOMY = ("max_connections=200",)
# Ways to a server: the driver as it comes, and our own past it.
ENGINE, OUR_WAY = WAYS = ("engine", "our_way")


@dataclass(frozen=True, slots=True)
class Place:
    """A place where memory lives, and the calls that it answers."""

    name: str
    store: str | dict[str, str]
    calls: tuple[str, ...]
    bare: Bare | None = None
    copied: Callable[[], Awaitable[dict[str, Twin]]] | None = None
    """Makes the copies, by how they are sent to; None where there is no server to tell apart from us."""
    blocks: bool = False
    """Whether the driver blocks the one thread it is used in: then its time is taken there, and nothing is copied."""
    logs: str | None = None
    """Where logs alone are kept, so that a user's hundred items are what they said."""


@asynccontextmanager
async def places(
    directory: Path, names: Sequence[str], at_once: int, away: float
) -> AsyncIterator[list[Callable[[], Awaitable[Place]]]]:
    """Each is started when its turn comes, and ended with the run; its server is so many milliseconds away."""
    async with AsyncExitStack() as stack:
        start = _Starts(stack, directory, at_once, away)
        yield [getattr(start, name) for name in names]


class _Starts:
    def __init__(self, stack: AsyncExitStack, directory: Path, at_once: int, away: float) -> None:
        self._stack = stack
        self._directory = directory
        self._at_once = at_once
        self._away = away
        self._ways: dict[int, Away] = {}

    def _there(self, url: str, server: Any) -> str:
        """The server's address as whoever is elsewhere has it."""
        if not self._away:
            return url
        if server.port not in self._ways:
            self._ways[server.port] = self._stack.enter_context(_running(Away(server.port, self._away), "stop"))
        return url.replace(f":{server.port}", f":{self._ways[server.port].port}")

    async def in_memory(self) -> Place:
        return Place("in memory", "memory://", (*ITEMS, *LOGS))

    async def sqlite(self) -> Place:
        bare = BareSqlite(self._directory / "bare.db")
        self._stack.push_async_callback(bare.close)
        return Place("SQLite", str(self._directory / "ours.db"), (*ITEMS, *LOGS), bare)

    async def postgres(self) -> Place:
        server = self._postgres()
        bare = await BarePostgres.open(self._there(server.create("bare"), server), self._at_once)
        self._stack.push_async_callback(bare.close)

        async def copied() -> dict[str, Twin]:
            copies = await self._copies(server)
            return self._kept({way: Twin(postgres=copy) for way, copy in copies.items()})

        return Place("PostgreSQL", self._there(server.create("ours"), server), (*ITEMS, *LOGS), bare, copied)

    async def redis(self) -> Place:
        """As it is meant to be used: what was said is indexed in PostgreSQL, and everything else is on Redis."""
        server = self._stack.enter_context(_running(RedisServer(self._directory / "redis").start(), "stop"))
        beside = self._postgres()
        url = self._there(server.url, server)
        bare = BareRedis(url)
        self._stack.push_async_callback(bare.close)

        async def copied() -> dict[str, Twin]:
            copies = await self._copies(beside)
            return self._kept(
                {way: Twin(redis=await self._replica(server, way), postgres=copy) for way, copy in copies.items()}
            )

        tiers = dict.fromkeys(("conversation", "episodic", "checkpoints"), url)
        calls = ("recall", "recall_sessions", "recall_episodes", *LOGS)
        facts = self._there(beside.create("ours"), beside)
        return Place("Redis", {"default": facts, **tiers}, calls, bare, copied, logs=url)

    async def chroma(self) -> Place:
        server = self._stack.enter_context(_running(ChromaServer(self._directory / "chroma").start(), "stop"))
        bare = await BareChroma.open(server.port)
        store = {"default": str(self._directory / "beside.db"), "semantic": server.create("ours")}
        return Place("Chroma", store, ("remember", "recall_facts"), bare, blocks=True)

    def _postgres(self) -> PostgresServer:
        server: PostgresServer = self._stack.enter_context(_running(PostgresServer(_ROOMY), "close"))
        return server

    async def _copies(self, server: PostgresServer) -> dict[str, PostgresPlayer]:
        await asyncio.to_thread(_cloned, server, WAYS)
        return {
            way: await PostgresPlayer.open(
                self._there(server.url(way), server), self._at_once + 4, journeys=way == OUR_WAY
            )
            for way in WAYS
        }

    async def _replica(self, server: RedisServer, way: str) -> RedisPlayer:
        other = self._stack.enter_context(_running(RedisServer(self._directory / way).start(), "stop"))
        await asyncio.to_thread(_replicate, server, other)
        return await RedisPlayer.open(self._there(other.url, other), self._at_once + 4, lines=way == OUR_WAY)

    def _kept(self, twins: dict[str, Twin]) -> dict[str, Twin]:
        for twin in twins.values():
            self._stack.push_async_callback(twin.close)
        return twins


@contextmanager
def _running(server: Any, end: str) -> Any:
    try:
        yield server
    finally:
        getattr(server, end)()


def _cloned(server: PostgresServer, names: Sequence[str]) -> None:
    """All are left as the server's own housekeeping would leave them an hour later."""
    with psycopg.connect(server.url("postgres", "postgres"), autocommit=True) as admin:
        for name in names:
            admin.execute(sql.SQL("create database {} template ours owner recollect").format(sql.Identifier(name)))
        databases = [name for (name,) in admin.execute("select datname from pg_database where not datistemplate")]
    for name in databases:
        with psycopg.connect(server.url(name, "postgres"), autocommit=True) as admin:
            admin.execute("vacuum analyze")


def _replicate(server: RedisServer, other: RedisServer) -> None:
    with other.client() as client, server.client() as source:
        client.replicaof("127.0.0.1", server.port)
        while client.info("replication")["master_link_status"] != "up" or client.dbsize() < source.dbsize():
            pass
        client.replicaof("NO", "ONE")
