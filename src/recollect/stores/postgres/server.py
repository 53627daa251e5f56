"""One PostgreSQL server, and the transactions on it that all work is done in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.pq import TransactionStatus

from recollect.clock import Clock, from_micros, to_micros
from recollect.errors import StoreUnavailable, Unsupported
from recollect.stores.calls import calls_off
from recollect.stores.postgres.connections import Connections
from recollect.stores.postgres.faults import translated
from recollect.stores.postgres.journey import Rows, Statement, Values, journey, remembers
from recollect.stores.postgres.migrations import migrate
from recollect.stores.postgres.text import kept

_OLDEST_SERVER = 140000
_OLDEST_VECTOR = (0, 8)
# Who writes may have to wait for others, and for a large batch; one statement that only reads has an answer by then.
_PATIENCE_SECONDS = 60.0
_READING_SECONDS = 15.0
_FROZEN_MS = 30_000

_ABOUT = """
    select current_setting('server_version_num')::int, current_setting('server_version'),
        current_setting('server_encoding'), current_setting('synchronous_commit'), current_setting('fsync'),
        current_setting('full_page_writes'), coalesce(current_setting('recollect.throwaway', true), ''),
        (select extversion from pg_extension where extname = 'vector')
"""
_NOW = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
_AS = "select set_config('recollect.tenant', %(tenant)s, true), set_config('recollect.everyone', %(everyone)s, true)"
_SEE = f"{_AS}, {_NOW}"
# Locks are taken in the order they are given in. What is selected beside their count comes after them: who came later
# has the later time. Whoever is frozen in the middle would hold up all who wait for the same locks, for as long as that
# lasts: the server ends it.
_HOLD = f"""
    {_AS}, set_config('idle_in_transaction_session_timeout', %(frozen)s, true),
        set_config('synchronous_commit', coalesce(%(commits)s, current_setting('synchronous_commit')), true),
        count(case when shared then pg_advisory_xact_lock_shared(lock) else pg_advisory_xact_lock(lock) end), {_NOW}
    from unnest(%(locks)s::bigint[], %(shared)s::boolean[]) as held (lock, shared)
"""

T = TypeVar("T")


class Lock(NamedTuple):
    """By its number, for oneself or with all others who share it."""

    number: int
    shared: bool = False


NOW = f"(select coalesce(%(now)s::bigint, {_NOW}))"
"""The moment by which something has expired, in microseconds: one that is given, or the server's own."""

_REPLANNED = Statement("set local plan_cache_mode = force_custom_plan", {})
_BEGIN = Statement("begin", {})
_BEGIN_READING = Statement("begin isolation level repeatable read read only", {})
_COMMIT = Statement("commit", {})


@dataclass(slots=True)
class Work:
    """A transaction under way, about one tenant at a time."""

    connection: AsyncConnection[Any]
    now: datetime
    tenant: str | None
    first: Rows
    """The rows of the statement that it was begun with."""
    over: bool = False

    async def rows(self, statement: str, values: Values) -> Rows:
        [found] = await journey(self.connection, [Statement(statement, values)])
        return found

    async def row(self, statement: str, values: Values) -> tuple[Any, ...] | None:
        found = await self.rows(statement, values)
        return found[0] if found else None

    async def run(self, statement: str, values: Values) -> None:
        await self.rows(statement, values)

    async def last(self, statement: str, values: Values) -> Rows:
        """The rows of a statement after which nothing is asked any more: the end goes with it."""
        return (await self.end([Statement(statement, values)]))[0]

    async def end(self, statements: Sequence[Statement]) -> list[Rows]:
        """The rows of the last statements; the transaction is over then."""
        found = await journey(self.connection, [*statements, _COMMIT])
        self.over = True
        return found

    def replanned(self) -> list[Statement]:
        """Has the statements after it planned anew, as those have to be that change rows: see the policies."""
        return [_REPLANNED] if remembers(self.connection) else []

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
            await self.rows(*seen_as(tenant))
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

    @property
    def place(self) -> str:
        """What it is called in an error, without any password."""
        return self._connections.place

    async def close(self) -> None:
        await self._connections.close()

    async def made(self) -> AsyncConnection[Any]:
        """A connection of one's own, for what no transaction can hold."""
        return await self._connections.made()

    async def alone(self, act: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Something that takes its time, on a connection of its own."""
        with translated(self.place):
            async with await self.made() as connection:
                return await act(connection)

    def reading(self, tenant: str | None, first: Statement | None = None) -> Transaction:
        """One moment of the store, as one tenant or, with None, as all of them."""
        begin = (_BEGIN_READING, Statement(_SEE, _seen_as(tenant)))
        return Transaction(self, begin if first is None else (*begin, first), tenant)

    @property
    def moment(self) -> int | None:
        """What `NOW` is given: the time of a clock of one's own, if there is one."""
        return to_micros(self._clock()) if self._clock else None

    async def read(self, tenant: str, statement: str, values: Values) -> Rows:
        """The rows of one statement, by one journey to the server and back.

        It needs no beginning and no end: what is sent together is one transaction, and a statement sees one moment.
        """
        with translated(self.place):
            start = (Statement(_SEE, _seen_as(tenant)), Statement(statement, values))
            connection, answers = await self._begun(start, _READING_SECONDS)
            await self._connections.give_back(connection)
        return answers[1]

    def writing(
        self,
        tenant: str | None,
        locks: Sequence[Lock] = (),
        first: Statement | None = None,
        *,
        lasting: bool = True,
        hurried: bool = True,
    ) -> Transaction:
        """A transaction that holds some locks. The clock is read under them: who came later has the later time.

        One that is not hurried may take as long as it takes.
        """
        commits = None if lasting and not self._weak_commits else "on" if lasting else "off"
        held = {"locks": [lock.number for lock in locks], "shared": [lock.shared for lock in locks]}
        more = {"frozen": str(_FROZEN_MS), "commits": commits, **held}
        begin = (_BEGIN, Statement(_HOLD, _seen_as(tenant) | more))
        return Transaction(self, begin if first is None else (*begin, first), tenant, hurried=hurried)

    async def begun(self, start: Sequence[Statement], tenant: str | None, *, hurried: bool) -> Work:
        """Work that was begun with some statements; whoever asks for it ends it, too."""
        connection, answers = await self._begun(start)
        if not hurried:
            self._connections.leave_alone(connection)
        now = self._clock() if self._clock else from_micros(answers[1][0][-1])
        return Work(connection, now, tenant, answers[-1])

    async def ended(self, work: Work, *, failed: bool) -> None:
        """Commit what was done, or undo it, and keep the connection for the next one."""
        try:
            if failed:
                await _undone(work.connection)
            elif not work.over:
                await _committed(work)
        finally:
            await self._connections.give_back(work.connection)

    async def _begun(
        self, start: Sequence[Statement], patience: float | None = None
    ) -> tuple[AsyncConnection[Any], list[Rows]]:
        """A connection on which the transaction has begun, and the answers to the statements that it began with.

        One that died while it lay idle is found out here, before anything was done, so another can be tried.
        """
        before = calls_off()
        try:
            return await self._tried(start, patience)
        except psycopg.OperationalError:
            if calls_off() > before:
                raise
            await self._connections.forget()
            return await self._tried(start, patience)

    async def _tried(
        self, start: Sequence[Statement], patience: float | None
    ) -> tuple[AsyncConnection[Any], list[Rows]]:
        connection = await self._connections.take(patience)
        try:
            answers = await journey(connection, start)
        except BaseException:
            await _undone(connection)
            await self._connections.give_back(connection)
            raise
        return connection, answers


class Transaction:
    """Work from its first statements to its end, with the driver's errors as ours: a class, since every call has some.

    A generator for it, and another one for the errors, would take as long as some statements do.
    """

    def __init__(self, server: Server, start: Sequence[Statement], tenant: str | None, *, hurried: bool = True) -> None:
        self._server = server
        self._start = start
        self._tenant = tenant
        self._hurried = hurried
        self._translated = translated(server.place)
        self._work: Work | None = None

    async def __aenter__(self) -> Work:
        with self._translated:
            self._work = await self._server.begun(self._start, self._tenant, hurried=self._hurried)
        return self._work

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._work is not None
        with self._translated:
            await self._server.ended(self._work, failed=error is not None)
        self._translated.tell(error)


def seen_as(tenant: str) -> Statement:
    """Has the statements after it see one tenant, and nobody else."""
    return Statement(_AS, _seen_as(tenant))


def _seen_as(tenant: str | None) -> Values:
    return {"tenant": "", "everyone": "on"} if tenant is None else {"tenant": kept(tenant), "everyone": ""}


async def _committed(work: Work) -> None:
    try:
        await work.end([])
    except BaseException:
        await _undone(work.connection)
        raise


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
