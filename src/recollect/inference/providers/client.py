"""A provider's client, made when it is first needed, in a thread: importing one takes seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

from recollect.errors import StoreClosed
from recollect.inference.access import Access
from recollect.inference.chat import OnText
from recollect.inference.failures import Trouble, lost, of_status, too_slow


class _Closes(Protocol):
    async def close(self) -> None: ...


class Draft(Protocol):
    """An answer while it is written, from a whole one or from the events of a stream."""

    on_text: OnText | None
    handed_over: bool

    @property
    def ended(self) -> bool: ...

    def start_again(self) -> None: ...

    def take_whole(self, answer: Any) -> None: ...

    def take(self, event: Any) -> None: ...


C = TypeVar("C", bound=_Closes)
T = TypeVar("T")


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

    async def get(self) -> C:
        if self._closed:
            raise StoreClosed(f"{self._access.name!r} was closed; open the memory again")
        async with self._making:
            if self._client is None:
                self._sdk, client = await asyncio.to_thread(self._make)
                self._client = client
                return client
            return self._client

    async def once(self, call: Callable[[C], Awaitable[T]]) -> T:
        """One answer in its time, or `Trouble`."""
        client = await self.get()
        try:
            async with asyncio.timeout(self._access.timeout):
                return await call(client)
        except Exception as error:
            raise self._trouble(error) from error

    async def write(self, draft: Draft, call: Callable[[C, bool], Awaitable[Any]]) -> None:
        """One attempt at an answer, whole or, for somebody who listens, as a stream; `call` is told which."""
        if draft.on_text is None:
            draft.take_whole(await self.once(lambda client: call(client, False)))
            return
        try:
            async with aclosing(self.events(lambda client: call(client, True))) as events:
                async for event in events:
                    draft.take(event)
            if not draft.ended:
                raise lost("the stream ended early")
        except Trouble as trouble:
            draft.start_again()
            if draft.handed_over:  # not asked again: what was said already would be said twice
                raise Trouble("broke off in the middle of its answer; ask it again") from trouble.__cause__
            raise

    async def events(self, call: Callable[[C], Awaitable[Any]]) -> AsyncGenerator[Any, None]:
        """What a stream brings, each piece in its time, or `Trouble`; what its reader does wrong is the reader's."""
        stream = await self.once(call)
        async with stream:
            pieces = aiter(stream)
            while True:
                try:
                    async with asyncio.timeout(self._access.timeout):
                        piece = await anext(pieces)
                except StopAsyncIteration:
                    return
                except Exception as error:
                    raise self._trouble(error) from error
                yield piece

    async def close(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _trouble(self, error: Exception) -> Trouble:
        sdk = self._sdk
        match error:
            case TimeoutError():
                return too_slow(self._access.timeout)
            case sdk.APITimeoutError():
                return too_slow(self._access.timeout)
            case sdk.APIStatusError():
                return of_status(error.status_code, error.response.headers, error.body, self._access.clock)
            case sdk.APIConnectionError():
                return lost(_root(error))
            case sdk.APIError():  # sent in the middle of a stream
                return of_status(200, {}, getattr(error, "body", None), self._access.clock)
        if type(error).__module__.startswith(("httpx", "httpcore")):  # not every client wraps what breaks a stream
            return lost(type(error).__name__)
        return Trouble(
            f"answered something that its client cannot read ({type(error).__name__}); is it the right address?"
        )


def _root(error: BaseException) -> str:
    """The name of what a connection failed of in the end; its words may hold addresses, and say no more."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__
