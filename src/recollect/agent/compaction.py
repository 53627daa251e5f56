"""A dialogue that has grown too long: its oldest steps become a summary in place, the newest stay word for word."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from recollect.agent.prompt import marked
from recollect.errors import BadInput
from recollect.inference.chat import ChatMessage
from recollect.inference.llm import LanguageModel, summary_of
from recollect.inference.summarise import Passage
from recollect.tiers.tool_pairs import Ends, joints
from recollect.words.tokens import count_tokens

# It stands where the user speaks, and much of it is what tools returned: it is quoted, like everything remembered.
_SUMMARY = "[What was done so far, summed up]\n<notes>\n"
_END = "\n</notes>"
_LEAST = 1000

# What the frame of a message and of a call costs.
_FRAME = 4


@dataclass(frozen=True, slots=True)
class Room:
    """How long a dialogue may be, in tokens. Past `full` it is summed up until it takes about half of that."""

    most: int = 100_000

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < _LEAST:
            raise BadInput(f"max_context is a whole number of tokens from {_LEAST}, not {self.most!r:.80}")

    @property
    def full(self) -> int:
        return self.most * 4 // 5

    @property
    def summary(self) -> int:
        """The most that a summary takes."""
        return self.most // 8

    @property
    def result(self) -> int:
        """The most that one tool's answer takes; of a longer one the beginning and the end are shown."""
        return self.most // 5

    def share(self, calls: int) -> int:
        """The same of one of so many that are called at once; what they say together has to leave room, too.

        The newest round is shown word for word, so what does not fit now would never fit again.
        """
        return min(self.result, max(1, self.most * 2 // 5 // max(1, calls)))


@dataclass(frozen=True, slots=True)
class Compaction:
    """The decision that the first `count` messages about the task are shown as `summary` from now on.

    They are counted from where the task begins: what was said before it may be looked up anew.
    """

    count: int
    summary: str

    def applied(self, messages: Sequence[ChatMessage], start: int) -> list[ChatMessage]:
        said = ChatMessage("user", f"{_SUMMARY}{marked(self.summary)}{_END}")
        return [*messages[:start], said, *messages[start + self.count :]]

    def fits(self, messages: Sequence[ChatMessage], start: int) -> bool:
        """Whether no call is parted from its result by it."""
        return self.count > 0 and self.count in _joints(messages, start)

    def as_json(self) -> dict[str, Any]:
        return {"count": self.count, "summary": self.summary}

    @classmethod
    def from_json(cls, kept: Any) -> Self | None:
        """What was kept; None when that is nothing, or nothing of the kind."""
        return cls(**kept) if isinstance(kept, Mapping) and kept.keys() == {"count", "summary"} else None


def cut_of(messages: Sequence[ChatMessage], start: int, room: Room) -> int | None:
    """Up to where the messages from `start` on are to be summed up; None while there is room.

    Never between a call and its result, and never behind the newest of them: what it led to is still to come.
    """
    costs = [cost(message) for message in messages]
    if sum(costs) <= room.full:
        return None
    places = [place + start for place in _joints(messages, start) if place]
    newest = max((at for at, one in enumerate(messages) if one.role == "assistant"), default=start)
    places = [place for place in places if place <= newest]
    if not places or (places[-1] == start + 1 and messages[start].content.startswith(_SUMMARY)):
        return None  # all that could be summed up has been
    fitting = [place for place in places if sum(costs[place:]) <= room.most // 2 - sum(costs[:start])]
    return min(fitting, default=places[-1])


async def compacted(
    messages: Sequence[ChatMessage], start: int, room: Room, model: LanguageModel | None
) -> Compaction | None:
    """What is to be summed up before the model is asked again, and its summary; None while there is room."""
    cut = cut_of(messages, start, room)
    if cut is None:
        return None
    passages = [Passage(_told(message)) for message in messages[start:cut]]
    summary = await summary_of(passages, room.summary, model=model)
    return Compaction(cut - start, summary.text)


def cost(message: ChatMessage) -> int:
    """About what a message costs, in tokens."""
    calls = sum(_FRAME + count_tokens(call.name + json.dumps(dict(call.arguments))) for call in message.tool_calls)
    return _FRAME + count_tokens(message.content) + calls


def _joints(messages: Sequence[ChatMessage], start: int) -> list[int]:
    return joints([_ends(one) for one in messages[start:]])


def _ends(message: ChatMessage) -> Ends:
    answered = (message.call_id,) if message.role == "tool" and message.call_id else ()
    return Ends(tuple(call.id for call in message.tool_calls), answered)


def _told(message: ChatMessage) -> str:
    text = message.content
    if message.role == "user" and text.startswith(_SUMMARY):
        text = text.removeprefix(_SUMMARY).removesuffix(_END)
    calls = [
        f"called {call.name}({json.dumps(dict(call.arguments), ensure_ascii=False)})" for call in message.tool_calls
    ]
    if message.role == "tool":
        return f"{'failed' if message.failed else 'result'}: {text}"
    return "\n".join([*([text] if text.strip() else []), *calls]) or "…"
