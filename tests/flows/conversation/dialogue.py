"""Helpers for the conversation flows: messages, token counts and summarizers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from recollect.language.analysis import count_tokens
from recollect.settings import Settings
from recollect.stores.base import Log
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.messages import Message, count_message_tokens
from recollect.types import Scope

ADA = Scope(tenant="acme", user="ada", agent="helper", session="s1")

Maker = Callable[..., ConversationMemory]


def conversation_on(store: Log, clock: ManualClock, scope: Scope = ADA, **options: Any) -> ConversationMemory:
    return ConversationMemory(store, scope=scope, settings=Settings(), clock=clock, **options)


async def talk(conversation: ConversationMemory, turns: int, start: int = 0) -> None:
    for n in range(start, start + turns):
        await conversation.add_message("assistant" if n % 2 else "user", f"message {n}")


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


def tokens_of(messages: list[dict[str, Any]]) -> int:
    return sum(count_message_tokens(message, count_tokens) for message in messages)


def is_paired(messages: list[dict[str, Any]]) -> bool:
    """Return true if every tool result in `shown` follows its call."""
    called: set[str] = set()
    for message in messages:
        blocks = message["content"] if isinstance(message["content"], list) else []
        answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        answered |= {message["tool_call_id"]} if message["role"] == "tool" else set()
        if not answered <= called:
            return False
        called |= {block["id"] for block in blocks if block["type"] == "tool_use"}
        called |= {call["id"] for call in message.get("tool_calls", ())}
    return True


def listing(messages: list[Message], before: str | None) -> str:
    """Summarize by listing the last word of every covered message, so that gaps are visible."""
    parts = [before] if before else []
    return " ".join([*parts, *(message.content.split()[-1] for message in messages)])


class PausedSummarizer:
    """Summarizer that sets `asked` and waits for `go_on`."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def __call__(self, messages: list[Message], before: str | None) -> str:
        self.asked.set()
        assert self.go_on.wait(10)
        return "told slowly"
