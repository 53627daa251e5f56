"""One PostgreSQL server, and the transactions on it that all work is done in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.pq import TransactionStatus

from recollect.clock import Clock, from_micros
from recollect.errors import StoreUnavailable, Unsupported
from recollect.stores.calls import calls_off
from recollect.stores.postgres.connections import Connections
from recollect.stores.postgres.faults import translated
from recollect.stores.postgres.migrations import migrate
from recollect.stores.postgres.text import kept

_OLDEST_SERVER = 140000
_OLDEST_VECTOR = (0, 8)
_PATIENCE_SECONDS = 120.0
_FROZEN_MS = 30_000

_ABOUT = """
    select current_setting('server_version_num')::int, current_setting('server_version'),
        current_setting('server_encoding'), current_setting('synchronous_commit'), current_setting('fsync'),
        current_setting('full_page_writes'), coalesce(current_setting('recollect.throwaway', true), ''),
        (select extversion from pg_extension where extname = 'vector')
"""
_NOW = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"

Values = dict[str, Any]
T = TypeVar("T")


@dataclass(slots=True)
class Work:
    """A transaction under way, about one tenant at a time."""

    connection: AsyncConnection[Any]
    now: datetime
    tenant: str | None = field(default=None)

    async def rows(self, statement: str, values: Values) -> list[tuple[Any, ...]]:
        # The text of a statement is put together from constants; what comes from outside is in the values.
        found = await self.connection.execute(statement, values, binary=True)
        return await found.fetchall()

    async def row(self, statement: str, values: Values) -> tuple[Any, ...] | None:
        found = await self.rows(statement, values)
        return found[0] if found else None

    async def run(self, statement: str, values: Values) -> None:
        await self.connection.execute(statement, values)

    async def run_each(self, statement: str, values: list[Values]) -> None:
        if values:
            async with self.connection.cursor() as cursor:
                await cursor.executemany(statement, values)

    async def replanned(self) -> None:
        """Have the statements from here on planned anew, as those have to be that change rows: see the policies."""
        if self.connection.prepare_threshold is not None:
            await self.connection.execute("set local plan_cache_mode = force_custom_plan", prepare=False)

    async def by_index(self, breadth: int) -> None:
        """Let an index go on until it has found enough that is not filtered out, in the order of their distances."""
        await self.connection.execute(
            sql.SQL(
                "set local plan_cache_mode = force_custom_plan; set local hnsw.iterative_scan = strict_order; "
                "set local hnsw.ef_search = {}"
            ).format(sql.Literal(min(breadth, 1000))),
            prepare=False,
        )

    async def about(self, tenant: str) -> None:
        """Go on with another tenant: rows of all others are out of sight."""
        if tenant != self.tenant:
            await self.connection.execute(
                "select set_config('recollect.tenant', %s, true), set_config('recollect.everyone', '', true)",
                (kept(tenant),),
            )
            self.tenant = tenant


class Server:
    """A database that can keep our promises. Works through a pooler that gives out connections by the transaction."""

    def __init__(self, connections: Connections, clock: Clock | None, *, weak_commits: bool) -> None:
        self._connections = connections
        self._clock = clock
        self._weak_commits = weak_commits

    @classmethod
    async def open(cls, url: str, *, connections: int, clock: Clock | None) -> Server:
        some = Connections(url, connections, _PATIENCE_SECONDS)
        first = await some.made()
        with translated(some.place):
            async with first:
                weak = await _check(first, some.place)
                await migrate(first, some.place)
        return cls(some, clock, weak_commits=weak)

    async def close(self) -> None:
        await self._connections.close()

    async def made(self) -> AsyncConnection[Any]:
        """A connection of one's own, for what no transaction can hold."""
        return await self._connections.made()

    async def alone(self, act: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Something that takes its time, on a connection of its own."""
        with translated(self._connections.place):
            async with await self.made() as connection:
                return await act(connection)

    @asynccontextmanager
    async def reading(self, tenant: str | None) -> AsyncIterator[Work]:
        """One moment of the store, as one tenant or, with None, as all of them."""
        async with self._working("begin isolation level repeatable read read only", tenant, ()) as work:
            yield work

    @asynccontextmanager
    async def writing(
        self, tenant: str | None, locks: Iterable[str] = (), *, lasting: bool = True, hurried: bool = True
    ) -> AsyncIterator[Work]:
        """A transaction that holds some locks. The clock is read under them: who came later has the later time.

        One that is not hurried may take as long as it takes.
        """
        # Whoever is frozen in the middle would hold up all who wait for the same locks, for as long as that lasts.
        begin = f"begin; set local idle_in_transaction_session_timeout = {_FROZEN_MS}"
        if not lasting:
            begin += "; set local synchronous_commit = off"
        elif self._weak_commits:
            begin += "; set local synchronous_commit = on"
        async with self._working(begin, tenant, locks) as work:
            if not hurried:
                self._connections.leave_alone(work.connection)
            yield work

    @asynccontextmanager
    async def _working(self, begin: str, tenant: str | None, locks: Iterable[str]) -> AsyncIterator[Work]:
        setting = (
            sql.SQL("set local recollect.everyone = 'on'")
            if tenant is None
            else sql.SQL("set local recollect.tenant = {}").format(kept(tenant))
        )
        start = sql.SQL("; ").join([sql.SQL(begin), setting, *map(sql.SQL, locks), sql.SQL(_NOW)])
        with translated(self._connections.place):
            connection, server_now = await self._begun(start)
            try:
                yield Work(connection, self._clock() if self._clock else from_micros(server_now), tenant)
                await connection.execute("commit", prepare=False)
            except BaseException:
                await _undone(connection)
                raise
            finally:
                await self._connections.give_back(connection)

    async def _begun(self, start: sql.Composed) -> tuple[AsyncConnection[Any], int]:
        """A connection on which the transaction has begun.

        One that died while it lay idle is found out here, before anything was done, so another can be tried.
        """
        before = calls_off()
        try:
            return await self._tried(start)
        except psycopg.OperationalError:
            if calls_off() > before:
                raise
            await self._connections.forget()
            return await self._tried(start)

    async def _tried(self, start: sql.Composed) -> tuple[AsyncConnection[Any], int]:
        connection = await self._connections.take()
        try:
            cursor = await connection.execute(start, prepare=False)
            while cursor.nextset():
                pass
            [now] = await cursor.fetchone() or (0,)
        except BaseException:
            await _undone(connection)
            await self._connections.give_back(connection)
            raise
        return connection, int(now)


async def _undone(connection: AsyncConnection[Any]) -> None:
    """Back to before the transaction; a connection on which that cannot be said or fails is not used again."""
    try:
        if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            await connection.rollback()
    except psycopg.Error:
        await connection.close()


async def _check(connection: AsyncConnection[Any], place: str) -> bool:
    """Refuse a server that cannot keep our promises; whether its commits have to be made to last."""
    row = await (await connection.execute(_ABOUT)).fetchone()
    assert row is not None
    number, version, encoding, commits, *careless, throwaway, vector = row
    if number < _OLDEST_SERVER:
        raise Unsupported(f"{place} is PostgreSQL {version}; Recollect needs {_OLDEST_SERVER // 10000} or newer")
    if encoding != "UTF8":
        raise Unsupported(f"{place} keeps texts as {encoding}; create a database with: createdb --encoding=UTF8 …")
    if "off" in careless and throwaway != "on":
        setting = ("fsync", "full_page_writes")[careless.index("off")]
        raise Unsupported(
            f"{place} runs with {setting} = off: a power cut can cost the whole database; have an administrator run: "
            f"alter system set {setting} = on; select pg_reload_conf(). Where everything may be lost, in tests say, "
            "allow it: alter database … set recollect.throwaway = on"
        )
    if vector is None:
        vector = await _extended(connection, place)
    if tuple(int(part) for part in vector.split(".")[:2]) < _OLDEST_VECTOR:
        raise Unsupported(
            f"{place} has pgvector {vector}, and Recollect needs 0.8 or newer; have an administrator install it and "
            "run: alter extension vector update"
        )
    return bool(commits == "off")


async def _extended(connection: AsyncConnection[Any], place: str) -> str:
    """The extension's version, after an attempt to add it."""
    try:
        await connection.execute("create extension vector")
    except psycopg.Error as error:
        raise StoreUnavailable(
            f"{place} lacks the extension `vector` ({str(error).splitlines()[0]}); install pgvector on the server, and "
            "have an administrator run in this database: create extension vector"
        ) from error
    row = await (await connection.execute("select extversion from pg_extension where extname = 'vector'")).fetchone()
    assert row is not None
    return str(row[0])
