"""The messages of a conversation: who may say them, what they may hold, and how a model gets to see them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from recollect.errors import BadInput
from recollect.inference.summarise import Count, Passage
from recollect.stores.ops import Entry
from recollect.tiers.checks import checked_plain
from recollect.tiers.entries import QUARANTINED, checked_content
from recollect.tiers.shapes import is_picture, part_text, shortened, text_of, without_pictures
from recollect.tiers.tool_pairs import ends_of
from recollect.values import NOTHING

Role = Literal["user", "assistant", "system", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)

ALSO_KNOWN_AS: Mapping[Any, Role] = {"developer": "system"}
"""Newer names of roles. One who may instruct is one role here, whatever a provider calls it."""

Shown = dict[str, Any]
Blocks = Sequence[Mapping[str, Any]]
Content = str | Blocks

BLOCKS = "content.blocks"
"""The name under which an entry keeps content that came in blocks; its text is the entry's own."""

# What a provider needs to see besides the text, so that it can tell which result answers which call.
_PASSED_ON = ("tool_calls", "tool_call_id", "name")

# What the frame of a message costs: its role and the marks around it.
_FRAME = 4

# About what providers count for a picture, however many letters its address or its bytes have.
_PICTURE = 1600

_HELD_BACK = "(text that gives orders, and is not repeated here)"
_LEFT_OUT = " […] "
# What stands for a part of which nothing can be shown: providers refuse blocks that are empty.
_GAP = "…"
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
    """Something said in a conversation. `seq` is its place in the log, or 0 in the answer to whoever said it.

    `blocks` is the content as it was given, where it came in blocks; `content` is then what they say, as text.
    """

    role: Role
    content: str
    timestamp: datetime
    metadata: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    id: str = ""
    seq: int = field(default=0, compare=False)
    blocks: Blocks | None = None

    @property
    def given(self) -> Content:
        """The content in the shape in which it was said."""
        return self.content if self.blocks is None else self.blocks


def message_of(entry: Entry) -> Message:
    """A line of a conversation's log as the message it stands for."""
    role: Any = entry.kind  # checked when it was written
    blocks = entry.metadata.get(BLOCKS)
    if blocks is None:
        return Message(role, entry.content, entry.at, entry.metadata, entry.id, entry.seq)
    about = {name: value for name, value in entry.metadata.items() if name != BLOCKS}
    return Message(role, entry.content, entry.at, about or NOTHING, entry.id, entry.seq, tuple(blocks))


def checked_blocks(content: Any, most: int) -> tuple[str, list[Mapping[str, Any]]]:
    """Content in blocks, as text and as it was given; `BadInput` saying what cannot be meant."""
    for at, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not isinstance(kind, str) or (kind == "text" and not isinstance(block.get("text"), str)):
            raise BadInput(
                f"block {at} of the content is {block!r:.80}; a block is a dict with a 'type', "
                "such as {'type': 'text', 'text': 'Hello.'}"
            )
    blocks = checked_plain("content", [dict(block) for block in content])
    size = len(json.dumps(blocks, ensure_ascii=False))
    if size > most:
        raise BadInput(
            f"the blocks have {size:,} characters and max_content is {most:,}; split them, or raise the setting. "
            "A picture is better given by its address"
        )
    ends = ends_of({"content": blocks})
    text = part_text(blocks)
    return checked_content(text, max(most, len(text)), may_be_empty=bool(ends.calls or ends.results)), blocks


def item_of(message: Message) -> Shown:
    """The message whole, as a model would get it."""
    given: Shown = {"role": message.role, "content": message.content}
    if message.blocks is not None:
        given["content"] = list(message.blocks)
    return given | {name: message.metadata[name] for name in _PASSED_ON if name in message.metadata}


def passage_of(message: Message) -> Passage:
    """The message for a summary: who said what, and which tools were called."""
    if QUARANTINED in message.metadata:
        return Passage(summed_up_as(message), message.role)
    said = text_of(
        {name: value for name, value in item_of(message).items() if name in ("role", "content", "tool_calls")}
    )
    return Passage(said.removeprefix(f"{message.role}: "), message.role)


def summed_up_as(message: Message) -> str:
    """What a summary may be made of. Orders that a tool brought would outlive what they came with."""
    return _HELD_BACK if QUARANTINED in message.metadata else message.content


def shown(message: Message, most: int, count: Count) -> Shown:
    """The message as a model gets it, its content cut to so many tokens if it has more."""
    # Copies, because what is shown is the caller's to change.
    given = {name: value if isinstance(value, str) else _copy(value) for name, value in item_of(message).items()}
    content = given["content"]
    given["content"] = cut(content, most, count) if isinstance(content, str) else _fitted(content, most, count)
    return given


def cost(given: Shown, count: Count) -> int:
    """The tokens that a message takes up."""
    extra = (
        value if isinstance(value, str) else json.dumps(value) for name, value in given.items() if name in _PASSED_ON
    )
    return _FRAME + _content_cost(given["content"], count) + sum(count(text) for text in extra)


def shown_cost(message: Message, most: int, count: Count) -> int:
    """What `cost` says of a message as it is `shown`; one of text alone need not be put together for that."""
    if message.blocks is None and message.metadata.keys().isdisjoint(_PASSED_ON):
        return _FRAME + count(cut(message.content, most, count))
    return cost(shown(message, most, count), count)


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _content_cost(content: Any, count: Count) -> int:
    if isinstance(content, str):
        return count(content)
    return sum(_PICTURE if is_picture(block) else count(json.dumps(block, ensure_ascii=False)) for block in content)


def _fitted(blocks: list[Mapping[str, Any]], most: int, count: Count) -> list[Mapping[str, Any]]:
    """The blocks in at most so many tokens: pictures become a line of text, and long parts are cut.

    Calls and results stay what they are, so where those alone are too many, so is the answer.
    """
    if _content_cost(blocks, count) <= most:
        return blocks
    plain = without_pictures(blocks)
    short = shortened(
        {"role": "", "content": plain},
        most,
        count,
        shorten=lambda text, most, count: cut(text, most, count) or _GAP,
        measure=lambda item: 0 if isinstance(item, str) else _content_cost(item["content"], count),
    )
    return plain if short is None or isinstance(short, str) else short["content"]


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
