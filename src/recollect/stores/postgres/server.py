"""One PostgreSQL server: its pool of connections, and the transactions that all work is done in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from pgvector.psycopg import register_vector_async
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool

from recollect.clock import Clock, from_micros
from recollect.errors import StoreClosed, StoreUnavailable, Unsupported
from recollect.stores.postgres.faults import CLOSED, not_opened, translated
from recollect.stores.postgres.migrations import migrate
from recollect.stores.postgres.text import kept

_OLDEST_SERVER = 140000
_OLDEST_VECTOR = (0, 7)
_CONNECT_SECONDS = 10
_POOL_SECONDS = 30.0
_PATIENCE_SECONDS = 120.0

_ABOUT = """
    select current_setting('server_version_num')::int, current_setting('server_version'),
        current_setting('server_encoding'), current_setting('synchronous_commit'),
        (select extversion from pg_extension where extname = 'vector')
"""
_NOW = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"

Values = dict[str, Any]


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

    async def about(self, tenant: str) -> None:
        """Go on with another tenant: rows of all others are out of sight."""
        if tenant != self.tenant:
            await self.connection.execute(
                "select set_config('recollect.tenant', %s, true), set_config('recollect.everyone', '', true)",
                (kept(tenant),),
            )
            self.tenant = tenant


class Server:
    """Connections to one database. Works through a pooler that gives out connections by the transaction."""

    def __init__(self, place: str, pool: AsyncConnectionPool[AsyncConnection[Any]], clock: Clock | None) -> None:
        self.place = place
        self._pool = pool
        self._clock = clock
        self._closed = False
        self._weak_commits = False

    @classmethod
    async def open(cls, url: str, *, connections: int, clock: Clock | None) -> Server:
        place, user = _named(url)
        try:
            first = await AsyncConnection.connect(_address(url), autocommit=True, prepare_threshold=None)
        except (psycopg.Error, TimeoutError) as error:
            raise not_opened(error, place, user) from error
        with translated(place):
            async with first:
                weak = await _check(first, place)
                await migrate(first, place)
            pool = AsyncConnectionPool(
                _address(url),
                min_size=1,
                max_size=connections,
                timeout=_POOL_SECONDS,
                # Statements that the server remembers would be remembered by another connection behind a pooler.
                kwargs={"autocommit": True, "prepare_threshold": None},
                configure=register_vector_async,
                open=False,
            )
            await pool.open(wait=True, timeout=_POOL_SECONDS)
        server = cls(place, pool, clock)
        server._weak_commits = weak
        return server

    async def close(self) -> None:
        self._closed = True
        await self._pool.close()

    @asynccontextmanager
    async def reading(self, tenant: str | None) -> AsyncIterator[Work]:
        """One moment of the store, as one tenant or, with None, as all of them."""
        async with self._working("begin isolation level repeatable read read only", tenant, ()) as work:
            yield work

    @asynccontextmanager
    async def writing(
        self, tenant: str | None, locks: Iterable[str] = (), *, lasting: bool = True
    ) -> AsyncIterator[Work]:
        """A transaction that holds some locks. The clock is read under them: who came later has the later time."""
        begin = "begin"
        if not lasting:
            begin += "; set local synchronous_commit = off"
        elif self._weak_commits:
            begin += "; set local synchronous_commit = on"
        async with self._working(begin, tenant, locks) as work:
            yield work

    @asynccontextmanager
    async def _working(self, begin: str, tenant: str | None, locks: Iterable[str]) -> AsyncIterator[Work]:
        if self._closed:
            raise StoreClosed(CLOSED)
        setting = (
            sql.SQL("set local recollect.everyone = 'on'")
            if tenant is None
            else sql.SQL("set local recollect.tenant = {}").format(kept(tenant))
        )
        start = sql.SQL("; ").join([sql.SQL(begin), setting, *map(sql.SQL, locks), sql.SQL(_NOW)])
        with translated(self.place):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                connection, server_now = await self._begun(start)
                try:
                    yield Work(connection, self._clock() if self._clock else from_micros(server_now), tenant)
                    await connection.execute("commit")
                except BaseException:
                    if not connection.closed:
                        await _undone(connection)
                    raise
                finally:
                    await self._pool.putconn(connection)

    async def _begun(self, start: sql.Composed) -> tuple[AsyncConnection[Any], int]:
        """A connection on which the transaction has begun.

        One that died while it lay in the pool is found out here, before anything was done, so another can be tried.
        """
        tries = self._pool.max_size + 1
        while True:
            connection = await self._pool.getconn()
            try:
                cursor = await connection.execute(start)
                while cursor.nextset():
                    pass
                [now] = await cursor.fetchone() or (0,)
            except BaseException as error:
                died = connection.closed
                if not died:
                    await _undone(connection)
                await self._pool.putconn(connection)
                tries -= 1
                if not (died and tries and isinstance(error, psycopg.OperationalError)):
                    raise
            else:
                return connection, int(now)


async def _undone(connection: AsyncConnection[Any]) -> None:
    """Back to before the transaction; a connection on which even that fails is not used again."""
    try:
        await connection.rollback()
    except psycopg.Error:
        await connection.close()


def _address(url: str) -> str:
    return make_conninfo(url, connect_timeout=conninfo_to_dict(url).get("connect_timeout") or _CONNECT_SECONDS)


def _named(url: str) -> tuple[str, str]:
    """The server and database as they may be shown to anybody, and the user."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise not_opened(error, "this URL", "") from error
    host, port = parts.get("host") or "localhost", parts.get("port") or "5432"
    return f"postgresql://{host}:{port}/{parts.get('dbname') or ''}", str(parts.get("user") or "")


async def _check(connection: AsyncConnection[Any], place: str) -> bool:
    """Refuse a server that cannot keep our promises; whether its commits have to be made to last."""
    row = await (await connection.execute(_ABOUT)).fetchone()
    assert row is not None
    number, version, encoding, commits, vector = row
    if number < _OLDEST_SERVER:
        raise Unsupported(f"{place} is PostgreSQL {version}; Recollect needs {_OLDEST_SERVER // 10000} or newer")
    if encoding != "UTF8":
        raise Unsupported(f"{place} keeps texts as {encoding}; create a database with: createdb --encoding=UTF8 …")
    if vector is None:
        vector = await _extended(connection, place)
    if tuple(int(part) for part in vector.split(".")[:2]) < _OLDEST_VECTOR:
        raise Unsupported(
            f"{place} has pgvector {vector}, and Recollect needs 0.7 or newer; have an administrator install it and "
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
