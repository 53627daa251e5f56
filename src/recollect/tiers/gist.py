"""Older messages in a few lines, without a language model: what matters most of what each of them said."""

from __future__ import annotations

import re
from collections.abc import Sequence

from recollect.inference.offline import importance_of
from recollect.tiers.messages import Count, Message, cut

_LONGEST_LINE = 200
_LINES_A_MESSAGE = 2
# Of two lines that matter alike the later one is kept: it is more likely to be still true.
_LATENESS = 0.1
# Where a message is searched for its best sentences.
_READ = 20_000

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+")


def gist(messages: Sequence[Message], before: str | None, most: int, count: Count) -> str:
    """The summary so far and the messages after it, as lines of at most so many tokens together, oldest first."""
    lines = [line for line in (before or "").splitlines() if line.strip()]
    for message in messages:
        lines += _telling(message)
    lines = list(dict.fromkeys(lines))
    worth = [importance_of(line.partition(": ")[2] or line) for line in lines]
    best = sorted(range(len(lines)), key=lambda at: -(worth[at] + _LATENESS * at / len(lines)))
    taken: list[int] = []
    left = most
    for at in best:
        tokens = count(lines[at])
        if tokens <= left:
            taken.append(at)
            left -= tokens
    if best and not taken:
        return cut(lines[best[0]], most, count)
    return "\n".join(lines[at] for at in sorted(taken))


def _telling(message: Message) -> list[str]:
    """The sentences of a message that matter most, in their order, each with who said it."""
    sentences = [" ".join(part.split()) for part in _SENTENCE_END.split(message.content[:_READ]) if part.strip()]
    if not sentences:
        calls = message.metadata.get("tool_calls")
        return [f"{message.role}: called {_names(calls)}"] if calls else []
    ranked = sorted(range(len(sentences)), key=lambda at: (-importance_of(sentences[at]), at))
    chosen = sorted(ranked[:_LINES_A_MESSAGE])
    return [f"{message.role}: {_shortened(sentences[at])}" for at in chosen]


def _names(calls: object) -> str:
    """The names of the tools called, in the shapes that providers give them."""
    named = []
    for call in calls if isinstance(calls, list | tuple) else ():
        if isinstance(call, dict):
            function = call.get("function")
            named.append(str(call.get("name") or (function.get("name") if isinstance(function, dict) else "a tool")))
    return ", ".join(named) or "a tool"


def _shortened(sentence: str) -> str:
    return sentence if len(sentence) <= _LONGEST_LINE else sentence[: _LONGEST_LINE - 1].rstrip() + "…"
