"""Reader threads, each with a connection of its own, so that a slow question holds up nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw

from recollect.errors import StoreClosed
from recollect.stores.sqlite.connection import open_connection, translated

T = TypeVar("T")


class Readers:
    """Runs questions in threads; each sees one consistent moment of the file."""

    def __init__(self, path: Path, *, threads: int, cache_mib: int) -> None:
        self._path = path
        self._cache_mib = cache_mib
        self._own = threading.local()
        self._gate = threading.Lock()
        self._connections: list[apsw.Connection] = []
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"recollect-reader-{path.name}")

    async def ask(self, question: Callable[[apsw.Connection], T]) -> T:
        if self._closed:
            raise StoreClosed(f"{self._path} was closed; open it again to read")
        try:
            answer = self._pool.submit(self._answer, question)
        except RuntimeError as error:  # closed by another thread since we looked
            raise StoreClosed(f"{self._path} was closed; open it again to read") from error
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=True)
        with self._gate:
            while self._connections:
                self._connections.pop().close()

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
            connection = open_connection(self._path, writes=False, cache_mib=self._cache_mib)
            self._own.connection = connection
            with self._gate:
                self._connections.append(connection)
        return connection
