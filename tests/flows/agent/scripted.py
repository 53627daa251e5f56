"""Scripted models for tests, which record their requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from recollect.models.chat import ChatMessage, Reply, TextCallback, ToolCall, ToolSpec, Usage

Line = Reply | Exception | Callable[[Sequence[ChatMessage]], Reply]


@dataclass(frozen=True)
class Asked:
    """One request to the model."""

    messages: tuple[ChatMessage, ...]
    system: str
    tools: tuple[ToolSpec, ...]
    may_call: bool = True


class Scripted:
    """Model that returns its lines in order, and streams them word by word."""

    name = "scripted"

    def __init__(self, *lines: Line) -> None:
        self._lines = list(lines)
        self.asked: list[Asked] = []
        self.closed = False

    async def reply(
        self,
        messages: Sequence[ChatMessage],
        *,
        system: str = "",
        tools: Sequence[ToolSpec] = (),
        on_text: TextCallback | None = None,
        may_call: bool = True,
    ) -> Reply:
        self.asked.append(Asked(tuple(messages), system, tuple(tools), may_call))
        line = self._lines.pop(0)
        if isinstance(line, Exception):
            raise line
        reply = line if isinstance(line, Reply) else line(messages)
        if on_text is not None:
            for word in reply.text.split(" "):
                on_text(word)
        return reply

    async def close(self) -> None:
        self.closed = True


def says(text: str, **more: Any) -> Reply:
    return Reply(text, usage=Usage(100, 10, 80), **more)


def wants(*calls: ToolCall, text: str = "") -> Reply:
    return Reply(text, calls, "tools", Usage(100, 10, 80))


def call(name: str, id: str | None = None, /, **arguments: Any) -> ToolCall:
    return ToolCall(id or f"id_{name}", name, arguments)


def results(messages: Sequence[ChatMessage]) -> list[str]:
    return [message.content for message in messages if message.role == "tool"]
