"""A provider's client, made when it is first needed, in a thread: importing one takes seconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from recollect.errors import StoreClosed
from recollect.inference.access import Access
from recollect.inference.failures import Trouble, lost, of_status, stalled, too_slow

# By these names a client, or what lies beneath it, says that a connection was never made: nothing was sent.
_NEVER_SENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "WriteError", "WriteTimeout"}
_TIMEOUTS = {"ReadTimeout", "ConnectTimeout", "PoolTimeout", "WriteTimeout"}


class _Closes(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Closes)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer in one piece, as the JSON that it came as: from a server that was asked for a stream and has none."""

    value: Any


class Client(Generic[C]):
    """The official clients of Anthropic and OpenAI are made by one generator: they fail, stream and close alike.

    `make` returns the module of the client and the client itself.
    """

    def __init__(self, access: Access, make: Callable[[], tuple[Any, C]]) -> None:
        self._access = access
        self._make = make
        self._sdk: Any = None
        self._client: C | None = None
        self._making = asyncio.Lock()
        self._closed = False

    @property
    def sdk(self) -> Any:
        """The module of the client, once it was asked anything."""
        return self._sdk

    async def get(self) -> C:
        async with self._making:
            self._check_open()
            if self._client is not None:
                return self._client
            self._sdk, client = await asyncio.to_thread(self._make)
            if self._closed:  # in the meantime
                await client.close()
            self._check_open()
            self._client = client
            return client

    async def once(self, call: Callable[[C], Awaitable[T]]) -> T:
        """One answer in its time, or `Trouble`."""
        client = await self.get()
        try:
            async with asyncio.timeout(self._access.timeout):
                return await call(client)
        except Warning:
            raise  # only where somebody made warnings errors: it is theirs, and nothing was asked
        except Exception as error:
            raise self._trouble(error) from error

    async def events(self, call: Callable[[C], Awaitable[Any]]) -> AsyncGenerator[Any, None]:
        """What a stream brings, each piece in its time, or `Trouble`; what its reader does wrong is the reader's.

        Once a stream has begun the provider is at work, and what it does is charged for.
        """
        stream = await self.once(call)
        async with stream:
            kind = stream.response.headers.get("content-type", "")
            if kind.startswith(("application/json", "text/html")):
                yield await self._whole(stream.response)
                return
            pieces = aiter(stream)
            while True:
                try:
                    async with asyncio.timeout(self._access.timeout):
                        piece = await anext(pieces)
                except StopAsyncIteration:
                    return
                except Exception as error:
                    raise self._trouble(error, begun=True) from error
                yield piece

    async def close(self) -> None:
        self._closed = True  # at once: nobody gets it while this waits for one that is being made
        async with self._making:
            client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self._access.name!r} was closed; open the memory again")

    async def _whole(self, response: Any) -> Whole:
        try:
            async with asyncio.timeout(self._access.timeout):
                return Whole(json.loads(await response.aread()))
        except ValueError as error:
            raise _unreadable(error) from error
        except Exception as error:
            raise self._trouble(error, begun=True) from error

    def _trouble(self, error: Exception, *, begun: bool = False) -> Trouble:
        sdk = self._sdk
        names = {type(one).__name__ for one in _causes(error)}
        sent = begun or not names & _NEVER_SENT
        if isinstance(error, TimeoutError | sdk.APITimeoutError) or names & _TIMEOUTS:
            return stalled(self._access.timeout) if begun else too_slow(self._access.timeout, charged=sent)
        match error:
            case sdk.APIStatusError():
                return of_status(
                    error.status_code, error.response.headers, error.body, self._access.clock, charged=begun
                )
            case sdk.APIConnectionError():
                return lost(_root(error), charged=sent)
            case sdk.APIError():  # sent in the middle of a stream
                return of_status(200, {}, getattr(error, "body", None), self._access.clock, charged=begun)
        if type(error).__module__.startswith(("httpx", "httpcore")):  # not every client wraps what breaks a stream
            return lost(type(error).__name__, charged=sent)
        return _unreadable(error)


def _unreadable(error: Exception) -> Trouble:
    return Trouble(f"answered something that its client cannot read ({type(error).__name__}); is it the right address?")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _root(error: BaseException) -> str:
    """The name of what a connection failed of in the end; its words may hold addresses, and say no more."""
    *_, last = _causes(error)
    return type(last).__name__
