"""How the flows of conversation memory talk, and what they read off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from recollect.settings import Settings
from recollect.stores.base import Log
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.messages import Message, cost
from recollect.values import Scope
from recollect.words.tokens import count_tokens

ADA = Scope(tenant="acme", user="ada", agent="helper", session="s1")

Maker = Callable[..., ConversationMemory]


def conversation_on(store: Log, clock: ManualClock, scope: Scope = ADA, **options: Any) -> ConversationMemory:
    return ConversationMemory(store, scope=scope, settings=Settings(), clock=clock, **options)


async def talk(conversation: ConversationMemory, turns: int, start: int = 0) -> None:
    for n in range(start, start + turns):
        await conversation.add_message("assistant" if n % 2 else "user", f"message {n}")


def texts(shown: list[dict[str, Any]]) -> list[str]:
    return [one["content"] for one in shown]


def tokens_of(shown: list[dict[str, Any]]) -> int:
    return sum(cost(one, count_tokens) for one in shown)


def paired(shown: list[dict[str, Any]]) -> bool:
    """Whether every result that is shown as one follows a call that is shown."""
    called: set[str] = set()
    for one in shown:
        blocks = one["content"] if isinstance(one["content"], list) else []
        answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        answered |= {one["tool_call_id"]} if one["role"] == "tool" else set()
        if not answered <= called:
            return False
        called |= {block["id"] for block in blocks if block["type"] == "tool_use"}
        called |= {call["id"] for call in one.get("tool_calls", ())}
    return True


def listing(messages: list[Message], before: str | None) -> str:
    """A summary that says what it covers, so that nothing can go missing unnoticed."""
    said = [before] if before else []
    return " ".join([*said, *(message.content.split()[-1] for message in messages)])


class Held:
    """A summariser that says when it is asked, and answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def __call__(self, messages: list[Message], before: str | None) -> str:
        self.asked.set()
        assert self.go_on.wait(10)
        return "told slowly"
