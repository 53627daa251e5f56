"""The messages of a conversation: who may say them, how a model gets to see them, and where they may be parted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from recollect.stores.ops import Entry
from recollect.values import NOTHING

Role = Literal["user", "assistant", "system", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)

Count = Callable[[str], int]
Shown = dict[str, Any]

# What a provider needs to see besides the text, so that it can tell which result answers which call.
_PASSED_ON = ("tool_calls", "tool_call_id", "name")

# What the frame of a message costs: its role and the marks around it.
_FRAME = 4

_LEFT_OUT = " […] "
# No text has more letters for a token, blanks aside; a longer one is cut before it is counted, which takes time.
_LETTERS_A_TOKEN = 16


class TokenCounts:
    """A counter of tokens that does not count the same text twice.

    It knows a text by its hash and length alone: what is cleared or erased must not live on here.
    """

    def __init__(self, count: Count, size: int = 4096) -> None:
        self._count = count
        self._size = size
        self._known: dict[tuple[int, int], int] = {}

    def __call__(self, text: str) -> int:
        key = (hash(text), len(text))
        tokens = self._known.get(key)
        if tokens is None:
            tokens = self._count(text)
            if len(self._known) >= self._size:
                self._known.clear()
            self._known[key] = tokens
        return tokens


@dataclass(frozen=True, slots=True)
class Message:
    """Something said in a conversation. `seq` is its place in the log."""

    role: Role
    content: str
    timestamp: datetime
    metadata: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    id: str = ""
    seq: int = field(default=0, compare=False)


def message_of(entry: Entry) -> Message:
    """A line of a conversation's log as the message it stands for."""
    role: Any = entry.kind  # checked when it was written
    return Message(role, entry.content, entry.at, entry.metadata, entry.id, entry.seq)


def shown(message: Message, most: int, count: Count) -> Shown:
    """The message as a model gets it, its text cut to so many tokens if it has more."""
    given: Shown = {"role": message.role, "content": cut(message.content, most, count)}
    for name in _PASSED_ON:
        if name in message.metadata:
            given[name] = json.loads(json.dumps(message.metadata[name]))  # a copy: it is the caller's to change
    return given


def cost(given: Shown, count: Count) -> int:
    """The tokens that a message takes up."""
    extra = (
        value if isinstance(value, str) else json.dumps(value) for name, value in given.items() if name in _PASSED_ON
    )
    return _FRAME + count(given["content"]) + sum(count(text) for text in extra)


def cut(text: str, most: int, count: Count) -> str:
    """The text, or its start and its end with a mark between, so that it has at most so many tokens."""
    longest = max(most, 1) * _LETTERS_A_TOKEN
    if len(text) <= longest and count(text) <= most:
        return text
    size = min(len(text), longest)
    while size > 0:
        head = size * 2 // 3
        short = text[:head] + _LEFT_OUT + text[len(text) - (size - head) :]
        tokens = count(short)
        if tokens <= most:
            return short
        size = min(size - 1, size * most // tokens)
    return ""


def calls_of(message: Message) -> list[str]:
    """The ids of the tool calls that an assistant's message makes; one without an id has an empty one."""
    calls = message.metadata.get("tool_calls") if message.role == "assistant" else None
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        return []
    return [str(call.get("id") or "") if isinstance(call, Mapping) else "" for call in calls]


def answers(message: Message) -> str | None:
    """The id of the call that a tool's message answers, if it says."""
    id = message.metadata.get("tool_call_id")
    return None if id is None else str(id)


def joints(messages: Sequence[Message], *, waiting: bool) -> list[int]:
    """Where messages may be parted, from 0 to their number, with every tool result on the side of its call.

    With `waiting`, not behind a call whose result is still to come.
    """
    belongs, unanswered = _threads(messages)
    last = min(unanswered, default=len(messages)) if waiting else len(messages)
    found = [len(messages)]
    earliest = len(messages)
    for place in range(len(messages) - 1, -1, -1):
        earliest = min(earliest, belongs[place])
        if earliest >= place:
            found.append(place)
    return [place for place in reversed(found) if place <= last]


def _threads(messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """For each message the place of the call it answers, or its own; and the places of calls without an answer."""
    belongs = list(range(len(messages)))
    called: dict[str, int] = {}
    open_calls: list[tuple[int, str]] = []
    caller: int | None = None
    for place, message in enumerate(messages):
        if message.role == "assistant":
            caller = place
            ids = calls_of(message)
            called.update(dict.fromkeys(ids, place))
            open_calls += [(place, id) for id in ids]
        elif message.role == "tool" and caller is not None:
            id = answers(message)
            belongs[place] = called.get(id, caller) if id else caller
            answered = next(
                (one for one in open_calls if one[0] == belongs[place] and one[1] in (id or one[1], "")), None
            )
            if answered is not None:
                open_calls.remove(answered)
    return belongs, [place for place, _ in open_calls]
