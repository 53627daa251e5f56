"""Threads of an open store: one writes in batches, a pool reads; and the base class of the store's parts."""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw

from recollect.clock import Clock
from recollect.errors import RecollectError, StoreClosed, StoreFull
from recollect.stores.sqlite.connection import EncryptionKey, get_file_size, open_connection, translate_errors
from recollect.stores.validation import validate_writes
from recollect.stores.writes import Write, is_durable, is_removal

# Longer than the queries of one recall take together (docs/decisions/006-reader-caches.md).
_HAND_OVER_SECONDS = 0.006
_MAX_JOBS_PER_COMMIT = 256
# A transaction that starts as a reader could not wait for the write lock later.
_BEGIN = "begin immediate"
# Validation takes about 30 µs an item; more items than this are validated in a thread.
_MAX_VALIDATED_INLINE = 64
# Room for some deletions and for the checkpoint after which the log starts again.
_RESERVE_BYTES = 1 << 20

P = ParamSpec("P")
S = TypeVar("S", bound="SqliteStoreBase")
T = TypeVar("T")
SqliteChange = Callable[[apsw.Connection], T]
_Method = Callable[Concatenate[S, apsw.Connection, P], T]
_AsyncMethod = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


@dataclass(slots=True, eq=False)
class _Job:
    """A query or a change, and the future of its result."""

    run: Callable[[apsw.Connection], Any]
    future: asyncio.Future[Any] | Future[Any]
    loop: asyncio.AbstractEventLoop | None = None
    """The loop of an asyncio future."""
    durable: bool = False
    frees_space: bool = False
    is_taken: bool = False
    result: object = None
    error: BaseException | None = None


def _resolve_jobs(jobs: Sequence[_Job]) -> None:
    """Resolve the futures of jobs. Each event loop is woken once, because waking it takes about 20 µs."""
    jobs_by_loop: dict[asyncio.AbstractEventLoop | None, list[_Job]] = {}
    for job in jobs:
        jobs_by_loop.setdefault(job.loop, []).append(job)
    for loop, ended in jobs_by_loop.items():
        if loop is None:
            _set_results(ended)
        else:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_set_results, ended)


def _set_results(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        if job.future.done():  # the caller was canceled
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


class SqliteReaderPool:
    """Threads that run queries, each query in its own read transaction.

    One thread runs all short queries: parallel threads would compete for the interpreter lock, and each would fill a
    page cache of its own. A query that has waited for 6 ms moves to another thread.
    """

    def __init__(self, path: Path, *, threads: int, key: EncryptionKey | None) -> None:
        self._path = path
        self._key = key
        self._lock = threading.Lock()
        self._is_closed = False
        self._unfinished = 0
        # A ThreadPoolExecutor takes 20 µs more for each query.
        self._main_jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting_jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._max_threads = threads
        self._threads: list[threading.Thread] = []

    async def submit(self, query: Callable[[apsw.Connection], T]) -> T:
        """Run a query and return its result. Raises `StoreClosed` after `close`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = _Job(query, future, loop)
        with self._lock:
            if self._is_closed:
                raise StoreClosed(f"{self._path} was closed; open it again to read")
            if not self._threads:
                self._start_thread(self._main_jobs)
            self._unfinished += 1
            must_wait = self._unfinished > 1
            self._main_jobs.put(job)
        if must_wait and self._max_threads > 1:
            loop.call_later(_HAND_OVER_SECONDS, self._hand_over, job)
        return await future

    def close(self) -> None:
        """Finish the submitted queries; each thread closes its connection."""
        with self._lock:
            self._is_closed = True
        self._main_jobs.put(None)
        for _ in self._threads[1:]:
            self._waiting_jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _hand_over(self, job: _Job) -> None:
        """Offer a query that has not started to another thread; the first thread that takes it runs it."""
        with self._lock:
            if job.is_taken or self._is_closed:
                return
            if len(self._threads) < self._max_threads:
                self._start_thread(self._waiting_jobs)
            self._waiting_jobs.put(job)

    def _start_thread(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        name = f"recollect-reader-{self._path.name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run_jobs, args=(jobs,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run_jobs(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        """Run queries on a connection of this thread, until the pool closes."""
        connection: apsw.Connection | None = None
        while (job := jobs.get()) is not None:
            with self._lock:
                is_first, job.is_taken = not job.is_taken, True
            if is_first:
                try:
                    if connection is None:
                        connection = open_connection(self._path, writes=False, key=self._key)
                    if not job.future.cancelled():
                        job.result = self._run_query(connection, job.run)
                except BaseException as error:  # noqa: BLE001 - raised in the caller
                    job.error = error
                with self._lock:
                    self._unfinished -= 1
                _resolve_jobs([job])
            del job  # while the thread waits, it must not keep the query and its result alive
        if connection is not None:
            connection.close()

    def _run_query(self, connection: apsw.Connection, query: Callable[[apsw.Connection], T]) -> T:
        with translate_errors(self._path):
            connection.execute("begin")
            try:
                return query(connection)
            except BaseException as error:
                _clear_frames(error)
                raise
            finally:
                # A rollback, because a commit may fail on a damaged file.
                connection.execute("rollback")


class SqliteWriter:
    """The thread that owns the writing connection, and commits the changes that wait together in one transaction."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._is_closed = False
        self._lock = threading.Lock()
        self._is_full = True
        self.reserve_file = SqliteReserveFile(path)
        self.reserve_file.reserve()
        self._thread = threading.Thread(target=self._run, name=f"recollect-writer-{path.name}", daemon=True)
        self._thread.start()

    async def submit(self, change: SqliteChange[T], *, durable: bool, frees: bool = False) -> T:
        """Return the change's result when it is committed; it is made even if the caller is canceled meanwhile."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(_Job(change, future, loop, durable, frees))
        return await future

    def enqueue(self, change: SqliteChange[T], *, durable: bool, frees: bool = False) -> Future[T]:
        """Queue a change. With `frees` it only deletes, and may use the reserved space on a full disk."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # so that it cannot be canceled
        self._put(_Job(change, future, None, durable, frees))
        return future

    def _put(self, job: _Job) -> None:
        with self._lock:
            if self._is_closed:
                raise StoreClosed(f"{self._path} was closed; open it again to write")
            self._jobs.put(job)

    def close(self) -> None:
        """Commit the queued changes and close the connection."""
        with self._lock:
            if not self._is_closed:
                self._jobs.put(None)
            self._is_closed = True
        self._thread.join()

    def _run(self) -> None:
        jobs: list[_Job | None] = []
        while None not in jobs:  # `close` puts it after the last job
            jobs = [self._jobs.get()]
            while len(jobs) < _MAX_JOBS_PER_COMMIT and not self._jobs.empty():
                jobs.append(self._jobs.get())
            if changes := [job for job in jobs if job is not None]:
                self._commit(changes)
        with translate_errors(self._path):
            self._connection.close()
        self.reserve_file.close()

    def _commit(self, jobs: list[_Job], *, is_retry: bool = False) -> None:
        """Commit the jobs and resolve their futures. On a full disk, retry those that free space."""
        failure: BaseException | None = None
        try:
            with translate_errors(self._path, self._connection):
                self._transact(jobs)
        except BaseException as error:  # noqa: BLE001 - raised in every caller that waits for this commit
            failure = error
        ended, retries = list[_Job](), list[_Job]()
        for job in jobs:
            job.error = job.error or failure
            can_retry = isinstance(job.error, StoreFull) and job.frees_space and not is_retry
            (retries if can_retry else ended).append(job)
        _resolve_jobs(ended)
        if retries:
            self._make_room()
            for job in retries:
                job.error = None
            self._commit(retries, is_retry=True)
        elif failure is None and not self.reserve_file.is_reserved and not is_retry:
            self.reserve_file.reserve()

    def _make_room(self) -> None:
        """Release the reserved space, and start the log again from its beginning if no reader needs it."""
        self.reserve_file.release()
        with suppress(apsw.Error):
            self._connection.execute("pragma wal_checkpoint(passive)").fetchall()

    def _transact(self, jobs: list[_Job]) -> None:
        connection = self._connection
        self._set_synchronous(full=any(job.durable for job in jobs))
        connection.execute(_BEGIN)
        try:
            if len(jobs) == 1:  # a single job needs no savepoint
                jobs[0].result = jobs[0].run(connection)
            else:
                for job in jobs:
                    self._apply_in_savepoint(job)
            connection.execute("commit")
        except BaseException as error:
            _clear_frames(error)
            if connection.in_transaction:
                connection.execute("rollback")
            raise

    def _apply_in_savepoint(self, job: _Job) -> None:
        """Make a change; if it fails, undo it alone."""
        connection = self._connection
        connection.execute("savepoint batch")
        try:
            with translate_errors(self._path, connection):
                job.result = job.run(connection)
        except (RecollectError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            if not connection.in_transaction:  # SQLite has rolled everything back, as on a full disk
                raise
            job.error = error
            _clear_frames(error)
            connection.execute("rollback to batch")
        connection.execute("release batch")

    def _set_synchronous(self, *, full: bool) -> None:
        if full != self._is_full:
            self._connection.execute("pragma synchronous = full" if full else "pragma synchronous = normal")
            self._is_full = full


def _clear_frames(error: BaseException) -> None:
    """Close the cursors in an exception's frames.

    An open cursor would keep the connection at its old snapshot for as long as the exception lives. Once another
    process has written, nothing can be written from there.
    """
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


class SqliteReserveFile:
    """A file of 1 MiB next to the store that is deleted to make room for deletions on a full disk.

    It exists as long as the write-ahead log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + "-ballast")
        self._wal_path = path.with_name(path.name + "-wal")
        self.is_reserved = False

    @property
    def exists(self) -> bool:
        """True if space is reserved, by any process."""
        return get_file_size(self._path) == _RESERVE_BYTES

    def reserve(self) -> None:
        """Allocate the file. On a full disk the writer goes on without it, and tries again after later commits."""
        self.is_reserved = self.exists
        if not self.is_reserved:
            try:
                with self._path.open("wb") as file:
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(file.fileno(), 0, _RESERVE_BYTES)
                    else:
                        os.write(file.fileno(), bytes(_RESERVE_BYTES))
                self.is_reserved = True
            except OSError:
                self.release()

    def release(self) -> None:
        self.is_reserved = False
        with suppress(OSError):  # it did not exist, or the directory is read-only
            self._path.unlink()

    def close(self) -> None:
        """Delete the file if no other process has the store open: the last connection has deleted the log."""
        if not self._wal_path.exists():
            self.release()


class SqliteStoreBase(ABC):
    """Base of the parts of a store: its threads, and the writing of batches."""

    path: Path
    _writer: SqliteWriter
    _readers: SqliteReaderPool
    _clock: Clock
    _key: EncryptionKey | None

    async def _submit_writes(self, writes: Sequence[Write], read: Callable[[apsw.Connection, datetime], T]) -> T:
        """Validate and apply writes in the writer's transaction, and return what `read` reads there."""
        if len(writes) > _MAX_VALIDATED_INLINE:
            valid = await asyncio.to_thread(validate_writes, writes)
        else:
            valid = validate_writes(writes)
        now = self._clock()

        def apply(connection: apsw.Connection) -> T:
            self._apply_writes(connection, valid, now)
            return read(connection, now)

        durable, frees = any(map(is_durable, writes)), all(map(is_removal, writes))
        return await self._writer.submit(apply, durable=durable, frees=frees)

    @abstractmethod
    def _apply_writes(self, connection: apsw.Connection, writes: Sequence[Write], now: datetime) -> None:
        """Apply writes in order, or raise the first failure: the writer then rolls the batch back."""


def run_in_reader(query: _Method[S, P, T]) -> _AsyncMethod[S, P, T]:
    """Make an async method of one that takes a connection: it runs in the reader pool, in a read transaction."""

    @functools.wraps(query)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._readers.submit(lambda connection: query(self, connection, *args, **kwargs))

    return run


def run_in_writer(*, durable: bool = True, frees: bool = False) -> Callable[[_Method[S, P, T]], _AsyncMethod[S, P, T]]:
    """Make an async method of one that takes a connection: it runs in the writer thread, in its transaction."""

    def decorate(change: _Method[S, P, T]) -> _AsyncMethod[S, P, T]:
        @functools.wraps(change)
        async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._writer.submit(
                lambda connection: change(self, connection, *args, **kwargs), durable=durable, frees=frees
            )

        return run

    return decorate
