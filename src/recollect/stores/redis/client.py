"""The client of a Redis server or cluster: connections, retries with a deadline, and error messages."""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from recollect.errors import BadSettings, RecollectError, StoreClosed, StoreCorrupt, StoreFull, StoreUnavailable
from recollect.stores.base import count_cancellations

E = TypeVar("E", bound=BaseException)
T = TypeVar("T")

# Those of a cluster have a base class of their own.
_REDIS_ERRORS = (exceptions.RedisError, exceptions.RedisClusterException)
_TRANSIENT_ERRORS = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.RedisClusterException,
)
_ACCESS_ERRORS = (exceptions.AuthenticationError, exceptions.AuthorizationError)
# TLS errors of a connection that was cut; all other TLS errors are permanent.
_TLS_DISCONNECTS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
# Lua errors of our scripts when a stored value has an unexpected type.
_SCRIPT_TYPE_ERROR = re.compile(r"user_script:\d+: (attempt to|bad argument)")
_MAYBE_WRITTEN_HINT = ". A write in progress may have been applied: retry it with the same ids, which is idempotent"


async def run_request(work: Callable[[], Awaitable[T]]) -> T:
    """Await `work`. If another call closed its connection, redis-py raises AttributeError: raise ConnectionError."""
    try:
        return await work()
    except AttributeError as error:
        if error.obj is not None:
            raise
        raise exceptions.ConnectionError("the connection was closed during the request") from error


def is_transient(error: Exception) -> bool:
    """Return whether a retry may succeed: the server restarts, a connection was cut, a cluster elects a primary.

    A refused password or certificate is permanent.
    """
    refusal = _find_cause(error, *_ACCESS_ERRORS) or _find_tls_error(error)
    return isinstance(error, _TRANSIENT_ERRORS) and refusal is None


def redact_url(url: str) -> str:
    """Return the URL without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def convert_error(error: Exception, url: str, *, reads: bool = False) -> RecollectError:
    """Return the RecollectError for an error of redis-py. With `reads`, omit the hint about applied writes."""
    address, message = redact_url(url), str(error)
    if (tls_error := _find_tls_error(error)) is not None:
        return _convert_tls_error(tls_error, address)
    if _find_cause(error, *_ACCESS_ERRORS) or "NOAUTH" in message or "WRONGPASS" in message:
        text = f"refused the user or password ({message}); set them in the URL: redis://USER:PASSWORD@HOST"
    elif isinstance(error, exceptions.NoPermissionError) or "NOPERM" in message or "ACL failure" in message:
        text = (
            f"denies this user a required command ({message}); as an admin run: "
            "ACL SETUSER USER ~recollect:* +@read +@write +@scripting +info +time +config|get"
        )
    elif isinstance(error, exceptions.OutOfMemoryError):
        advice = "Raise it with CONFIG SET maxmemory, or delete some memories"
        return StoreFull(f"{address} has reached maxmemory; nothing was written, reads still work. {advice}")
    elif "MISCONF" in message or "No space left" in message:
        return StoreFull(f"{address} cannot write to its disk ({message}); free disk space there, nothing was written")
    elif isinstance(error, exceptions.ReadOnlyError):
        text = "is a read-only replica; use the URL of the primary"
    elif "WRONGTYPE" in message or _SCRIPT_TYPE_ERROR.search(message):
        advice = "restore a backup, or use a separate database"
        what = "has a value of an unexpected type under a recollect key"
        return StoreCorrupt(f"{address} {what} ({message:.200}); {advice}")
    elif "DB index is out of range" in message:
        text = "has no database of that number; use a lower number, or raise `databases` in its configuration"
    elif isinstance(error, _TRANSIENT_ERRORS):
        return StoreUnavailable(_describe_unreachable(error, address) + ("" if reads else _MAYBE_WRITTEN_HINT))
    else:
        text = f"returned an error: {message}"
    return StoreUnavailable(f"{address} {text}")


def _describe_unreachable(error: Exception, address: str) -> str:
    text = str(error)
    if isinstance(error, exceptions.ClusterDownError | exceptions.TryAgainError) or "cluster is down" in text.lower():
        return (
            f"no node of the cluster at {address} serves these keys ({text}); "
            "check that every primary or its replica is up"
        )
    tls = "speaks TLS" if address.startswith("rediss") else "does not require TLS (if it does: rediss://)"
    return f"{address} cannot be reached ({text}); check that the server runs and {tls}"


def _find_cause(error: BaseException | None, *kinds: type[E]) -> E | None:
    """Return the first error of these kinds in the chain of causes, if the outer message contains its message."""
    message = str(error)
    while error is not None:
        if isinstance(error, kinds) and str(error.args[-1] if error.args else "") in message:
            return error
        error = error.__cause__ or error.__context__
    return None


def _find_tls_error(error: Exception) -> OSError | None:
    found = _find_cause(error, ssl.SSLError, FileNotFoundError, PermissionError)
    return None if isinstance(found, _TLS_DISCONNECTS) else found


def _convert_tls_error(error: OSError, address: str) -> RecollectError:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return BadSettings(
            f"TLS with {address} cannot start ({error}); check that ssl_ca_certs, and ssl_certfile with ssl_keyfile "
            "if the server requires them, name PEM files"
        )
    why = error.verify_message
    problem = f"is not signed by a trusted CA ({why}); name the CA file: rediss://HOST?ssl_ca_certs=/PATH/TO/ca.pem"
    if "mismatch" in why:
        advice = "use that host name in the URL, or issue a certificate for this one"
        problem = f"is for another host name ({why}); {advice}"
    return StoreUnavailable(f"the TLS certificate of {address} {problem}")


_PURGE_OPTION, _MAX_PURGE_DAYS = "purge_after_days", 36_525
_FIRST_RETRY_DELAY, _MAX_RETRY_DELAY = 0.02, 0.5
_MAX_CONNECTIONS = 32
_SCAN_PAGE = 1000
# Scripts and commands that only read. While a server is unreachable they fail after one attempt.
_READ_ONLY_COMMANDS = frozenset(
    "read task EXISTS GET HGET HGETALL HLEN HMGET HSCAN INFO LINDEX LRANGE SMEMBERS SSCAN TIME TYPE ZRANGEBYLEX "
    "ZSCAN".split()
)
# Frequent commands with replies that redis-py does not convert.
_PLAIN_REPLIES = frozenset("EXISTS GET HGET HMGET ZRANGEBYLEX".split())


@dataclass(frozen=True, slots=True)
class RedisTimeouts:
    """Seconds for one response, and in total with retries."""

    response: float = 3.0
    total: float = 8.0


class RedisPrimary(NamedTuple):
    """A server that has keys of its own: the single server, or a primary of a cluster."""

    host: str
    address: str
    execute: Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class RedisNode:
    """The status of one server; `fsync` is None if it denies CONFIG."""

    info: Mapping[str, Any]
    fsync: str | None
    time_micros: int

    @property
    def version(self) -> str:
        return str(self.info.get("valkey_version") or self.info.get("redis_version", "0"))


class RedisConnections:
    """Connections to one server, most recently used first.

    redis-py makes them and parses replies. Its own path through a pool, retries and metrics takes a fifth longer
    than a local server (docs/decisions/022-redis-connections.md).
    """

    def __init__(self, pool: ConnectionPool, limit: int, timeout: float) -> None:
        self._pool = pool
        self._timeout = timeout
        self._free = asyncio.Semaphore(limit)
        self._idle: list[Any] = []
        self._busy: set[Any] = set()

    async def request(self, *command: bytes | int | str) -> Any:
        """Return the reply to a command as bytes."""
        async with self._free:
            connection: Any = self._idle.pop() if self._idle else self._pool.make_connection()  # type: ignore[no-untyped-call]
            connection.socket_timeout = None  # one timer is enough
            self._busy.add(connection)
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._exchange(connection, command)
            except TimeoutError as error:
                raise exceptions.TimeoutError(f"no answer within {self._timeout:g} seconds") from error
            finally:
                self._busy.discard(connection)
                self._idle.append(connection)

    async def close(self) -> None:
        """Close all connections; a request that waits for its reply fails."""
        for connection in (*self._idle, *self._busy):
            await connection.disconnect()

    async def _exchange(self, connection: Any, command: Sequence[bytes | int | str]) -> Any:
        try:
            # Data before a request means that the server closed the connection, or that a reply was left over.
            if connection.is_connected and await connection.can_read():
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                await connection.connect()
            await connection.send_packed_command(_encode_command(*command))
            return await connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except exceptions.ResponseError:  # a complete reply
            raise
        except BaseException:
            # The reply may still arrive, and would be taken for that of the next request.
            await connection.disconnect(nowait=True)
            raise


def _encode_command(*parts: bytes | int | str) -> bytes:
    """Return a command in the wire format of Redis."""
    values = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n%b" % (len(values), b"".join([b"$%d\r\n%b\r\n" % (len(value), value) for value in values]))


class RedisClient:
    """Scripts and commands on a server, or on the cluster node that has their keys."""

    def __init__(self, url: str, timeouts: RedisTimeouts) -> None:
        self.url = url
        self._timeouts = timeouts
        plain_url, self.is_cluster, self.purge_after_ms = _parse_url(url)
        self._is_closed = False
        self._is_unreachable = False
        self._connections: RedisConnections | None = None
        # `_retry` is the only place that retries: every batch has an id, so that it is applied once.
        once = Retry(NoBackoff(), 0)
        waits: dict[str, Any] = {"socket_timeout": timeouts.response, "socket_connect_timeout": timeouts.response}
        try:
            if self.is_cluster:
                self._client: Any = RedisCluster.from_url(plain_url, retry=once, **waits)
            else:
                pool = BlockingConnectionPool.from_url(
                    plain_url, max_connections=_MAX_CONNECTIONS, timeout=timeouts.total, retry=once, **waits
                )
                pool.make_connection()  # type: ignore[no-untyped-call] # raises for an unknown option, does not connect
                self._client = Redis.from_pool(pool)
                self._connections = RedisConnections(pool, _MAX_CONNECTIONS, timeouts.response)
        except (ValueError, TypeError, exceptions.RedisError) as error:
            raise BadSettings(f"{redact_url(url)} is not a Redis URL ({error}); use redis://HOST:6379/0") from error
        self._execute: Callable[..., Awaitable[Any]] = self._client.execute_command
        self._send = self._execute if self._connections is None else self._connections.request

    async def read_nodes(self) -> list[RedisNode]:
        """Return the status of every primary."""
        nodes = []
        for primary in await self.list_primaries():
            config, info = await self.read_config(primary), await self.execute_on(primary, "INFO")
            seconds, micros = await self.execute_on(primary, "TIME")
            nodes.append(RedisNode(info, config.get("appendfsync"), int(seconds) * 1_000_000 + int(micros)))
        return nodes

    async def read_config(self, node: RedisPrimary) -> Mapping[str, str]:
        """Return the settings of a server; nothing if it denies CONFIG, as managed services often do."""
        try:
            return dict(await self._retry(lambda: node.execute("CONFIG GET", "*"), refusals=True, reads=True))
        except exceptions.ResponseError:
            return {}

    async def run_script(self, name: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """Run one of the Lua files by its hash; send its text if the server does not have it."""
        source, sha = _load_script(name)
        arguments = (b"%d" % len(keys), *keys, *args)

        async def run() -> Any:
            try:
                return await self._send("EVALSHA", sha, *arguments)
            except exceptions.NoScriptError:
                return await self._send("EVAL", source, *arguments)

        return await self._retry(run, reads=name in _READ_ONLY_COMMANDS)

    async def execute(self, *parts: bytes | int | str) -> Any:
        send = self._send if parts[0] in _PLAIN_REPLIES else self._execute
        return await self._retry(lambda: send(*parts), reads=parts[0] in _READ_ONLY_COMMANDS)

    async def scan(self, command: str, key: bytes) -> list[Any]:
        """Return all that HSCAN, SSCAN or ZSCAN lists, some of it twice. Its pages do not block the server."""
        found: list[Any] = []
        cursor = None
        while cursor != 0:
            cursor, page = await self.execute(command, key, cursor or 0, "COUNT", _SCAN_PAGE)
            found += page.items() if isinstance(page, dict) else page
        return found

    async def scan_keys(self, pattern: bytes) -> list[bytes]:
        """Return the keys of all nodes that match a pattern."""

        async def scan() -> list[bytes]:
            return [key async for key in self._client.scan_iter(match=pattern, count=_SCAN_PAGE)]

        return await self._retry(scan, reads=True)

    def build_permission_error(self, command: str) -> RecollectError:
        """Return the error for a script that was denied a command."""
        return convert_error(exceptions.NoPermissionError(f"no permission to run {command}"), self.url)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._connections is not None:
                await self._connections.close()
            await self._client.aclose()

    async def list_primaries(self) -> list[RedisPrimary]:
        if not self.is_cluster:
            host = str(self._client.connection_pool.connection_kwargs.get("host", "localhost"))
            return [RedisPrimary(host, redact_url(self.url), self._execute)]
        await self._retry(self._client.initialize, reads=True)
        return [RedisPrimary(node.host, node.name, node.execute_command) for node in self._client.get_primaries()]

    async def execute_on(self, node: RedisPrimary, *parts: str, refusals: bool = False) -> Any:
        """Run a command on one server; with `refusals`, raise redis-py's ResponseError if it refuses."""
        return await self._retry(lambda: node.execute(*parts), refusals=refusals, reads=parts[0] in _READ_ONLY_COMMANDS)

    async def _retry(self, work: Callable[[], Awaitable[T]], *, refusals: bool = False, reads: bool = False) -> T:
        """Await `work`, and retry transient errors until the total timeout.

        Raises a RecollectError; with `refusals`, the server's own ResponseError.
        """
        if self._is_closed:
            raise StoreClosed("this store was closed; open it again")
        started, pause = time.monotonic(), _FIRST_RETRY_DELAY
        before = count_cancellations()
        while True:
            try:
                async with asyncio.timeout(self._timeouts.total):
                    answer = await run_request(work)
                if count_cancellations() > before:  # redis-py's pool can swallow a cancellation
                    raise asyncio.CancelledError
                self._is_unreachable = False
                return answer
            except TimeoutError as error:
                self._is_unreachable = True
                waited = f"has not answered for {self._timeouts.total:g} seconds; check that it runs"
                hint = "" if reads else _MAYBE_WRITTEN_HINT
                raise StoreUnavailable(f"{redact_url(self.url)} {waited}{hint}") from error
            except _REDIS_ERRORS as error:
                if count_cancellations() > before:
                    raise asyncio.CancelledError from error
                if refusals and isinstance(error, exceptions.ResponseError) and not is_transient(error):
                    raise
                late = time.monotonic() - started + pause > self._timeouts.total
                if not is_transient(error) or late or (reads and self._is_unreachable):
                    self._is_unreachable = is_transient(error)
                    raise convert_error(error, self.url, reads=reads) from error
            pause = await self._wait(pause)

    async def _wait(self, seconds: float) -> float:
        """Wait before the next attempt, and return the delay after that."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:  # the caller's own timeout was shorter
            self._is_unreachable = True
            raise
        return min(seconds * 2, _MAX_RETRY_DELAY)


def _parse_url(url: str) -> tuple[str, bool, bytes]:
    """Return the URL for redis-py, if it is a cluster, and the milliseconds until an expired log is purged, or b""."""
    parts = urlsplit(url)
    scheme, is_cluster = parts.scheme.removesuffix("+cluster"), parts.scheme.endswith("+cluster")
    database = unquote(parts.path).strip("/")
    if database and not database.isdecimal():  # redis-py would use database 0
        raise BadSettings(
            f"the database in {redact_url(url)} must be a number, as in redis://HOST:6379/0; got {database!r}"
        )
    if is_cluster and int(database or 0):
        raise BadSettings(f"a cluster has only database 0; remove {database} from {redact_url(url)}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    days = options.pop(_PURGE_OPTION, None)
    plain_url = urlunsplit(parts._replace(scheme=scheme, query=urlencode(options)))
    if days is None:
        return plain_url, is_cluster, b""
    if not days.isdecimal() or not 1 <= int(days) <= _MAX_PURGE_DAYS:
        raise BadSettings(f"{_PURGE_OPTION} must be from 1 to {_MAX_PURGE_DAYS:,} days; got {days!r}")
    return plain_url, is_cluster, b"%d" % (int(days) * 86_400_000)


@cache
def _load_script(name: str) -> tuple[bytes, bytes]:
    source = resources.files(__package__).joinpath(f"{name}.lua").read_bytes()
    return source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
