"""Connections to one PostgreSQL server: a pool, pipelined statements and the translation of driver errors.

psycopg_pool connects in the background and backs off after a failure, so callers learn late, and without the reason,
that a server is down or up again. This pool connects in the caller: a failure is raised at once with its cause.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector_async
from psycopg import AsyncConnection, errors, generators
from psycopg.abc import Buffer
from psycopg.adapt import Loader, PyFormat, Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from recollect.errors import BadInput, BadSettings, RecollectError, StoreClosed, StoreFull, StoreUnavailable
from recollect.stores.base import count_cancellations

SqlParams = dict[str, Any]
Rows = list[tuple[Any, ...]]

# A dead server is noticed within half a minute. The URL may override each option.
_CONNECT_OPTIONS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_ACQUIRE_TIMEOUT_SECONDS = 30.0
_RECEIPTS_OPTION = "receipts="


def split_url(url: str) -> tuple[str, Path | None]:
    """Return the URL without `receipts=PATH`, and that path if it is there. Raise `BadSettings` if it is empty."""
    address, _, query = url.partition("?")
    options = query.split("&") if query else []
    paths = [option for option in options if option.startswith(_RECEIPTS_OPTION)]
    if not paths:
        return url, None
    path = unquote(paths[-1].removeprefix(_RECEIPTS_OPTION))
    if not path.strip():
        raise BadSettings("receipts= in the URL names no file; write ?receipts=/PATH/TO/erasures.jsonl")
    others = "&".join(option for option in options if option not in paths)
    return address + (f"?{others}" if others else ""), Path(os.path.abspath(os.path.expanduser(path)))


class PostgresPool:
    """At most `size` connections, made on demand; `acquire` waits while all of them are in use."""

    def __init__(self, url: str, size: int) -> None:
        try:
            parts = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise convert_connect_error(error, "this URL", "") from error
        host, port = parts.get("host") or "localhost", parts.get("port") or "5432"
        self.display_url = f"postgresql://{host}:{port}/{parts.get('dbname') or ''}"
        """The URL without credentials and options."""
        self._user = str(parts.get("user") or "")
        self._conninfo = make_conninfo(**{**_CONNECT_OPTIONS, **parts})
        self._size = size
        self._slots = asyncio.Semaphore(size)
        self._idle: list[PostgresConnection] = []
        self._closed = False

    async def connect(self) -> PostgresConnection:
        """Return a new connection outside of the pool."""
        try:
            return await PostgresConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise convert_connect_error(error, self.display_url, self._user) from error

    async def acquire(self, seconds: float) -> PostgresConnection:
        """Return a connection for one transaction, which is aborted after some seconds.

        Raise `StoreUnavailable` if none is released within 30 seconds, and `StoreClosed` once the pool is closed.
        """
        try:
            async with asyncio.timeout(_ACQUIRE_TIMEOUT_SECONDS):
                await self._slots.acquire()
        except TimeoutError as error:
            raise StoreUnavailable(
                f"all {self._size} connections to {self.display_url} were in use for {_ACQUIRE_TIMEOUT_SECONDS:.0f} s; "
                "raise the setting `readers`, or run fewer operations at once"
            ) from error
        connection = None
        try:
            if self._closed:
                raise StoreClosed("this store was closed; open it again to use it")
            is_new = not self._idle
            connection = await self.connect() if is_new else self._idle.pop()
            connection.abort_after(seconds)
            if is_new:
                await _configure_connection(connection)
        except BaseException:
            self._slots.release()
            if connection is not None:
                connection.abort_after(None)
                await connection.close()
            raise
        return connection

    async def release(self, connection: PostgresConnection) -> None:
        """Return a connection to the pool, after rolling back its transaction. Close it if that fails."""
        try:
            if connection.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                with suppress(psycopg.Error):
                    await connection.rollback()
        finally:
            connection.abort_after(None)
            if connection.pgconn.transaction_status == TransactionStatus.IDLE:
                self._idle.append(connection)
            else:
                await connection.close()
            self._slots.release()

    async def close_idle(self) -> None:
        """Close the idle connections, for instance after the server restarted."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def close(self) -> None:
        """Wait until all connections are released, then close them."""
        if self._closed:
            return
        self._closed = True
        for _ in range(self._size):
            await self._slots.acquire()
        await self.close_idle()
        for _ in range(self._size):
            self._slots.release()  # a later `acquire` raises StoreClosed instead of waiting


# Connections.

_StatementKey = tuple[bytes, tuple[int, ...]]

_PLACEHOLDER = re.compile(r"%(?:%|\((\w+)\)s)")
# The server caches a plan of each prepared statement. Further statements are planned each time.
_MAX_PREPARED = 256


class SqlStatement(NamedTuple):
    """SQL text with `%(name)s` placeholders, built from constants only, and its parameters."""

    text: str
    values: SqlParams


class PostgresConnection(AsyncConnection[Any]):
    """A connection that runs several statements in one round trip, and prepares each when it is first run.

    `AsyncConnection.pipeline()` runs the event loop once per statement, which takes longer than the round trips it
    saves: 8.3 ms against 5.5 ms of client CPU per recall from 5 tiers (docs/decisions/009).
    """

    prepared: dict[_StatementKey, bytes] | None = None
    """The names of the prepared statements; None to prepare none. An error empties psycopg's own cache."""
    _deadline: asyncio.TimerHandle | None = None

    async def fetch_rows(self, statement: str, values: Sequence[Any] | SqlParams | None = None) -> Rows:
        return await (await self.execute(statement.encode(), values, binary=True)).fetchall()

    async def run_pipeline(self, statements: Sequence[SqlStatement]) -> list[Rows]:
        """Run statements in one round trip and return the rows of each.

        Raise the error of the first statement that fails; the server skips those after it.
        """
        encoded = [self._encode(statement) for statement in statements]
        prepared_before = len(self.prepared or ())
        async with self.lock:
            self.pgconn.enter_pipeline_mode()
            try:
                transformers = [transformer for each in encoded for transformer in self._send(*each)]
                self.pgconn.pipeline_sync()
                return await self.wait(_fetch_rows(self.pgconn, transformers))
            except BaseException:
                if len(self.prepared or ()) > prepared_before:  # it is unknown which of them the server has prepared
                    self.pgconn.finish()
                raise
            finally:
                try:
                    self.pgconn.exit_pipeline_mode()
                except psycopg.OperationalError:
                    self.pgconn.finish()

    def _encode(self, statement: SqlStatement) -> tuple[bytes, Sequence[Any], Any]:
        text, names = number_placeholders(statement.text)
        values, transformer = [statement.values[name] for name in names], Transformer(self)
        # Vectors are sent as binary: as text, each would take half a millisecond.
        are_vectors = (isinstance(value, list) and isinstance(next(iter(value), None), HalfVector) for value in values)
        formats = [PyFormat.BINARY if is_binary else PyFormat.AUTO for is_binary in are_vectors]
        return text, transformer.dump_sequence(values, formats), transformer

    def _send(self, text: bytes, values: Sequence[Any], transformer: Any) -> Sequence[Any]:
        """Send a statement, prepared if possible. Return the decoder of each result to expect, or None."""
        types, formats = transformer.types or (), transformer.formats
        key = text, tuple(types)
        if self.prepared is None or (key not in self.prepared and len(self.prepared) >= _MAX_PREPARED):
            self.pgconn.send_query_params(text, values, types, formats, Format.BINARY)
            return (transformer,)
        is_new = key not in self.prepared
        if is_new:
            self.prepared[key] = b"recollect_%d" % len(self.prepared)
            self.pgconn.send_prepare(self.prepared[key], text, types)
        self.pgconn.send_query_prepared(self.prepared[key], values, formats, Format.BINARY)
        return (None, transformer) if is_new else (transformer,)

    def abort_after(self, seconds: float | None) -> None:
        """Abort the connection after some seconds, or with None at no time."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._abort)

    def _abort(self) -> None:
        """Shut down the socket, so that a coroutine that waits on the connection gets an error.

        Cancelling the coroutine would not do: psycopg would ask the server to cancel, and wait for an answer again.
        """
        if not self.closed:
            with suppress(OSError), socket.socket(fileno=os.dup(self.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)


def _fetch_rows(pgconn: PGconn, transformers: Sequence[Any]) -> Generator[Any, Any, list[Rows]]:
    """Fetch all results and return their rows. Raise the first error, also if the server hung up after it."""
    yield from generators.send(pgconn)
    rows: list[Rows] = []
    failed: PGresult | None = None
    try:
        for transformer in transformers:
            result = yield from generators.fetch(pgconn)
            assert result is not None
            if failed is None and result.status == ExecStatus.FATAL_ERROR:
                failed = result
            elif failed is None and transformer is not None:
                transformer.set_pgresult(result)
                rows.append(transformer.load_rows(0, result.ntuples, tuple))
            yield from generators.fetch(pgconn)  # None: the end of this statement
        yield from generators.fetch(pgconn)  # the pipeline sync
    except psycopg.OperationalError:
        if failed is None:
            raise
    if failed is not None:
        raise errors.error_from_result(failed)
    return rows


@lru_cache(maxsize=1024)
def number_placeholders(text: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the statement with `$1`-style placeholders on one line, and the parameter names in their order."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        name = match[1]
        return "%" if name is None else f"${numbers.setdefault(name, len(numbers) + 1)}"

    return _PLACEHOLDER.sub(number, " ".join(text.split())).encode(), tuple(numbers)


class _RawVectorLoader(Loader):
    """A loader that leaves vectors as bytes, to be decoded many at a time."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


async def _configure_connection(connection: PostgresConnection) -> None:
    await register_vector_async(connection)
    connection.adapters.register_loader("halfvec", _RawVectorLoader)
    # One integer type, so that the server prepares each statement once. Both formats: psycopg sends lists as text.
    connection.adapters.register_dumper(int, Int8Dumper)
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    # Behind a transaction pooler, the process that works is not the one that connected: it would lack the statements.
    [[worker]] = await connection.fetch_rows("select pg_backend_pid()")
    if worker == connection.info.backend_pid:
        await connection.execute("set plan_cache_mode = force_generic_plan")
        connection.prepared = {}


# Errors.


@contextmanager
def translate_errors(display_url: str) -> Iterator[None]:
    """Raise driver errors as ours, with their cause."""
    cancellations = count_cancellations()
    try:
        yield
    except psycopg.Error as error:
        if count_cancellations() > cancellations:
            raise asyncio.CancelledError from error
        raise convert_error(error, display_url) from error
    except UnicodeEncodeError as error:
        raise BadInput(f"a text has a lone surrogate at character {error.start}; decode it properly") from error


def convert_error(error: psycopg.Error, display_url: str) -> RecollectError:
    """Return our error for an error of a statement."""
    message = get_first_line(error)
    match error:
        case errors.DiskFull():
            return StoreFull(f"the disk of {display_url} is full; free space and retry, no data was lost")
        case errors.InsufficientPrivilege():
            database = display_url.rsplit("/")[-1]
            fix = f"grant OWNER to USER (OWNER: the user who created the store in {database})"
            if "for database" in message:
                fix = f"grant create on database {database} to USER"
            text = f"denies this user access ({message}); have an administrator run: {fix}"
        case errors.ReadOnlySqlTransaction():
            text = "is read-only; connect to the primary server, not to a replica"
        case errors.TooManyConnections():
            text = "has no free connection; raise max_connections, or lower the setting `readers`"
        case errors.ProgramLimitExceeded() | errors.StringDataRightTruncation() | errors.NumericValueOutOfRange():
            return BadInput(f"{display_url} does not accept a value of this size: {message}")
        case errors.DeadlockDetected() | errors.SerializationFailure():
            return StoreUnavailable(f"a concurrent transaction won at {display_url}; nothing was written, retry")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            text = (
                f"cannot be reached ({message}); check that it is running. The last transaction may or may not have "
                "committed: check, then retry"
            )
        case _:
            text = f"failed: {message}"
    return StoreUnavailable(f"{display_url} {text}")


def convert_connect_error(error: psycopg.Error, display_url: str, user: str) -> RecollectError:
    """Return our error for a failed connection, by the server's message: it sends no error code that early."""
    message = get_first_line(error)
    if isinstance(error, psycopg.ProgrammingError):
        return BadSettings(f"{display_url} is not a valid PostgreSQL URL: {message}")
    if "password" in message:
        text = f"rejected the password of {user!r}; correct the URL or ~/.pgpass"
    elif "does not exist" in message and "database" in message:
        text = f"does not exist; create the database with: createdb {display_url.rsplit('/')[-1]}"
    elif "does not exist" in message or "no pg_hba.conf entry" in message:
        text = f"does not accept the user {user!r} from this host: {message}"
    else:
        cause = "connection timeout" if "timeout expired" in message else message
        text = f"cannot be reached: {cause}; check the host and port, and that it is running"
    return StoreUnavailable(f"{display_url} {text}")


def get_first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
