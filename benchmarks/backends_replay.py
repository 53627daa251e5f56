"""Recording of the statements that a call sends, and their replay against copies of the database.

The replay separates the cost of the engine from ours: it sends the same statements with the same values in the same
transactions. Statements that ran concurrently run concurrently, and the others in order. Only our work before, between
and after them is missing.

There are two copies: one gets the statements from the driver's cursors, the other from the store's own pipelines. Both
get everything that was written, including background work, so that each statement finds the same rows. The replay
compares the number of rows of each statement and counts the differences.
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

import recollect.stores.chroma.client as chroma_client
import recollect.stores.postgres.connections as postgres_connections
import recollect.stores.redis.client as redis_client
from recollect.stores.postgres.connections import PostgresConnection, Rows, SqlStatement, number_placeholders
from recollect.stores.redis.client import RedisConnections

_next_order = count()


class Sent(NamedTuple):
    """The statements of one pipeline, or one command, with the answers; rows are counted at the comparison."""

    statements: Any
    answers: Any


@dataclass(slots=True)
class Job:
    """A transaction or a command that one connection carried out."""

    engine: str
    start: int = field(default_factory=lambda: next(_next_order))
    end: int = -1
    """Position in the order of starts and ends; -1 until the job ends."""
    sent: list[Sent] = field(default_factory=list)

    def finish(self) -> None:
        self.end = next(_next_order)


@dataclass(slots=True)
class Recording:
    """All jobs of one call, and the seconds that it spent in a driver that blocks."""

    jobs: list[Job] = field(default_factory=list)
    blocked_seconds: float = 0.0
    is_closed: bool = False
    started: float = field(default_factory=time.perf_counter)

    def add_blocked(self, since: float) -> None:
        """Count the time since `since`, or since the start of the recording if that was later."""
        self.blocked_seconds += time.perf_counter() - max(since, self.started)


_background = Recording()
_current: ContextVar[Recording] = ContextVar("recording")


def _get_recording() -> Recording:
    recording, task = _current.get(_background), asyncio.current_task()
    # The turn index starts to work before a call returns, but the call does not wait for it.
    is_background = recording.is_closed or (task is not None and task.get_name() == "recollect-index")
    return _background if is_background else recording


@contextmanager
def record_call() -> Iterator[Recording]:
    """Record what is sent within the block; later statements of its tasks count as background work."""
    recording = Recording()
    token = _current.set(recording)
    try:
        yield recording
    finally:
        recording.is_closed = True
        _current.reset(token)


def take_background() -> Recording:
    """Return the finished jobs of background work since the last call of this function."""
    finished = [job for job in _background.jobs if job.end > -1]
    _background.jobs[:] = [job for job in _background.jobs if job.end < 0]
    return Recording(finished, is_closed=True)


_open_jobs: dict[Any, Job] = {}


class _RecordingConnection(PostgresConnection):
    """Connection that records its statements. A job is a transaction, which may be a single pipeline."""

    async def run_pipeline(self, statements: Sequence[SqlStatement]) -> list[Rows]:
        if self not in _open_jobs:
            _open_jobs[self] = Job("postgres")
            _get_recording().jobs.append(_open_jobs[self])
        answers = await super().run_pipeline(statements)
        _open_jobs[self].sent.append(Sent(statements, answers))
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            _open_jobs.pop(self).finish()
        return answers

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        cursor = await super().execute(query, params, **options)
        if self in _open_jobs:
            text = query.as_string(self) if isinstance(query, sql.Composable) else query
            _open_jobs[self].sent.append(Sent(text, None))
        return cursor

    async def rollback(self) -> None:
        await super().rollback()
        if self in _open_jobs:
            _open_jobs[self].sent.append(Sent("rollback", None))
            _open_jobs.pop(self).finish()


class _RecordingRedis(redis.asyncio.Redis):
    """Client that records its commands."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        return await _record_command(args, super().execute_command(*args, **options))


class _RecordingConnections(RedisConnections):
    """Connections that record the commands which do not pass through the client."""

    async def request(self, *command: Any) -> Any:
        return await _record_command(command, super().request(*command))


async def _record_command(command: tuple[Any, ...], execution: Awaitable[Any]) -> Any:
    job = Job("redis")
    answer = await execution
    job.sent.append(Sent(command, answer))
    job.finish()
    _get_recording().jobs.append(job)
    return answer


def _count_values(answer: Any) -> int:
    return sum(map(_count_values, answer)) if isinstance(answer, list) else 1


class _TimedCollection:
    """Chroma collection with timed calls; the store makes all of them in one thread, one after the other."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._collection, name)

        def run(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                _chroma_recording[0].add_blocked(started)

        return run


# The store's thread outlives the calls, so a context variable does not reach it.
_chroma_recording = [_background]


@contextmanager
def record_blocked_time(recording: Recording) -> Iterator[None]:
    """Count the time in Chroma's driver for one call; no other call may run meanwhile."""
    _chroma_recording[0] = recording
    try:
        yield
    finally:
        _chroma_recording[0] = _background


def install_recorders() -> None:
    """Patch the drivers: stores that are opened from now on record what they send."""
    postgres_connections.PostgresConnection = _RecordingConnection  # type: ignore[misc]
    redis_client.Redis = _RecordingRedis  # type: ignore[misc]
    redis_client.RedisConnections = _RecordingConnections  # type: ignore[misc]
    open_collection = chroma_client.ChromaClient._open_collection
    setattr(chroma_client.ChromaClient, "_open_collection", _time_opening(open_collection))  # noqa: B010


def _time_opening(open_collection: Callable[..., Any]) -> Callable[..., Any]:
    def open_timed(*args: Any) -> Any:
        started = time.perf_counter()
        collection = open_collection(*args)
        _chroma_recording[0].add_blocked(started)
        return None if collection is None else _TimedCollection(collection)

    return open_timed


class Player(Protocol):
    """Sender of the recorded jobs of one engine."""

    async def play(self, job: Job) -> int:
        """Send the job and return the number of statements with another number of rows than before."""

    async def close(self) -> None: ...


class Replica:
    """The copied databases of one backend, with a player for each engine."""

    def __init__(self, **players: Player) -> None:
        self._players = players
        self.differences = 0
        self.statements = 0

    async def play(self, recording: Recording) -> None:
        """Replay each job as soon as all jobs are done that had ended before it started."""
        jobs = sorted(recording.jobs, key=lambda job: job.start)
        if all(job.end < following.start for job, following in pairwise(jobs)):
            for job in jobs:
                await self._play_job(job)
            return
        done = [asyncio.Event() for _ in jobs]

        async def play_in_order(at: int, job: Job) -> None:
            for earlier, event in zip(jobs[:at], done, strict=False):
                if earlier.end < job.start:
                    await event.wait()
            await self._play_job(job)
            done[at].set()

        await asyncio.gather(*(play_in_order(at, job) for at, job in enumerate(jobs)))

    async def _play_job(self, job: Job) -> None:
        if job.engine in self._players:
            self.differences += await self._players[job.engine].play(job)
            self.statements += len(job.sent)

    async def close(self) -> None:
        for player in self._players.values():
            await player.close()


class _RawVectorLoader(Loader):
    """Loader that leaves vectors as bytes, like the store does."""

    format = Format.BINARY

    def load(self, data: Any) -> bytes:
        return bytes(data)


class PostgresPlayer:
    """Player for PostgreSQL, on connections with the store's settings, so that the server does the same work.

    By default each statement has a cursor of its own. Raw cursors are psycopg's fastest: other cursors parse each long
    statement again, and psycopg's pipeline mode is slower. `pipelined` sends statements like the store does.
    """

    def __init__(self, idle: asyncio.Queue[PostgresConnection], *, pipelined: bool) -> None:
        self._idle = idle
        self._send = _send_in_pipeline if pipelined else _send_by_cursor

    @classmethod
    async def open(cls, url: str, connections: int, *, pipelined: bool) -> PostgresPlayer:
        idle: asyncio.LifoQueue[PostgresConnection] = asyncio.LifoQueue()
        for _ in range(connections):
            connection = await PostgresConnection.connect(url, autocommit=True, prepare_threshold=None)
            await register_vector_async(connection)
            connection.adapters.register_loader("halfvec", _RawVectorLoader)
            connection.adapters.register_dumper(int, Int8Dumper)
            connection.adapters.register_dumper(int, Int8BinaryDumper)
            await connection.execute("set plan_cache_mode = force_generic_plan")
            if pipelined:
                connection.prepared = {}
            else:
                connection.prepare_threshold = 0
            idle.put_nowait(connection)
        return cls(idle, pipelined=pipelined)

    async def play(self, job: Job) -> int:
        connection = await self._idle.get()
        try:
            return sum([await self._send(connection, sent) for sent in job.sent])
        finally:
            self._idle.put_nowait(connection)

    async def close(self) -> None:
        while not self._idle.empty():
            await self._idle.get_nowait().close()


async def _send_in_pipeline(connection: PostgresConnection, sent: Sent) -> int:
    """Send all statements in one round trip and return the number of differences."""
    if isinstance(sent.statements, str):
        await connection.execute(sent.statements, prepare=False)
        return 0
    answers = await connection.run_pipeline(sent.statements)
    return sum(len(rows) != len(recorded) for rows, recorded in zip(answers, sent.answers, strict=True))


async def _send_by_cursor(connection: PostgresConnection, sent: Sent) -> int:
    """Send each statement by a cursor of its own and return the number of differences.

    A pipeline without `begin` is a transaction by itself. Its statements get an explicit one here.
    """
    if isinstance(sent.statements, str):
        await connection.execute(sent.statements, prepare=False)
        return 0
    has_begin = sent.statements[0].text.startswith("begin")
    if not has_begin and connection.info.transaction_status == TransactionStatus.IDLE:
        async with connection.transaction():
            return await _send_each(connection, sent)
    return await _send_each(connection, sent)


async def _send_each(connection: PostgresConnection, sent: Sent) -> int:
    differences = 0
    for (text, values), recorded in zip(sent.statements, sent.answers, strict=True):
        numbered, names = number_placeholders(text)
        cursor = psycopg.AsyncRawCursor(connection)
        await cursor.execute(numbered, [values[name] for name in names], binary=True, prepare=bool(names))
        rows = [] if cursor.description is None else await cursor.fetchall()
        differences += len(rows) != len(recorded)
    return differences


class RedisPlayer:
    """Player for Redis, with redis-py's client, or with the connections of the store."""

    def __init__(self, client: redis.asyncio.Redis, connections: RedisConnections | None) -> None:
        self._client = client
        self._connections = connections
        self._request = client.execute_command if connections is None else connections.request

    @classmethod
    async def open(cls, url: str, *, own_connections: bool) -> RedisPlayer:
        client = redis.asyncio.Redis.from_url(url)
        for file in resources.files("recollect.stores.redis").iterdir():
            if file.name.endswith(".lua"):
                await client.script_load(file.read_text("utf-8"))
        pool = redis.asyncio.ConnectionPool.from_url(url, socket_timeout=None)
        return cls(client, RedisConnections(pool, 32, 60.0) if own_connections else None)

    async def play(self, job: Job) -> int:
        [(command, recorded)] = job.sent
        # Replies that redis-py converts come from the client.
        send = self._request if isinstance(recorded, bytes | int | list | None) else self._client.execute_command
        return int(_count_values(await send(*command)) != _count_values(recorded))

    async def close(self) -> None:
        if self._connections is not None:
            await self._connections.close()
        await self._client.aclose()
