"""The line to a server or cluster: one request at a time tried until it is answered, or given up with a reason."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from recollect.deadline import within
from recollect.errors import BadSettings, RecollectError, StoreClosed
from recollect.stores.calls import calls_off
from recollect.stores.redis.failures import FAILURES, answered, passes, said, shown, silent
from recollect.stores.redis.health import Node
from recollect.stores.redis.lines import Lines
from recollect.stores.redis.promise import check_promise, check_version

T = TypeVar("T")

_CLUSTER = "+cluster"
_GRACE, _MOST_DAYS = "purge_after_days", 36_525
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_MOST_LINES = 32
# Scripts and commands that change nothing. A server that was waited for in vain is not waited for by them again: a
# question has other places to ask, and nothing is lost.
_READING = frozenset(
    "read logs task EXISTS GET HGET HGETALL HKEYS HLEN HMGET HSCAN LINDEX LRANGE SMEMBERS SSCAN ZRANGEBYLEX "
    "ZSCAN".split()
)


@dataclass(frozen=True, slots=True)
class Patience:
    """In seconds: how long one answer is waited for, and how long it is tried altogether."""

    answer: float = 3.0
    altogether: float = 8.0


@dataclass(frozen=True, slots=True)
class Primary:
    """One server of those that keep keys of their own."""

    host: str
    place: str
    ask: Callable[..., Awaitable[Any]]


class Server:
    """Scripts and commands on one server, or on whichever of a cluster has their keys."""

    def __init__(self, url: str, patience: Patience) -> None:
        self.url = url
        self._patience = patience
        url, self.grace = _without_grace(url)
        scheme, _, rest = url.partition("://")
        self.is_cluster = scheme.endswith(_CLUSTER)
        _check_database(url, only_zero=self.is_cluster)
        self._closed = False
        # Whether the last who waited for the server has waited in vain.
        self._gone = False
        # What is tried again is decided here alone: every batch has an id, and is then not done twice.
        once = Retry(NoBackoff(), 0)
        waits: dict[str, Any] = {"socket_timeout": patience.answer, "socket_connect_timeout": patience.answer}
        try:
            if self.is_cluster:
                plain = f"{scheme.removesuffix(_CLUSTER)}://{rest}"
                self._client: Any = RedisCluster.from_url(plain, retry=once, **waits)
                self._ask: Callable[..., Awaitable[Any]] = self._client.execute_command
            else:
                pool = BlockingConnectionPool.from_url(
                    url, max_connections=_MOST_LINES, timeout=patience.altogether, retry=once, **waits
                )
                # Nobody is asked yet, and an option that does not exist is found out.
                pool.make_connection()  # type: ignore[no-untyped-call]
                self._client = Redis.from_pool(pool)
                # Here the patience is of the lines: a timer around every reading and writing would be the client's.
                made = ConnectionPool.from_url(url, retry=once, **waits | {"socket_timeout": None})
                self._lines = Lines(made, _MOST_LINES, patience.answer)
                self._ask = self._lines.ask
        except (ValueError, TypeError, exceptions.RedisError) as error:
            raise BadSettings(f"{shown(url)} is no URL of a Redis server ({error}); use redis://HOST:6379/0") from error

    async def greet(self) -> None:
        """See that the server is there, lets us in, is new enough, and keeps what it acknowledges."""
        place = shown(self.url)
        for node in await self.nodes():
            ask = node.ask
            info = cast("Mapping[str, object]", await self._tried(lambda ask=ask: ask("INFO"), reads=True))  # type: ignore[misc]
            check_version(place, info)
            check_promise(place, info, await self._config(ask))

    async def examined(self) -> list[Node]:
        """What each server says of itself."""
        return [await self._tried(partial(self._of, node.ask), reads=True) for node in await self.nodes()]

    async def _of(self, ask: Callable[..., Awaitable[Any]]) -> Node:
        info, config = await ask("INFO"), await self._config(ask)
        seconds, micros = await ask("TIME")
        fsync = None if config is None else config.get("appendfsync")
        return Node(info, fsync, int(seconds) * 1_000_000 + int(micros))

    async def script(self, name: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """Run a script; the server keeps its text, and is told it when it does not."""
        source, sha = _script(name)
        told = (b"%d" % len(keys), *keys, *args)

        async def run() -> Any:
            try:
                return await self._ask("EVALSHA", sha, *told)
            except exceptions.NoScriptError:
                return await self._ask("EVAL", source, *told)

        return await self._tried(run, reads=name in _READING)

    async def command(self, *parts: bytes | int | str) -> Any:
        return await self._tried(lambda: self._client.execute_command(*parts), reads=parts[0] in _READING)

    async def plain(self, command: str, *parts: bytes) -> Any:
        """The same where the client need not make anything else of the answer than it is."""
        return await self._tried(lambda: self._ask(command, *parts), reads=command in _READING)

    def denied(self, command: str) -> RecollectError:
        """The error for a script that found out that it may not run a command."""
        return said(exceptions.NoPermissionError(f"no permission to run {command}"), self.url)

    async def names(self, pattern: bytes) -> list[bytes]:
        """The keys of every node that fit a pattern."""

        async def scan() -> list[bytes]:
            return [key async for key in self._client.scan_iter(match=pattern, count=1000)]

        return await self._tried(scan, reads=True)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._client.aclose()
            if not self.is_cluster:
                await self._client.connection_pool.aclose()
                await self._lines.close()

    async def nodes(self) -> list[Primary]:
        """Every server that keeps keys of its own."""
        if not self.is_cluster:
            host = str(self._client.connection_pool.connection_kwargs.get("host", "localhost"))
            return [Primary(host, shown(self.url), self._client.execute_command)]
        await self._tried(self._client.initialize, reads=True)
        primaries = self._client.get_primaries()
        return [Primary(node.host, f"{node.host}:{node.port}", _of_node(self._client, node)) for node in primaries]

    async def of_node(self, node: Primary, *parts: str | int) -> Any:
        """What one server answers; `ResponseError` when it refuses, for whoever asked knows what to do."""
        return await self._tried(lambda: node.ask(*parts), refusals=True)

    async def _config(self, ask: Callable[..., Awaitable[Any]]) -> Mapping[str, str] | None:
        try:
            told = await ask("CONFIG GET", "appendfsync")
        except exceptions.ResponseError:  # whoever runs it for others often keeps this to themselves
            return None
        except exceptions.RedisError as error:
            raise said(error, self.url) from error
        return {_text(name): _text(value) for name, value in dict(told).items()}

    async def _tried(self, work: Callable[[], Awaitable[T]], *, refusals: bool = False, reads: bool = False) -> T:
        """What the work answers. What can pass is waited for; what cannot is told at once, or raised as it is."""
        if self._closed:
            raise StoreClosed("this store was closed; open it again")
        started, pause = time.monotonic(), _FIRST_PAUSE
        before = calls_off()
        while True:
            try:
                with within(self._patience.altogether):
                    answer = await answered(work)
                if calls_off() > before:  # the client's pool swallows one now and then, and answers
                    raise asyncio.CancelledError
                self._gone = False
                return answer
            except TimeoutError as error:
                self._gone = True
                raise silent(self.url, self._patience.altogether, reads=reads) from error
            except FAILURES as error:
                if calls_off() > before:
                    raise asyncio.CancelledError from error
                if refusals and isinstance(error, exceptions.ResponseError) and not passes(error):
                    raise
                late = time.monotonic() - started + pause > self._patience.altogether
                if not passes(error) or late or (reads and self._gone):
                    self._gone = passes(error)
                    raise said(error, self.url, reads=reads) from error
            pause = await self._paused(pause)

    async def _paused(self, seconds: float) -> float:
        """Wait before it is tried again; how long to wait the next time."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:  # who has less patience than we have has waited in vain as well
            self._gone = True
            raise
        return min(seconds * 2, _LONGEST_PAUSE)


def _check_database(url: str, *, only_zero: bool) -> None:
    """The client takes a name that is no number for database 0, which may be somebody else's."""
    database = unquote(urlsplit(url).path).strip("/")
    if database and not database.isdecimal():
        raise BadSettings(f"{shown(url)} names no database; they have numbers, and the first is redis://HOST:6379/0")
    if only_zero and int(database or 0):
        raise BadSettings(f"{shown(url)} names database {database}, and a cluster has only 0; leave it out")


def _without_grace(url: str) -> tuple[str, bytes]:
    """A URL without our own option, and for how many milliseconds the server keeps a log that has expired."""
    place, _, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    rest = urlencode([one for one in options if one[0] != _GRACE])
    days = dict(options).get(_GRACE)
    if days is None:
        return url, b""
    if not days.isdecimal() or not 1 <= int(days) <= _MOST_DAYS:
        raise BadSettings(f"{_GRACE} is a number of days, from 1 to {_MOST_DAYS:,}, not {days!r}")
    return f"{place}?{rest}" if rest else place, b"%d" % (int(days) * 86_400_000)


@cache
def _script(name: str) -> tuple[bytes, bytes]:
    source = resources.files(__package__).joinpath(f"{name}.lua").read_bytes()
    return source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()


def _of_node(client: Any, node: Any) -> Callable[..., Awaitable[Any]]:
    async def ask(*parts: str | int) -> Any:
        told = await client.execute_command(*parts, target_nodes=node)
        return told[node.name] if isinstance(told, dict) and node.name in told else told

    return ask


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
