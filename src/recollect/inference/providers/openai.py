"""OpenAI's models and every server that speaks its chat protocol, through the official client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recollect.inference.access import Access
from recollect.inference.arguments import read_call, whole_text
from recollect.inference.chat import ChatMessage, OnText, Reply, Stop, ToolSpec, Usage, cut_off
from recollect.inference.failures import Trouble
from recollect.inference.providers.attempts import Attempts, estimated, tokens_sent
from recollect.inference.providers.client import Client

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_STOPS: Mapping[str, Stop] = {"tool_calls": "tools", "length": "length", "content_filter": "refusal"}

_STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def openai_client(access: Access) -> Client[AsyncOpenAI]:
    def make() -> tuple[Any, AsyncOpenAI]:
        import openai

        client = openai.AsyncOpenAI(
            api_key=access.key.reveal(),
            base_url=access.base_url or None,
            timeout=access.timeout,
            max_retries=0,  # ours is the only policy
            # A server on this machine is not reached through a proxy.
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False) if access.is_local else None,
        )
        return openai, client

    return Client(access, make)


class OpenAIChat:
    """A model to have a dialogue with."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client = openai_client(access)
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
        draft = _Draft(on_text, turn=len(messages))
        usage = await self._attempts.write(
            draft,
            lambda client, stream: client.chat.completions.create(**request, **(_STREAMED if stream else {})),
            lambda: tokens_sent(messages, system, tools),
        )
        return draft.reply(usage)

    async def close(self) -> None:
        await self._client.close()

    def _request(
        self, messages: Sequence[ChatMessage], system: str, tools: Sequence[ToolSpec], may_call: bool
    ) -> dict[str, Any]:
        first = [{"role": "system", "content": system}] if system.strip() else []
        request: dict[str, Any] = {
            "model": self._access.named.model,
            "messages": [*first, *(_message(message) for message in messages)],
        }
        if tools:
            request["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": dict(tool.parameters),
                    },
                }
                for tool in tools
            ]
            if not may_call:
                request["tool_choice"] = "none"
        return request


def _message(message: ChatMessage) -> dict[str, Any]:
    match message.role:
        case "tool":
            # The protocol has no word for a tool that failed.
            content = f"The tool failed: {message.content}" if message.failed else message.content
            return {"role": "tool", "tool_call_id": message.call_id, "content": content}
        case "assistant" if message.tool_calls:
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
                }
                for call in message.tool_calls
            ]
            return {"role": "assistant", "content": message.content or None, "tool_calls": calls}
        case _:
            return {"role": message.role, "content": message.content}


@dataclass(slots=True)
class _Written:
    """A tool call while it is written."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Draft:
    """An answer while it is written."""

    on_text: OnText | None
    turn: int
    text: list[str] = field(default_factory=list)
    refused: bool = False
    calls: dict[int, _Written] = field(default_factory=dict)
    usage: Any = None
    stop: str = ""
    handed_over: bool = False

    @property
    def ended(self) -> bool:
        return bool(self.stop)

    def start_again(self) -> None:
        self.text, self.refused, self.calls, self.usage, self.stop = [], False, {}, None, ""

    def take_whole(self, answer: Any) -> None:
        if not answer.choices:
            raise Trouble("answered with no choice at all; is it the right address?")
        choice = answer.choices[0]
        self.usage, self.stop = answer.usage, choice.finish_reason or "stop"
        self._take(choice.message, list(enumerate(choice.message.tool_calls or ())))

    def typed(self, sdk: Any, answer: Mapping[str, Any]) -> Any:
        return sdk.types.chat.ChatCompletion.construct(**answer)

    def take(self, event: Any) -> None:
        self.usage = event.usage or self.usage
        for choice in event.choices[:1]:
            self.stop = choice.finish_reason or self.stop
            delta = choice.delta
            # Some servers number no calls; they send each of them whole.
            numbered = [(getattr(call, "index", None), call) for call in delta.tool_calls or ()]
            unused = len(self.calls)
            self._take(delta, [(unused + n if at is None else at, call) for n, (at, call) in enumerate(numbered)])

    def _take(self, said: Any, calls: list[tuple[int, Any]]) -> None:
        self.text.append(said.content or said.refusal or "")
        self.refused = self.refused or bool(said.refusal)
        for at, call in calls:
            written = self.calls.setdefault(at, _Written())
            written.id = written.id or call.id or ""
            if call.function is not None:
                written.name = written.name or call.function.name or ""
                written.arguments += call.function.arguments or ""
        if self.text[-1] and self.on_text is not None:
            self.handed_over = True
            self.on_text(self.text[-1])

    def cost(self, read_if_unsaid: int) -> Usage:
        if self.usage is None:  # it is told with the last piece, and some servers do not count
            calls = [f"{call.name} {call.arguments}" for call in self.calls.values()]
            return Usage(read_if_unsaid, estimated("".join(self.text) + " ".join(calls)))
        details = self.usage.prompt_tokens_details
        return Usage(
            read=self.usage.prompt_tokens or 0,
            written=self.usage.completion_tokens or 0,
            cached=(details and details.cached_tokens) or 0,
        )

    def reply(self, usage: Usage) -> Reply:
        text = whole_text("".join(self.text))
        # Some servers give their calls no id, and a result has to say which call it is of.
        calls = tuple(
            read_call(call.id or f"call_{self.turn}_{at}", call.name, call.arguments)
            for at, call in sorted(self.calls.items())
        )
        stop = "refusal" if self.refused else _STOPS.get(self.stop, "end")
        if stop == "length":
            calls = cut_off(calls)
        return Reply(text, calls, "tools" if calls and stop == "end" else stop, usage)
