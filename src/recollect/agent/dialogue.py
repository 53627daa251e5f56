"""The dialogue that a model is shown: the session's conversation so far, then the task and what is done about it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from recollect.inference.chat import ChatMessage, Reply, ToolCall, Usage
from recollect.tiers.shapes import text_of

Shown = Mapping[str, Any]

_BEGINS = "(the conversation begins)"


def without_task(messages: Sequence[dict[str, Any]], task: str) -> list[dict[str, Any]]:
    """The conversation before the task, which may have been written down already."""
    kept = list(messages)
    if kept and kept[-1]["role"] == "user" and kept[-1]["content"] == task:
        kept.pop()
    return kept


def history_of(messages: Sequence[Shown]) -> tuple[str, list[ChatMessage]]:
    """A conversation as instructions and messages. Tools that were called in it are told of as text.

    A call whose result is missing, or a tool that no longer exists, would be refused by some providers.
    """
    instructions: list[str] = []
    said: list[ChatMessage] = []
    for message in messages:
        role = message["role"]
        text = text_of({name: message[name] for name in ("content", "tool_calls") if message.get(name)}).strip()
        if role == "system" and not said:
            instructions.append(text)
        elif text:
            shown = text if role in ("user", "assistant") else f"[{role}] {text}"
            said.append(ChatMessage("assistant" if role == "assistant" else "user", shown))
    if said and said[0].role == "assistant":
        said.insert(0, ChatMessage("user", _BEGINS))  # some models insist that the user begins
    return "\n\n".join(instructions), said


def message_json(message: ChatMessage) -> dict[str, Any]:
    return {"role": message.role, "content": message.content}


def message_from(kept: Mapping[str, Any]) -> ChatMessage:
    return ChatMessage(kept["role"], kept["content"])


def reply_json(reply: Reply) -> dict[str, Any]:
    """A reply as plain data, to be kept until the run is over."""
    return {
        "text": reply.text,
        "stop": reply.stop,
        "usage": asdict(reply.usage),
        "calls": [
            {"id": call.id, "name": call.name, "arguments": dict(call.arguments), "malformed": call.malformed}
            for call in reply.tool_calls
        ],
    }


def reply_from(kept: Mapping[str, Any]) -> Reply:
    calls = tuple(ToolCall(one["id"], one["name"], one["arguments"], one["malformed"]) for one in kept["calls"])
    return Reply(kept["text"], calls, kept["stop"], Usage(**kept["usage"]))


def added(one: Usage, other: Usage) -> Usage:
    """What both have cost together."""
    sums, more = asdict(one), asdict(other)
    return Usage(**{name: sums[name] + more[name] for name in sums})


def whole(reply: Reply, number: int) -> Reply:
    """The reply with texts that can be stored and calls that can be told apart: some servers give no ids."""
    seen: set[str] = set()
    calls: list[ToolCall] = []
    for place, call in enumerate(reply.tool_calls):
        id = call.id if call.id and call.id not in seen else f"call_{number}_{place}"
        seen.add(id)
        calls.append(ToolCall(id, _text(call.name), _plain(call.arguments), call.malformed and _text(call.malformed)))
    return Reply(_text(reply.text), tuple(calls), reply.stop, reply.usage)


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    written = _text(json.dumps(dict(arguments), ensure_ascii=False, default=str))
    made: dict[str, Any] = json.loads(written, parse_constant=str)  # NaN is no JSON, and a tool's to refuse
    return made
