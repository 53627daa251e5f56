"""Reader threads, each with a connection of its own, so that a slow question holds up nobody."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw

from recollect.errors import StoreClosed
from recollect.stores.sqlite.connection import open_connection, translated
from recollect.stores.sqlite.key import Key

T = TypeVar("T")

# Longer than what one recall asks at once takes together: another thread would have its caches to fill, and all of them
# would wait for each other. A person does not notice it.
_PATIENCE = 0.006


@dataclass(slots=True)
class _Asked:
    """A question on its way: who asks, and where the answer goes."""

    question: Callable[[apsw.Connection], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    taken: bool = False

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Hand the answer over to whoever waits, if anybody still does."""
        with suppress(RuntimeError):  # their loop has ended meanwhile
            self.loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(result)


class Readers:
    """Runs questions in threads; each sees one consistent moment of the file.

    One thread answers what comes in, one after the other: short questions side by side would only hand the
    interpreter to and fro, each with a page cache of its own to fill. A question that has waited for a moment goes to
    another thread, so that a slow one holds up nobody.
    """

    def __init__(self, path: Path, *, threads: int, cache_mib: int, key: Key | None = None) -> None:
        self._path = path
        self._key = key
        self._cache_mib = cache_mib
        self._own = threading.local()
        self._gate = threading.Lock()
        self._connections: list[apsw.Connection] = []
        self._most = threads
        self._threads: list[threading.Thread] = []
        self._unanswered = 0
        self._idle = 0
        self._first: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._others: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._closed = False

    async def ask(self, question: Callable[[apsw.Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        asked = _Asked(question, loop, loop.create_future())
        with self._gate:
            if self._closed:
                raise StoreClosed(f"{self._path} was closed; open it again to read")
            if not self._threads:
                self._begin(self._first)
            self._unanswered += 1
            waits = self._unanswered > 1
            self._first.put(asked)
        if waits and self._most > 1:
            loop.call_later(_PATIENCE, self._pass_on, asked)
        return await asked.answer  # type: ignore[no-any-return]

    def close(self) -> None:
        """Answer what was asked, then let the file go."""
        with self._gate:
            self._closed = True
            threads, self._threads = self._threads, []
            self._first.put(None)
            for _ in threads[1:]:
                self._others.put(None)
        for thread in threads:
            thread.join()
        while self._connections:
            self._connections.pop().close()

    def _pass_on(self, asked: _Asked) -> None:
        """Leave a question that nobody has begun with to another thread; whoever comes first answers it."""
        with self._gate:
            if asked.taken or self._closed:
                return
            if self._idle == 0 and len(self._threads) < self._most:
                self._begin(self._others)
            self._others.put(asked)

    def _begin(self, questions: queue.SimpleQueue[_Asked | None]) -> None:
        name = f"recollect-reader-{self._path.name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, args=(questions,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, questions: queue.SimpleQueue[_Asked | None]) -> None:
        while (asked := self._next(questions)) is not None:
            if not self._takes(asked):
                continue
            try:
                result = None if asked.answer.cancelled() else self._answer(asked.question)
            except BaseException as error:  # noqa: BLE001 - handed to whoever asked
                asked.settle(None, error)
            else:
                asked.settle(result, None)
            with self._gate:
                self._unanswered -= 1
            del asked

    def _next(self, questions: queue.SimpleQueue[_Asked | None]) -> _Asked | None:
        if questions is self._first:
            return questions.get()
        with self._gate:
            self._idle += 1
        asked = questions.get()
        with self._gate:
            self._idle -= 1
        return asked

    def _takes(self, asked: _Asked) -> bool:
        """Whether nobody else has begun with it."""
        with self._gate:
            if asked.taken:
                return False
            asked.taken = True
            return True

    def _answer(self, question: Callable[[apsw.Connection], T]) -> T:
        with translated(self._path):
            connection = self._connection()
            connection.execute("begin")
            try:
                return question(connection)
            finally:
                # Not a commit, which may fail on a damaged file: there is nothing to keep.
                connection.execute("rollback")
                self._check_ended(connection)

    def _check_ended(self, connection: apsw.Connection) -> None:
        """Give up a connection that still stands at its old moment.

        A question that failed half-way through a statement leaves it open for as long as somebody keeps the
        exception, and every later question on this connection would be answered from the past.
        """
        if connection.txn_state() == apsw.SQLITE_TXN_NONE:
            return
        self._own.connection = None
        with self._gate:
            self._connections.remove(connection)
        connection.close(True)

    def _connection(self) -> apsw.Connection:
        connection: apsw.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = open_connection(self._path, writes=False, cache_mib=self._cache_mib, key=self._key)
            self._own.connection = connection
            with self._gate:
                self._connections.append(connection)
        return connection
