"""Calls through the SDKs of Anthropic and OpenAI: clients, streamed replies, and their usage."""

from __future__ import annotations

import asyncio
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from recollect.errors import ModelFailed, StoreClosed
from recollect.models.chat import (
    ChatMessage,
    Reply,
    StopReason,
    TextCallback,
    ToolSpec,
    Usage,
    mark_truncated_call,
    parse_tool_call,
    repair_surrogates,
)
from recollect.models.endpoint import (
    ModelEndpoint,
    ProviderError,
    connection_error,
    error_from_status,
    timeout_error,
)
from recollect.models.llm import render_prompt

# Errors of the SDK or its HTTP client that occur before anything is sent.
_NOT_SENT_ERRORS = {"ConnectError", "ConnectTimeout", "PoolTimeout", "WriteError", "WriteTimeout"}
_TIMEOUT_ERRORS = {"ReadTimeout", "ConnectTimeout", "PoolTimeout", "WriteTimeout"}
# For usage that a provider does not report; counting the words of a long text would block the event loop.
_BYTES_PER_TOKEN = 4

ResultT = TypeVar("ResultT")


def build_client(sdk: Any, client_class: Any, endpoint: ModelEndpoint) -> Any:
    http_client = None
    if endpoint.is_local:  # without the proxy that the SDK would take from the environment
        host = urlsplit(endpoint.base_url).netloc.rpartition("@")[2]
        http_client = sdk.DefaultAsyncHttpxClient(trust_env=False, mounts={f"all://{host}": None})
    return client_class(
        api_key=endpoint.key.reveal(),
        base_url=endpoint.base_url or None,
        timeout=endpoint.timeout,
        max_retries=endpoint.max_retries,
        http_client=http_client,
    )


class SdkClient:
    """An SDK client, created at its first use in a thread because the import takes seconds.

    The SDKs of Anthropic and OpenAI come from one generator, so that they fail, stream and close in the same way.
    They retry failed requests themselves, up to `endpoint.max_retries` times.
    """

    def __init__(self, endpoint: ModelEndpoint, make: Callable[[], tuple[Any, Any]]) -> None:
        self._endpoint = endpoint
        self._make = make
        self.sdk: Any = None
        """The SDK's module, after the first call."""
        self._client: Any = None
        self._making = asyncio.Lock()
        self._is_closed = False

    async def get(self) -> Any:
        async with self._making:
            self._check_open()
            if self._client is None:
                self.sdk, client = await asyncio.to_thread(self._make)
                if self._is_closed:  # closed meanwhile
                    await client.close()
                self._check_open()
                self._client = client
            return self._client

    async def request(self, call: Callable[[Any], Awaitable[ResultT]]) -> ResultT:
        """Return the result of a call, or raise `ProviderError`."""
        client = await self.get()
        # The SDKs time out each attempt. This bounds all of them, with waits that a server may ask for.
        return await self.wait(call(client), self._endpoint.timeout * (self._endpoint.max_retries + 1))

    async def wait(self, call: Awaitable[ResultT], timeout: float, *, has_begun: bool = False) -> ResultT:  # noqa: ASYNC109
        """Return the result of a call to the SDK, or raise `ProviderError`; `has_begun` inside a stream."""
        try:
            async with asyncio.timeout(timeout):
                return await call
        except Warning:
            raise  # the caller's warning filter turned the SDK's warning into an error
        except Exception as error:
            raise self._to_provider_error(error, has_begun=has_begun) from error

    async def close(self) -> None:
        self._is_closed = True  # before waiting for a client that is being made
        async with self._making:
            client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed(f"{self._endpoint.name!r} was closed; open the memory again")

    def _to_provider_error(self, error: Exception, *, has_begun: bool) -> ProviderError:
        sdk, timeout = self.sdk, self._endpoint.timeout
        names = {type(cause).__name__ for cause in _iterate_causes(error)}
        is_sent = has_begun or not names & _NOT_SENT_ERRORS
        if isinstance(error, TimeoutError | sdk.APITimeoutError) or names & _TIMEOUT_ERRORS:
            begun = "began its answer, and then nothing came for" if has_begun else "gave no answer within"
            return timeout_error(timeout, begun, is_charged=is_sent)
        match error:
            case sdk.APIStatusError():
                return error_from_status(error.status_code, error.body, is_charged=has_begun)
            case sdk.APIConnectionError():
                *_, root = _iterate_causes(error)
                # Only the name: the message may contain addresses.
                return connection_error(type(root).__name__, is_charged=is_sent)
            case sdk.APIError():  # inside a stream
                return error_from_status(200, getattr(error, "body", None), is_charged=has_begun)
        if type(error).__module__.startswith(("httpx", "httpcore")):  # not every SDK wraps errors of a stream
            return connection_error(type(error).__name__, is_charged=is_sent)
        return ProviderError(f"answered something that its SDK cannot read ({type(error).__name__}); check the address")


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


@dataclass(slots=True)
class PartialToolCall:
    id: str = ""
    name: str = ""
    arguments: Any = ""


@dataclass(slots=True)
class ReplyDraft:
    """A reply under construction, from the events of a stream or from a whole response."""

    on_text: TextCallback | None
    turn: int
    texts: dict[int, str] = field(default_factory=dict)
    calls: dict[int, PartialToolCall] = field(default_factory=dict)
    stop: StopReason | None = None
    """Set at the end of the reply."""
    is_refused: bool = False
    tokens: dict[str, int] = field(default_factory=dict)
    """The tokens that the provider reported: `uncached`, `cached` and `kept` of those read, and `written`."""
    attempts: int = 0
    """The requests that were sent, with the retries that the SDK reports."""

    def add_text(self, at: int, piece: str) -> None:
        self.texts[at] = self.texts.get(at, "") + piece
        if self.on_text is not None and piece:
            self.on_text(piece)

    def estimate_usage(self) -> Usage:
        """Return the usage reported so far; `written` is at least what was received."""
        uncached, cached, kept = (self.tokens.get(name, 0) for name in ("uncached", "cached", "kept"))
        written = self.tokens.get("written", 0)
        # Before the end of a stream, Anthropic has counted only the first token, and other servers none.
        if self.stop is None or not written:
            calls = [f"{call.name} {call.arguments}" for call in self.calls.values()]
            written = max(written, _estimate_tokens("".join([*self.texts.values(), *calls])))
        return Usage(read=uncached + cached + kept, written=written, cached=cached, kept=kept)

    def build_reply(self, usage: Usage) -> Reply:
        # Some servers send no ids, and a result needs the id of its call.
        calls = tuple(
            parse_tool_call(call.id or f"call_{self.turn}_{at}", call.name, call.arguments)
            for at, call in sorted(self.calls.items())
        )
        stop: StopReason = "refusal" if self.is_refused else self.stop or "end"
        if stop == "length":
            calls = mark_truncated_call(calls)
        text = repair_surrogates("".join(text for _, text in sorted(self.texts.items())))
        return Reply(text, calls, "tools" if calls and stop == "end" else stop, usage)


class SdkChat(ABC):
    """A model behind an SDK, as a `ChatModel`. It streams, so that a long answer does not time out while it goes on."""

    stream_options: ClassVar[Mapping[str, Any]] = {"stream": True}
    resource: ClassVar[str]
    """The path in the client to the part that creates replies."""
    response_type: ClassVar[str]
    """The path in the SDK to the type of a reply."""

    def __init__(self, endpoint: ModelEndpoint, client: SdkClient) -> None:
        self.name = endpoint.name
        self.close = client.close
        self._endpoint = endpoint
        self._client = client
        self._can_stream = True

    async def reply(
        self,
        messages: Sequence[ChatMessage],
        *,
        system: str = "",
        tools: Sequence[ToolSpec] = (),
        on_text: TextCallback | None = None,
        may_call: bool = True,
    ) -> Reply:
        endpoint = self._endpoint
        endpoint.ledger.check_budget(endpoint.name)
        request = self.build_request(messages, system, tools, may_call)
        draft = ReplyDraft(on_text, turn=len(messages))

        def record_usage() -> Usage:
            usage = draft.estimate_usage()
            if not usage.read:
                described = [f"{tool.name} {tool.description} {dict(tool.parameters)!r}" for tool in tools]
                read = _estimate_tokens("\n".join([render_prompt(messages, system), *described]))
                usage = replace(usage, read=read)
            endpoint.ledger.record_chat(endpoint.name, usage, endpoint.price, calls=draft.attempts)
            return usage

        try:
            await self._request_into(draft, request)
        except ProviderError as error:
            if error.is_charged:
                record_usage()
            if on_text is not None and any(draft.texts.values()):
                message = "broke off in the middle of its answer; ask it again"
                raise ModelFailed(f"the language model {endpoint.name!r} {message}") from error.__cause__
            raise ModelFailed(f"the language model {endpoint.name!r} {error}") from endpoint.get_safe_cause(error)
        except Warning:
            raise
        except BaseException:  # cancelled, or `on_text` failed: the provider charges all the same
            if draft.attempts:
                record_usage()
            raise
        return draft.build_reply(record_usage())

    @abstractmethod
    def build_request(
        self, messages: Sequence[ChatMessage], system: str, tools: Sequence[ToolSpec], may_call: bool
    ) -> dict[str, Any]:
        """Return the request in the provider's protocol."""

    @abstractmethod
    def read_response(self, draft: ReplyDraft, response: Any) -> None:
        """Fill the draft from a whole response."""

    @abstractmethod
    def read_event(self, draft: ReplyDraft, event: Any) -> None:
        """Add an event of a stream to the draft."""

    async def _request_into(self, draft: ReplyDraft, request: dict[str, Any]) -> None:
        if self._can_stream:
            try:
                stream = await self._send(draft, request, stream=True)
            except ProviderError as error:
                if not _is_stream_refusal(error.__cause__):
                    raise
                self._can_stream = False
            else:
                async with stream:
                    await self._read_stream(draft, stream)
                return
        self.read_response(draft, await self._send(draft, request, stream=False))

    async def _send(self, draft: ReplyDraft, request: dict[str, Any], *, stream: bool) -> Any:
        async def create(client: Any) -> Any:
            draft.attempts = 1
            # A whole answer is not retried: after a timeout it may have been charged.
            resource = attrgetter(self.resource)(client if stream else client.with_options(max_retries=0))
            response = await resource.with_raw_response.create(**request, **(self.stream_options if stream else {}))
            draft.attempts += response.retries_taken
            parsed = response.parse()  # a coroutine in one of the SDKs
            return await parsed if inspect.isawaitable(parsed) else parsed

        return await self._client.request(create)

    async def _read_stream(self, draft: ReplyDraft, stream: Any) -> None:
        """Fill the draft from a stream, or from the whole response of a server that ignored the request to stream."""
        timeout = self._endpoint.timeout
        if stream.response.headers.get("content-type", "").startswith(("application/json", "text/html")):
            value = await self._client.wait(_read_json(stream.response), timeout, has_begun=True)
            if not isinstance(value, dict):
                raise ProviderError(f"answered with {type(value).__name__} in place of an object; check the address")
            self.read_response(draft, attrgetter(self.response_type)(self._client.sdk).construct(**value))
        else:
            events = aiter(stream)
            while (event := await self._client.wait(anext(events, None), timeout, has_begun=True)) is not None:
                self.read_event(draft, event)
        if draft.stop is None:
            raise connection_error("the stream ended early", is_charged=True)


async def _read_json(response: Any) -> Any:
    return json.loads(await response.aread())


def _estimate_tokens(text: str) -> int:
    return len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN


def _is_stream_refusal(error: BaseException | None) -> bool:
    """Return whether the server refused to stream: some models are streamed only to verified organizations."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    return isinstance(inner, Mapping) and inner.get("param") in ("stream", "stream_options")
