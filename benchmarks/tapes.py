"""What a call sends to an engine, kept on tape, and sent once more to copies of the database without us.

This is how the engine's own cost of our work is told from ours: the same statements with the same values, in the same
transactions, at once where they were at once and one after the other where one was waited for. Only what we do before,
between and after them is missing. There are two copies: one is sent to as the driver does it, the other as we do. Both
get everything that we wrote, what is done behind a call included, so a statement finds there what it found here; how
many rows each one found is compared, and differences are counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import resources
from itertools import count, pairwise
from typing import Any, NamedTuple, Protocol

import psycopg
import redis.asyncio
from pgvector.psycopg import register_vector_async
from psycopg import sql
from psycopg.adapt import Loader
from psycopg.pq import Format, TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

import recollect.stores.chroma.collections as chroma_side
import recollect.stores.postgres.connections as connections_side
import recollect.stores.postgres.server as server_side
import recollect.stores.redis.server as redis_side
from recollect.stores.postgres.journey import Rows, Statement, journey, numbered, remember
from recollect.stores.redis.lines import Lines

_order = count()


class Sent(NamedTuple):
    """Statements of one journey, or a command, and what they found: counted only when it is compared."""

    what: Any
    found: Any


@dataclass(slots=True)
class Job:
    """What one line carried for one caller: a transaction, or a command."""

    engine: str
    begun: int = field(default_factory=lambda: next(_order))
    ended: int = -1
    sent: list[Sent] = field(default_factory=list)

    def end(self) -> None:
        self.ended = next(_order)


@dataclass(slots=True)
class Tape:
    """All jobs of one call, and the seconds it spent in an engine whose driver blocks."""

    jobs: list[Job] = field(default_factory=list)
    blocked: float = 0.0
    closed: bool = False
    begun: float = field(default_factory=time.perf_counter)

    def was_blocked(self, since: float) -> None:
        """Count the time since then, or since this began: it may have had to wait for another's request."""
        self.blocked += time.perf_counter() - max(since, self.begun)


_behind = Tape()
_current: ContextVar[Tape] = ContextVar("tape")


def _tape() -> Tape:
    tape, task = _current.get(_behind), asyncio.current_task()
    # The index of turns follows a call before it is over; nobody waits for it.
    is_behind = tape.closed or (task is not None and task.get_name() == "recollect-index")
    return _behind if is_behind else tape


@contextmanager
def recorded() -> Iterator[Tape]:
    """What is sent until the end of this call; what its tasks send later is `behind` it."""
    tape = Tape()
    token = _current.set(tape)
    try:
        yield tape
    finally:
        tape.closed = True
        _current.reset(token)


def behind() -> Tape:
    """What was sent behind everybody's back since this was last asked, and is over."""
    over = [job for job in _behind.jobs if job.ended > -1]
    _behind.jobs[:] = [job for job in _behind.jobs if job.ended < 0]
    return Tape(over, closed=True)


_open: dict[Any, Job] = {}


async def _journey(connection: Any, statements: Sequence[Statement]) -> list[Rows]:
    """As ours, and it is kept: a job is a transaction, which one journey may be by itself."""
    if connection not in _open:
        _open[connection] = Job("postgres")
        _tape().jobs.append(_open[connection])
    found = await journey(connection, statements)
    _open[connection].sent.append(Sent(statements, found))
    if connection.pgconn.transaction_status == TransactionStatus.IDLE:
        _open.pop(connection).end()
    return found


class _Postgres(psycopg.AsyncConnection[Any]):
    """A connection that keeps what it is given beside journeys: settings that are no statements with values."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        found = await super().execute(query, params, **options)
        if self in _open:
            _open[self].sent.append(Sent(query.as_string(self) if isinstance(query, sql.Composable) else query, None))
        return found

    async def rollback(self) -> None:
        await super().rollback()
        if self in _open:
            _open[self].sent.append(Sent("rollback", None))
            _open.pop(self).end()


class _Redis(redis.asyncio.Redis):
    """A client that keeps what it is given."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        return await _kept(args, super().execute_command(*args, **options))


class _Lines(Lines):
    """The same for lines that lead past the client."""

    async def ask(self, command: str, *parts: bytes) -> Any:
        return await _kept((command, *parts), super().ask(command, *parts))


async def _kept(command: tuple[Any, ...], asking: Awaitable[Any]) -> Any:
    job = Job("redis")
    answer = await asking
    job.sent.append(Sent(command, answer))
    job.end()
    _tape().jobs.append(job)
    return answer


def _size(answer: Any) -> int:
    return sum(map(_size, answer)) if isinstance(answer, list) else 1


class _Timed:
    """A collection of Chroma whose calls are timed where they are made: one thread makes them, one after another."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._collection, name)

        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                _chroma[0].was_blocked(began)

        return timed


# The thread of a store outlives the calls that it works for, and knows of none of them.
_chroma = [_behind]


@contextmanager
def blocking(tape: Tape) -> Iterator[None]:
    """Have Chroma's time counted for one call, while no other is under way."""
    _chroma[0] = tape
    try:
        yield
    finally:
        _chroma[0] = _behind


def record() -> None:
    """From now on stores that are opened keep what they send."""
    connections_side.AsyncConnection = _Postgres  # type: ignore[misc]
    server_side.journey = _journey
    redis_side.Redis = _Redis  # type: ignore[misc]
    redis_side.Lines = _Lines  # type: ignore[misc]
    for name in ("_found", "_made"):
        setattr(chroma_side.Collections, name, _wrapped(getattr(chroma_side.Collections, name)))


def _wrapped(finding: Callable[..., Any]) -> Callable[..., Any]:
    def found(*args: Any) -> Any:
        began = time.perf_counter()
        collection = finding(*args)
        _chroma[0].was_blocked(began)
        return None if collection is None else _Timed(collection)

    return found


class Player(Protocol):
    """Sends the jobs of one engine again."""

    async def play(self, job: Job) -> int: ...

    async def close(self) -> None: ...


class Twin:
    """The copies that tapes are played to."""

    def __init__(self, **players: Player) -> None:
        self._players = players
        self.differences = 0
        self.played = 0

    async def play(self, tape: Tape) -> None:
        """Each job as soon as all are done that were done when it was begun."""
        jobs = sorted(tape.jobs, key=lambda job: job.begun)
        if all(one.ended < later.begun for one, later in pairwise(jobs)):
            for job in jobs:
                await self._job(job)
            return
        ends = [asyncio.Event() for _ in jobs]

        async def played(at: int, job: Job) -> None:
            for other, end in zip(jobs[:at], ends, strict=False):
                if other.ended < job.begun:
                    await end.wait()
            await self._job(job)
            ends[at].set()

        await asyncio.gather(*(played(at, job) for at, job in enumerate(jobs)))

    async def _job(self, job: Job) -> None:
        if job.engine in self._players:
            self.differences += await self._players[job.engine].play(job)
            self.played += len(job.sent)

    async def close(self) -> None:
        for player in self._players.values():
            await player.close()


class _AsSent(Loader):
    """Vectors are not taken apart for nothing here either."""

    format = Format.BINARY

    def load(self, data: Any) -> bytes:
        return bytes(data)


class PostgresPlayer:
    """psycopg's connections, set as ours are, so that the server does the same for both.

    Statements go by the driver's own cursors, one after the other, and by those of them that are quickest: others read
    every long statement anew, and in its pipeline all of them take longer. With `journeys` they are sent as we do it.
    """

    def __init__(self, idle: asyncio.Queue[psycopg.AsyncConnection[Any]], *, journeys: bool) -> None:
        self._idle = idle
        self._again = _in_journeys if journeys else _one_by_one

    @classmethod
    async def open(cls, url: str, connections: int, *, journeys: bool) -> PostgresPlayer:
        idle: asyncio.LifoQueue[psycopg.AsyncConnection[Any]] = asyncio.LifoQueue()
        for _ in range(connections):
            connection = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=None)
            await register_vector_async(connection)
            connection.adapters.register_loader("halfvec", _AsSent)
            connection.adapters.register_dumper(int, Int8Dumper)
            connection.adapters.register_dumper(int, Int8BinaryDumper)
            await connection.execute("set plan_cache_mode = force_generic_plan")
            if journeys:
                remember(connection)
            else:
                connection.prepare_threshold = 0
            idle.put_nowait(connection)
        return cls(idle, journeys=journeys)

    async def play(self, job: Job) -> int:
        connection = await self._idle.get()
        try:
            return sum([await self._again(connection, sent) for sent in job.sent])
        finally:
            self._idle.put_nowait(connection)

    async def close(self) -> None:
        while not self._idle.empty():
            await self._idle.get_nowait().close()


async def _in_journeys(connection: psycopg.AsyncConnection[Any], sent: Sent) -> int:
    """Send statements together; how many found another number of rows than they did before."""
    if isinstance(sent.what, str):
        await connection.execute(sent.what, prepare=False)
        return 0
    answers = await journey(connection, sent.what)
    return sum(len(rows) != len(before) for rows, before in zip(answers, sent.found, strict=True))


async def _one_by_one(connection: psycopg.AsyncConnection[Any], sent: Sent) -> int:
    """The same, each by a cursor of its own; what was one transaction because it was sent together needs ends then."""
    if isinstance(sent.what, str):
        await connection.execute(sent.what, prepare=False)
        return 0
    begins = sent.what[0].text.startswith("begin")
    if not begins and connection.info.transaction_status == TransactionStatus.IDLE:
        async with connection.transaction():
            return await _each(connection, sent)
    return await _each(connection, sent)


async def _each(connection: psycopg.AsyncConnection[Any], sent: Sent) -> int:
    differences = 0
    for (text, values), before in zip(sent.what, sent.found, strict=True):
        plain, names = numbered(text)
        cursor = psycopg.AsyncRawCursor(connection)
        await cursor.execute(plain, [values[name] for name in names], binary=True, prepare=bool(names))
        rows = [] if cursor.description is None else await cursor.fetchall()
        differences += len(rows) != len(before)
    return differences


class RedisPlayer:
    """redis-py's client as it comes; with `lines`, past it, as we do."""

    def __init__(self, client: redis.asyncio.Redis, lines: Lines | None) -> None:
        self._client = client
        self._ask = client.execute_command if lines is None else lines.ask
        self._lines = lines

    @classmethod
    async def open(cls, url: str, connections: int, *, lines: bool) -> RedisPlayer:
        client = redis.asyncio.Redis.from_url(url)
        for file in resources.files("recollect.stores.redis").iterdir():
            if file.name.endswith(".lua"):
                await client.script_load(file.read_text("utf-8"))
        past_it = redis.asyncio.ConnectionPool.from_url(url, socket_timeout=None)
        return cls(client, Lines(past_it, connections, 60.0) if lines else None)

    async def play(self, job: Job) -> int:
        [(command, found)] = job.sent
        return int(_size(await self._ask(*command)) != _size(found))

    async def close(self) -> None:
        await self._client.aclose()
        if self._lines is not None:
            await self._lines.close()
