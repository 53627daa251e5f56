"""The one thread that writes: batches wait in a queue, and those that wait together are committed together."""

from __future__ import annotations

import asyncio
import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from recollect.errors import RecollectError, StoreClosed, StoreFull
from recollect.stores.sqlite.ballast import Ballast
from recollect.stores.sqlite.connection import begin_immediate, translated

Change = Callable[[apsw.Connection], object]

_MOST_TOGETHER = 256


Waiting = asyncio.Future[object]


@dataclass(slots=True)
class _Job:
    change: Change
    durable: bool
    frees: bool
    done: Future[object] | Waiting
    loop: asyncio.AbstractEventLoop | None = None
    """Where somebody awaits it; None when it is left to itself."""
    result: object = None
    error: BaseException | None = None

    def settle(self) -> None:
        """Tell whoever waits; one who has given up hears nothing, and what was queued has happened all the same."""
        if self.done.done():
            return
        if self.error is not None:
            self.done.set_exception(self.error)
        else:
            self.done.set_result(self.result)


class Writer:
    """Owns the writing connection. `submit` returns when the change is committed in its durability class."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._gate = threading.Lock()
        self._full = True
        self.ballast = Ballast(path)
        self.ballast.keep()
        self._thread = threading.Thread(target=self._run, name=f"recollect-writer-{path.name}", daemon=True)
        self._thread.start()

    async def submit(self, change: Change, *, durable: bool, frees: bool = False) -> object:
        # Once a change is queued it will happen: a caller who gives up calls off the waiting, not the change.
        loop = asyncio.get_running_loop()
        waiting: Waiting = loop.create_future()
        self._queue(_Job(change, durable, frees, waiting, loop))
        return await waiting

    def queue(self, change: Change, *, durable: bool, frees: bool = False) -> Future[object]:
        """Leave a change to be made; the future says when it was, or why not. One that `frees` only takes away."""
        done: Future[object] = Future()
        done.set_running_or_notify_cancel()  # from here on nobody can call it off
        self._queue(_Job(change, durable, frees, done))
        return done

    def close(self) -> None:
        """Finish what is queued, then let the file go."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _queue(self, job: _Job) -> None:
        with self._gate:
            if self._closed:
                raise StoreClosed(f"{self._path} was closed; open it again to write")
            self._jobs.put(job)

    def _run(self) -> None:
        while (jobs := self._next()) is not None:
            self._commit(jobs)
        with translated(self._path):
            self._connection.close()
        self.ballast.leave()

    def _next(self) -> list[_Job] | None:
        job = self._jobs.get()
        if job is None:
            return None
        jobs = [job]
        while len(jobs) < _MOST_TOGETHER and not self._jobs.empty():
            another = self._jobs.get()
            if another is None:
                self._jobs.put(None)
                break
            jobs.append(another)
        return jobs

    def _commit(self, jobs: list[_Job], *, room_made: bool = False) -> None:
        failed = self._tried(jobs)
        done: list[_Job] = []
        again: list[_Job] = []
        for job in jobs:
            job.error = job.error or failed
            if isinstance(job.error, StoreFull) and job.frees and not room_made:
                job.error = None
                again.append(job)
            else:
                done.append(job)
        _settle(done)
        if again:
            self._make_room()
            self._commit(again, room_made=True)
        elif failed is None and not self.ballast.kept and not room_made:
            self.ballast.keep()

    def _tried(self, jobs: list[_Job]) -> BaseException | None:
        """Why none of the jobs was done; None when the commit was made."""
        try:
            with translated(self._path, self._connection):
                self._transact(jobs)
        except BaseException as error:  # noqa: BLE001 - handed to every caller that waits for this commit
            return error
        return None

    def _make_room(self) -> None:
        """For what only takes away: the room kept back, and the log from its start again if that is possible."""
        self.ballast.release()
        with suppress(apsw.Error):
            self._connection.execute("pragma wal_checkpoint(passive)").fetchall()

    def _transact(self, jobs: list[_Job]) -> None:
        connection = self._connection
        self._set_synchronous(full=any(job.durable for job in jobs))
        begin_immediate(connection)
        try:
            if len(jobs) == 1:  # nobody else's work to keep apart from
                jobs[0].result = jobs[0].change(connection)
            else:
                for job in jobs:
                    self._apply(job)
            connection.execute("commit")
        except BaseException as error:
            _let_go(error)
            if connection.in_transaction:
                connection.execute("rollback")
            raise

    def _apply(self, job: _Job) -> None:
        """One batch in its own savepoint: a batch that is refused takes no other with it."""
        connection = self._connection
        connection.execute("savepoint batch")
        try:
            with translated(self._path, connection):
                job.result = job.change(connection)
        except (RecollectError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            if not connection.in_transaction:  # SQLite itself gave the transaction up, as on a full disk
                raise
            job.error = error
            _let_go(error)
            connection.execute("rollback to batch")
        connection.execute("release batch")

    def _set_synchronous(self, *, full: bool) -> None:
        if full != self._full:
            self._connection.execute("pragma synchronous = full" if full else "pragma synchronous = normal")
            self._full = full


def _let_go(error: BaseException) -> None:
    """End the statements that an error came out of half-way.

    It keeps the frames that it came through, and these their cursors: for as long as somebody has it, the connection
    would stand at an old moment, from which nothing can be written once another process has written.
    """
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _settle(jobs: list[_Job]) -> None:
    """Each loop is woken once, however many of its changes were committed together."""
    awaited: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        if job.loop is None:
            job.settle()
        else:
            awaited.setdefault(job.loop, []).append(job)
    for loop, its in awaited.items():
        with suppress(RuntimeError):  # it has ended meanwhile, and nobody waits
            loop.call_soon_threadsafe(_settle_each, its)


def _settle_each(jobs: list[_Job]) -> None:
    for job in jobs:
        job.settle()
