"""An answer of a language model, attempt by attempt: each within the limit, and in the books also when it fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

from recollect.errors import ModelFailed
from recollect.inference.access import Access
from recollect.inference.chat import ChatMessage, ToolSpec, Usage
from recollect.inference.failures import Trouble, lost
from recollect.inference.plain_chat import as_prompt
from recollect.inference.providers.client import Client, Whole
from recollect.words.tokens import count_tokens

# Of a longer text the two ends are counted: it is an estimate, and the loop must not wait for it.
_QUICK = 20_000

C = TypeVar("C", bound=Any)


class Draft(Protocol):
    """An answer while it is written, from the events of a stream or from a whole one."""

    handed_over: bool

    @property
    def ended(self) -> bool: ...

    def start_again(self) -> None: ...

    def take(self, event: Any) -> None: ...

    def take_whole(self, answer: Any) -> None: ...

    def typed(self, sdk: Any, answer: Mapping[str, Any]) -> Any:
        """A whole answer as the client would have given it, from the JSON it came as."""

    def cost(self, read_if_unsaid: int) -> Usage:
        """What was said of its cost so far; what was written is never less than what came."""


class Attempts(Generic[C]):
    """Asks with one client. It always streams: a long answer is then never too slow as long as it goes on."""

    def __init__(self, access: Access, client: Client[C]) -> None:
        self._access = access
        self._client = client
        self._streams = True

    async def write(self, draft: Draft, call: Callable[[C, bool], Awaitable[Any]], sent: Callable[[], int]) -> Usage:
        """The draft, written to its end, and what that attempt has cost; or `ModelFailed`.

        `call` is told whether to stream, and `sent` estimates what the question has in tokens.
        """
        access = self._access
        try:
            return await access.persist(lambda: self._attempt(draft, call, sent))
        except Trouble as trouble:
            raise ModelFailed(f"the language model {access.name!r} {trouble}") from access.cause_of(trouble)

    async def _attempt(self, draft: Draft, call: Callable[[C, bool], Awaitable[Any]], sent: Callable[[], int]) -> Usage:
        # Each of them: those before it have cost something too.
        self._access.ledger.check(self._access.name)
        draft.start_again()
        asked = False

        def ask(client: C, stream: bool) -> Awaitable[Any]:
            nonlocal asked
            asked = True
            return call(client, stream)

        try:
            await self._take(draft, ask)
        except Trouble as trouble:
            if trouble.charged:
                self._book(draft, sent)
            if draft.handed_over:  # not asked again: what was said already would be said twice
                raise Trouble("broke off in the middle of its answer; ask it again") from trouble.__cause__
            raise
        except Warning:
            raise
        except BaseException:  # called off, or the listener stumbled: the provider has worked all the same
            if asked:
                self._book(draft, sent)
            raise
        return self._book(draft, sent)

    async def _take(self, draft: Draft, call: Callable[[C, bool], Awaitable[Any]]) -> None:
        if self._streams:
            try:
                await self._stream(draft, call)
            except Trouble as trouble:
                if not _refuses_to_stream(trouble.__cause__):
                    raise
                self._streams = False
            else:
                return
        try:
            draft.take_whole(await self._client.once(lambda client: call(client, False)))
        except Trouble as trouble:
            if trouble.charged:
                trouble.again = False  # nobody can tell one that hangs from one that has much to say
            raise

    async def _stream(self, draft: Draft, call: Callable[[C, bool], Awaitable[Any]]) -> None:
        async with aclosing(self._client.events(lambda client: call(client, True))) as events:
            async for event in events:
                if isinstance(event, Whole):
                    draft.take_whole(draft.typed(self._client.sdk, _checked(event.value)))
                else:
                    draft.take(event)
        if not draft.ended:
            raise lost("the stream ended early", charged=True)

    def _book(self, draft: Draft, sent: Callable[[], int]) -> Usage:
        usage = draft.cost(0)
        usage = usage if usage.read else draft.cost(sent())
        self._access.ledger.talked(self._access.name, usage, self._access.price)
        return usage


def tokens_sent(messages: Sequence[ChatMessage], system: str, tools: Sequence[ToolSpec]) -> int:
    described = [f"{tool.name} {tool.description} {dict(tool.parameters)!r}" for tool in tools]
    return estimated("\n".join([as_prompt(messages, system), *described]))


def estimated(text: str) -> int:
    if len(text) <= _QUICK:
        return count_tokens(text)
    half = _QUICK // 2
    return count_tokens(text[:half] + text[-half:]) * len(text) // _QUICK


def _checked(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, dict):
        raise Trouble(f"answered with {type(answer).__name__} in place of an object; is it the right address?")
    return answer


def _refuses_to_stream(error: BaseException | None) -> bool:
    """Some models are streamed only to those who have proved who they are, and some servers do not stream at all."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    return isinstance(inner, Mapping) and inner.get("param") in ("stream", "stream_options")
