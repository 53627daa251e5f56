"""Claude, through Anthropic's official client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from recollect.inference.access import Access
from recollect.inference.arguments import read_call, whole_text
from recollect.inference.chat import ChatMessage, OnText, Reply, Stop, ToolSpec, Usage, cut_off
from recollect.inference.providers.attempts import Attempts, estimated, tokens_sent
from recollect.inference.providers.client import Client

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

# The API wants a bound. This is room for long work, and as much as its client would send without streaming.
_MOST_WRITTEN = 16_384
# Anthropic keeps what stands before a mark for five minutes and reads it at a tenth of the price.
_MARK = {"type": "ephemeral"}
_STOPS: Mapping[str, Stop] = {
    "tool_use": "tools",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class AnthropicChat:
    """A Claude model to have a dialogue with."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client: Client[AsyncAnthropic] = Client(access, self._make)
        self._attempts = Attempts(access, self._client)

    @property
    def name(self) -> str:
        return self._access.name

    async def reply(
        self,
        messages: Sequence[ChatMessage],
        *,
        system: str = "",
        tools: Sequence[ToolSpec] = (),
        on_text: OnText | None = None,
        may_call: bool = True,
    ) -> Reply:
        request = self._request(messages, system, tools, may_call)
        draft = _Draft(on_text)
        usage = await self._attempts.write(
            draft,
            lambda client, stream: client.messages.create(**request, stream=stream),
            lambda: tokens_sent(messages, system, tools),
        )
        return draft.reply(usage)

    async def close(self) -> None:
        await self._client.close()

    def _make(self) -> tuple[Any, AsyncAnthropic]:
        import anthropic

        access = self._access
        direct = None
        if access.is_local:  # not through a proxy, which this client looks up all by itself
            host = urlsplit(access.base_url).netloc.rpartition("@")[2]
            direct = anthropic.DefaultAsyncHttpxClient(trust_env=False, mounts={f"all://{host}": None})
        client = anthropic.AsyncAnthropic(
            api_key=access.key.reveal(),
            base_url=access.base_url or None,
            timeout=access.timeout,
            max_retries=0,  # ours is the only policy
            http_client=direct,
        )
        return anthropic, client

    def _request(
        self, messages: Sequence[ChatMessage], system: str, tools: Sequence[ToolSpec], may_call: bool
    ) -> dict[str, Any]:
        turns = _turns(messages)
        request: dict[str, Any] = {
            "model": self._access.named.model,
            "max_tokens": _MOST_WRITTEN,
            "messages": turns,
        }
        if system.strip():
            request["system"] = [{"type": "text", "text": system, "cache_control": _MARK}]
        if tools:
            specs = [
                {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
                for tool in tools
            ]
            specs[-1]["cache_control"] = _MARK
            request["tools"] = specs
            if not may_call:
                request["tool_choice"] = {"type": "none"}
            # Whoever has tools comes back with their results, and all of this before them.
            turns[-1]["content"][-1] |= {"cache_control": _MARK}
        return request


def _turns(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The dialogue in turns: results of tools, and what the user says next, are one turn of the user's."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: ChatMessage) -> list[dict[str, Any]]:
    if message.role == "tool":
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.content}
        return [{**result, "is_error": True} if message.failed else result]
    text = [{"type": "text", "text": message.content}] if message.content.strip() else []  # an empty one is refused
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in message.tool_calls
    ]
    return [*text, *calls]


@dataclass(slots=True)
class _Draft:
    """An answer while it is written: blocks by their place, each a text or a tool call."""

    on_text: OnText | None
    texts: dict[int, str] = field(default_factory=dict)
    calls: dict[int, tuple[str, str, Any]] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    stop: str = ""
    handed_over: bool = False

    @property
    def ended(self) -> bool:
        return bool(self.stop)

    def start_again(self) -> None:
        self.texts, self.calls, self.usage, self.stop = {}, {}, {}, ""

    def take_whole(self, answer: Any) -> None:
        self.stop = answer.stop_reason or "end_turn"
        self._count(answer.usage)
        for at, block in enumerate(answer.content or ()):
            if block.type == "text":
                self._hand_over(at, block.text)
            elif block.type == "tool_use":
                self.calls[at] = (block.id, block.name, block.input)

    def typed(self, sdk: Any, answer: Mapping[str, Any]) -> Any:
        return sdk.types.Message.construct(**answer)

    def take(self, event: Any) -> None:
        match event.type:
            case "message_start":
                self._count(event.message.usage)
            case "content_block_start" if event.content_block.type == "tool_use":
                self.calls[event.index] = (event.content_block.id, event.content_block.name, "")
            case "content_block_delta" if event.delta.type == "text_delta":
                self._hand_over(event.index, event.delta.text)
            case "content_block_delta" if event.delta.type == "input_json_delta" and event.index in self.calls:
                call_id, name, written = self.calls[event.index]
                self.calls[event.index] = (call_id, name, written + event.delta.partial_json)
            case "message_delta":
                self.stop = event.delta.stop_reason or self.stop
                self._count(event.usage)

    def cost(self, read_if_unsaid: int) -> Usage:
        used = self.usage
        cached, kept = used.get("cache_read_input_tokens", 0), used.get("cache_creation_input_tokens", 0)
        said = used.get("output_tokens", 0)
        # Before the end only the first token is told of.
        came = "" if self.ended and said else " ".join([*self.texts.values(), *map(str, self.calls.values())])
        return Usage(
            read=used.get("input_tokens", 0) + cached + kept or read_if_unsaid,
            written=max(said, estimated(came)),
            cached=cached,
            kept=kept,
        )

    def reply(self, usage: Usage) -> Reply:
        calls = tuple(read_call(*call) for _, call in sorted(self.calls.items()))
        stop = _STOPS.get(self.stop, "end")
        if stop == "length":
            calls = cut_off(calls)
        text = "".join(text for _, text in sorted(self.texts.items()))
        return Reply(whole_text(text), calls, "tools" if calls and stop == "end" else stop, usage)

    def _hand_over(self, at: int, piece: str) -> None:
        self.texts[at] = self.texts.get(at, "") + piece
        if self.on_text is not None and piece:
            self.handed_over = True
            self.on_text(piece)

    def _count(self, usage: Any) -> None:
        """Later figures are totals, and those that are missing have not changed."""
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            value = getattr(usage, name, None)
            if value is not None:
                self.usage[name] = value
