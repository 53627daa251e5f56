"""Transactions on a PostgreSQL server: tenant isolation, advisory locks and the statements of a batch."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import psycopg

from recollect.clock import Clock, from_micros, to_micros
from recollect.errors import StoreUnavailable, Unsupported
from recollect.stores.base import count_cancellations
from recollect.stores.postgres import codec, connections
from recollect.stores.postgres.connections import PostgresConnection, PostgresPool, Rows, SqlParams, SqlStatement
from recollect.stores.postgres.migrations import migrate
from recollect.stores.writes import DropTask, Embed, Put, TaskWrite, Write
from recollect.types import Space

_MIN_SERVER_VERSION = 140000
_MIN_PGVECTOR_VERSION = (0, 8)
# A write may wait for locks and carry a large batch; a read of one statement does neither.
_TRANSACTION_TIMEOUT_SECONDS = 60.0
_READ_TIMEOUT_SECONDS = 15.0
_IDLE_TIMEOUT_MS = 30_000

_SERVER_INFO = """
    select current_setting('server_version_num')::int, current_setting('server_version'),
        current_setting('server_encoding'), current_setting('synchronous_commit'), current_setting('fsync'),
        current_setting('full_page_writes'), coalesce(current_setting('recollect.throwaway', true), ''),
        (select extversion from pg_extension where extname = 'vector')
"""
_SET_TENANT = (
    "select set_config('recollect.tenant', %(tenant)s, true), set_config('recollect.everyone', %(everyone)s, true)"
)
# Locks are taken in the order of the array. The clock is selected after them, so a later writer has a later time. A
# client that freezes while it holds locks is disconnected by the server, since all others would wait for it.
_TAKE_LOCKS = f"""
    {_SET_TENANT}, set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, true),
        set_config('synchronous_commit', coalesce(%(commits)s, current_setting('synchronous_commit')), true),
        count(case when shared then pg_advisory_xact_lock_shared(lock) else pg_advisory_xact_lock(lock) end),
        {codec.CLOCK_MICROS_SQL}
    from unnest(%(locks)s::bigint[], %(shared)s::boolean[]) as held (lock, shared)
"""

# Updates and deletes of items, terms and vectors need it. Under a generic plan with a row policy, an update that waited
# for another of the same row does not find the row any more (PostgreSQL 18.4).
FORCE_REPLAN = SqlStatement("set local plan_cache_mode = force_custom_plan", {})
_NEEDS_REPLAN = re.compile(r"\s*(update|delete from) recollect\.(records|postings|vectors)\b")
_BEGIN = SqlStatement("begin", {})
_BEGIN_READ_ONLY = SqlStatement("begin isolation level repeatable read read only", {})
_COMMIT = SqlStatement("commit", {})


@dataclass(slots=True)
class PostgresTransaction:
    """An open transaction. It sees the rows of one tenant at a time, or with None those of all tenants."""

    connection: PostgresConnection
    now: datetime
    tenant: str | None
    first_results: Sequence[Rows]
    """The rows of each statement that was sent with the begin."""
    is_over: bool = False

    async def fetch_rows(self, statement: str, values: SqlParams | None = None, *before: SqlStatement) -> Rows:
        """Return the rows of a statement that is run after others, in one round trip."""
        return (await self.connection.run_pipeline([*before, SqlStatement(statement, values or {})]))[-1]

    async def execute(self, statement: str, values: SqlParams | None = None) -> None:
        await self.fetch_rows(statement, values)

    async def commit(self, plan: StatementPlan | None = None) -> None:
        """Run the statements of a batch and commit, in one round trip."""
        await self.connection.run_pipeline([*(plan.build_statements(self) if plan else ()), _COMMIT])
        self.is_over = True

    async def switch_tenant(self, tenant: str) -> None:
        """See the rows of another tenant, and of no other."""
        if tenant != self.tenant:
            await self.execute(*_build_tenant_statement(tenant))
            self.tenant = tenant


_Transaction = AbstractAsyncContextManager[PostgresTransaction]
"""Commits at the end of the `async with` block, or rolls back after an exception."""


class PostgresServer(PostgresPool):
    """A database that meets our requirements. It may be behind a transaction pooler."""

    _clock: Clock | None = None
    _has_weak_commits = False

    @classmethod
    async def open(cls, url: str, *, connections: int, clock: Clock | None, migrates: bool = True) -> PostgresServer:
        """Check and migrate the database. Raise `Unsupported` if it cannot keep what it acknowledges."""
        server = cls(url, connections)
        server._clock = clock
        async with server.open_connection() as connection:
            server._has_weak_commits = await _check_server(connection, server.display_url)
            await migrate(connection, server.display_url, migrates=migrates)
        return server

    @asynccontextmanager
    async def open_connection(self) -> AsyncIterator[PostgresConnection]:
        """Yield a connection outside of the pool, for any time and for statements that no transaction may contain."""
        with connections.translate_errors(self.display_url):
            async with await self.connect() as connection:
                yield connection

    async def read(
        self, tenant: str | None, statement: str, values: SqlParams | None = None, *before: SqlStatement
    ) -> Rows:
        """Return the rows of a statement that is run after others, in one round trip, for one tenant or for all.

        Statements that are sent together without a begin are one transaction.
        """
        statements = [_build_tenant_statement(tenant), *before, SqlStatement(statement, values or {})]
        with connections.translate_errors(self.display_url):
            connection, results = await self._begin(statements, _READ_TIMEOUT_SECONDS)
            await self.release(connection)
        return results[-1]

    async def read_space(self, space: Space, statement: str, **values: Any) -> Rows:
        """Return the rows of a statement with `SPACE_ID_SQL` and `NOW_MICROS_SQL`."""
        now = to_micros(self._clock()) if self._clock else None
        return await self.read(space.tenant, statement, {**codec.build_space_params(space), "now": now, **values})

    def begin_read(self, tenant: str | None) -> _Transaction:
        """Return a read-only transaction on one snapshot, for one tenant or with None for all."""
        return self._open_transaction([_BEGIN_READ_ONLY, _build_tenant_statement(tenant)], tenant)

    def begin_write(
        self, tenant: str | None, locks: AdvisoryLocks | None = None, *first: SqlStatement, durable: bool = True
    ) -> _Transaction:
        """Return a transaction that takes locks and then reads the clock, so a later writer has a later time.

        It runs the first statements together with its begin. If it is not durable, a crash of the server may undo it.
        """
        held = locks or {}
        params = {
            **_build_tenant_params(tenant),
            "idle_timeout": str(_IDLE_TIMEOUT_MS),
            "commits": "off" if not durable else "on" if self._has_weak_commits else None,
            "locks": list(held),
            "shared": list(held.values()),
        }
        return self._open_transaction([_BEGIN, SqlStatement(_TAKE_LOCKS, params), *first], tenant)

    @asynccontextmanager
    async def _open_transaction(
        self, statements: Sequence[SqlStatement], tenant: str | None
    ) -> AsyncIterator[PostgresTransaction]:
        with connections.translate_errors(self.display_url):
            connection, results = await self._begin(statements, _TRANSACTION_TIMEOUT_SECONDS)
            try:
                now = self._clock() if self._clock else from_micros(results[1][0][-1])
                work = PostgresTransaction(connection, now, tenant, results[2:])
                yield work
                if not work.is_over:
                    await work.commit()
            finally:
                await self.release(connection)

    async def _begin(self, statements: Sequence[SqlStatement], seconds: float) -> tuple[PostgresConnection, list[Rows]]:
        """Return a connection on which the first statements were run, and their rows.

        Retry once, since a pooled connection may have died while it was idle. Nothing was written by then.
        """
        cancellations, is_retry = count_cancellations(), False
        while True:
            connection = await self.acquire(seconds)
            try:
                return connection, await connection.run_pipeline(statements)
            except BaseException as error:
                await self.release(connection)
                is_lost = isinstance(error, psycopg.OperationalError) and count_cancellations() == cancellations
                if is_retry or not is_lost:
                    raise
            await self.close_idle()
            is_retry = True


def _build_tenant_statement(tenant: str | None) -> SqlStatement:
    """Return the statement after which the transaction sees one tenant or all of them. Its last column is the time."""
    return SqlStatement(f"{_SET_TENANT}, {codec.CLOCK_MICROS_SQL}", _build_tenant_params(tenant))


def _build_tenant_params(tenant: str | None) -> SqlParams:
    return {"tenant": "", "everyone": "on"} if tenant is None else {"tenant": codec.escape_text(tenant), "everyone": ""}


async def _check_server(connection: PostgresConnection, display_url: str) -> bool:
    """Raise `Unsupported` for a server that does not meet our requirements.

    Return whether its default is not to wait for the disk at commit.
    """
    [row] = await connection.fetch_rows(_SERVER_INFO)
    number, version, encoding, commits, *durability, throwaway, pgvector = row
    problem = ""
    if number < _MIN_SERVER_VERSION:
        problem = f"is PostgreSQL {version}; Recollect needs {_MIN_SERVER_VERSION // 10000} or newer"
    elif encoding != "UTF8":
        problem = f"has the encoding {encoding}; create a database with: createdb --encoding=UTF8 …"
    elif "off" in durability and throwaway != "on":
        setting = ("fsync", "full_page_writes")[durability.index("off")]
        problem = (
            f"runs with {setting} = off: a power failure can destroy the database. Have an administrator run: "
            f"alter system set {setting} = on; select pg_reload_conf(). For throwaway data, such as tests, allow it "
            "with: alter database … set recollect.throwaway = on"
        )
    elif pgvector is None:
        try:
            await connection.execute("create extension vector")
        except psycopg.Error as error:
            raise StoreUnavailable(
                f"{display_url} lacks the extension `vector` ({connections.get_first_line(error)}); install pgvector "
                "on the server, and have an administrator run in this database: create extension vector"
            ) from error
        return await _check_server(connection, display_url)
    elif tuple(int(part) for part in pgvector.split(".")[:2]) < _MIN_PGVECTOR_VERSION:
        advice = "Have an administrator install it and run: alter extension vector update"
        problem = f"has pgvector {pgvector}; Recollect needs 0.8 or newer. {advice}"
    if problem:
        raise Unsupported(f"{display_url} {problem}")
    return bool(commits == "off")


# Locks. A batch locks all spaces and tasks that it writes to before it reads, in the order of their numbers, so that
# writers never deadlock. LOCK_GROWTH_SQL comes last: its holder only adds what is missing, and waits for no lock.

AdvisoryLocks = dict[int, bool]
"""The numbers of locks, in the order in which they are taken, and for each whether it is shared."""

_MODELS_LOCK = 0x5265636F_00000001
LOCK_MODELS_SQL = f"""
    select set_config('plan_cache_mode', 'force_custom_plan', true), pg_advisory_xact_lock({_MODELS_LOCK})
"""
"""Exclusive for a change of the models; shared by writers of vectors."""
LOCK_GROWTH_SQL = f"select pg_advisory_xact_lock({0x5265636F_00000002})"


def has_vectors(write: Write) -> bool:
    return isinstance(write, Embed) or (isinstance(write, Put) and write.vectors is not None)


def build_locks(writes: Sequence[Write], deleted: Iterable[Space] = ()) -> AdvisoryLocks:
    """Return the locks of a batch. Deleted spaces are locked against all writers, and those of tasks are shared."""
    tasks = [write for write in writes if isinstance(write, TaskWrite)]
    spaces = [*deleted, *(write.space for write in writes if not isinstance(write, TaskWrite))]
    locks = {_compute_lock_number(write.space, ""): True for write in tasks}
    locks |= {_compute_lock_number(write.space, write.task): False for write in tasks}
    locks |= {_compute_lock_number(space, ""): False for space in spaces}
    models = {_MODELS_LOCK: True} if any(map(has_vectors, writes)) else {}
    return models | dict(sorted(locks.items()))


def build_task_locks(space: Space, task: str) -> AdvisoryLocks:
    """Return the locks of a write to one task: its space is shared, so that only its deletion waits."""
    return build_locks([DropTask(space, task)])


@lru_cache(maxsize=1024)
def _compute_lock_number(space: Space, task: str) -> int:
    """Return a hash of 64 bits. Two that collide only wait for each other."""
    name = "\0".join((space.tenant, codec.build_space_handle(space), task))
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "big", signed=True)


class StatementPlan:
    """The statements of a batch, which are sent together, and the models after the writes so far."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.models = codec.PostgresModels()
        self.statements: list[tuple[str, SqlStatement]] = []
        """The statements with their tenants."""

    def build_statements(self, work: PostgresTransaction) -> list[SqlStatement]:
        """Return the statements in their order, with a change of tenant between those of different tenants."""
        built = [FORCE_REPLAN] if any(_NEEDS_REPLAN.match(each.text) for _, each in self.statements) else []
        for tenant, statement in self.statements:
            if tenant != work.tenant:
                built.append(_build_tenant_statement(tenant))
                work.tenant = tenant
            built.append(statement)
        return built


StoredRows = Mapping[str, Sequence[Any]]
"""The stored rows of one space, by handle."""


class SpaceBatch(ABC):
    """The writes of a batch to one space, as statements of a plan."""

    def __init__(self, plan: StatementPlan, space: Space, number: SpaceNumber, rows: StoredRows) -> None:
        self._plan = plan
        self._space = space
        self.number, self._last = number
        self._load(rows)

    @abstractmethod
    def _load(self, rows: StoredRows) -> None:
        """Take the stored rows on which the batch depends."""

    def _add(self, statement: str, **values: Any) -> None:
        values |= {"tenant": codec.escape_text(self._space.tenant), "space": self.number}
        self._plan.statements.append((self._space.tenant, SqlStatement(statement, values)))


SpaceNumber = tuple[int, int]
"""The row id of a space, and the last place or sequence number that it has assigned."""

# A fence of an erased space is never reused: see `_SAVE_LAST_FENCE`. Another transaction may have added the space.
_ADD_SPACE = """
    insert into recollect.spaces as s (tenant, handle, tier, owner, agent, session, next_seq)
    values (
        %(tenant)s, %(handle)s, %(tier)s, %(owner)s, %(agent)s, %(session)s,
        case
            when %(tier)s = 'checkpoints' then
                coalesce((select value::bigint from recollect.meta where name = 'last_fence'), 0)
            else 0
        end
    )
    on conflict (tenant, handle) do update set handle = s.handle returning id, next_seq
"""


async def add_spaces(work: PostgresTransaction, spaces: Mapping[str, Space]) -> dict[str, SpaceNumber]:
    """Add missing spaces under the growth lock, and return their numbers by handle."""
    adding = [SqlStatement(_ADD_SPACE, codec.encode_space(space) | {"handle": name}) for name, space in spaces.items()]
    _, *results = await work.connection.run_pipeline([SqlStatement(LOCK_GROWTH_SQL, {}), *adding])
    return {handle: (id, next_seq) for handle, [(id, next_seq)] in zip(spaces, results, strict=True)}
