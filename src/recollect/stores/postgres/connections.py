"""A few connections to one server, made when they are needed and kept for the next who needs one.

The driver's own pool connects in the background, and after a failure waits longer and longer before it tries again:
callers would learn late, and without the reason, that a server is gone, and later still that it is back. Here whoever
needs a connection makes it, is told at once why that fails, and succeeds the moment the server answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any

import psycopg
from pgvector.psycopg import register_vector_async
from psycopg import AsyncConnection
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format, TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from recollect.errors import StoreClosed, StoreUnavailable
from recollect.stores.postgres.faults import CLOSED, not_opened
from recollect.stores.postgres.journey import remember

# A server that has gone without a word is found out within half a minute; the URL may say otherwise.
_TIMES: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_WAIT_SECONDS = 30.0


class _AsSent(Loader):
    """Vectors are summed many at a time; one by one they would be taken apart for nothing."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


class Connections:
    """At most so many at a time; whoever comes when all are in use waits."""

    def __init__(self, url: str, most: int, patience: float) -> None:
        self.place, self._user = _named(url)
        self._address = make_conninfo(url, **{**_TIMES, **conninfo_to_dict(url)})
        self._most = most
        self._free = asyncio.Semaphore(most)
        self._idle: list[AsyncConnection[Any]] = []
        self._closed = False
        self._patience = patience
        # Until when each connection that is in use may be.
        self._hours: dict[AsyncConnection[Any], float] = {}
        self._watch: asyncio.TimerHandle | None = None

    async def made(self) -> AsyncConnection[Any]:
        """A new connection, which is nobody's yet."""
        try:
            return await AsyncConnection.connect(self._address, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise not_opened(error, self.place, self._user) from error

    async def take(self, patience: float | None = None) -> AsyncConnection[Any]:
        """A connection for one transaction. One that takes too long is cut off: nobody waits for ever."""
        most = self._patience if patience is None else min(patience, self._patience)
        await self._turn()
        try:
            if self._closed:
                raise StoreClosed(CLOSED)
            if self._idle:
                return self._watched(self._idle.pop(), most)
            fresh = self._watched(await self.made(), most)
            try:
                await _made_ready(fresh)
            except BaseException:
                self._hours.pop(fresh, None)
                await fresh.close()
                raise
        except BaseException:
            self._free.release()
            raise
        return fresh

    async def _turn(self) -> None:
        """Wait until a connection is free, which nearly always one is: then there is nothing to set a time for."""
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._free.acquire()
        except TimeoutError as error:
            raise StoreUnavailable(
                f"all {self._most} connections to {self.place} were in use for {_WAIT_SECONDS:.0f} s; "
                "allow more with the setting `readers`, or do less at once"
            ) from error

    def _watched(self, connection: AsyncConnection[Any], patience: float) -> AsyncConnection[Any]:
        """One watch for all of them: to wind one up for each transaction takes longer than to read the time."""
        loop = asyncio.get_running_loop()
        hour = self._hours[connection] = loop.time() + patience
        if self._watch is None or hour < self._watch.when():
            self._wind_up(hour)
        return connection

    def _wind_up(self, hour: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = asyncio.get_running_loop().call_at(hour, self._cut_late)

    def _cut_late(self) -> None:
        """Cut off whoever is late, and look again when the next one may be."""
        now, self._watch = asyncio.get_running_loop().time(), None
        for connection in [one for one, hour in self._hours.items() if hour <= now]:
            del self._hours[connection]
            _cut(connection)
        if self._hours:
            self._wind_up(min(self._hours.values()))

    def leave_alone(self, connection: AsyncConnection[Any]) -> None:
        """Do not cut this one off before it is given back."""
        self._hours.pop(connection, None)

    async def give_back(self, connection: AsyncConnection[Any]) -> None:
        """Keep a connection for the next one, unless something is left on it or it is broken."""
        self._hours.pop(connection, None)
        # Asked of the line itself: one that is closed or broken is not idle either.
        if connection.pgconn.transaction_status == TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            await connection.close()
        self._free.release()

    async def forget(self) -> None:
        """Close what lies idle: it is as dead as the one that somebody has just found out about."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def close(self) -> None:
        """Wait for those who are at work, and let go."""
        if self._closed:
            return
        self._closed = True
        for _ in range(self._most):
            await self._free.acquire()
        if self._watch is not None:
            self._watch.cancel()
        await self.forget()
        for _ in range(self._most):
            self._free.release()  # whoever comes now is told that it is closed


async def _made_ready(connection: AsyncConnection[Any]) -> None:
    await register_vector_async(connection)
    connection.adapters.register_loader("halfvec", _AsSent)
    # One kind of whole number: of each mixture of them the server would have to remember another statement. In both
    # forms, because the driver sends lists as text, by the kind that fitted the first list it was given.
    connection.adapters.register_dumper(int, Int8Dumper)
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    # A statement that the server remembers is not planned again. Behind a pooler it would be remembered by somebody
    # else: there the process that works is not the one that greeted us.
    [working] = await (await connection.execute("select pg_backend_pid()")).fetchone() or (None,)
    if working == connection.info.backend_pid:
        await connection.execute("set plan_cache_mode = force_generic_plan")
        remember(connection)


def _cut(connection: AsyncConnection[Any]) -> None:
    """End a connection under whoever waits on it, who is then told.

    To cancel the waiting does not do: the driver would ask the server to stop and wait again, for an answer that does
    not come from where none came before.
    """
    if not connection.closed:
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


def _named(url: str) -> tuple[str, str]:
    """The server and database as they may be shown to anybody, and the user."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise not_opened(error, "this URL", "") from error
    host, port = parts.get("host") or "localhost", parts.get("port") or "5432"
    return f"postgresql://{host}:{port}/{parts.get('dbname') or ''}", str(parts.get("user") or "")
