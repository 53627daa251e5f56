"""An item of working memory: checked, told as text, counted, and shortened where it does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from recollect.errors import BadInput
from recollect.inference.summarise import Count, Passage, extract
from recollect.tiers.checks import checked_name, checked_plain, checked_writable
from recollect.tiers.shapes import part_text, shortened, text_of
from recollect.tiers.tool_pairs import Ends, Item, ends_of, told

LONGEST_TEXT = 1_000_000
_LONGEST_KEY = 256
# Tokens that a caller may count: more than any model reads at once.
_MOST = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """An item with what is known of it."""

    item: Item
    text: str
    tokens: int
    ends: Ends
    scale: float = 1.0
    """Tokens by the caller's count for one of ours, so that a shortened item is still measured by theirs."""

    @property
    def passage(self) -> Passage:
        role = self.item.get("role") if isinstance(self.item, Mapping) else None
        label = role if isinstance(role, str) and self.text.startswith(f"{role}: ") else ""
        return Passage(self.text.removeprefix(f"{label}: ") if label else self.text, label)


def entry_of(given: Any, tokens: int | None, count: Count) -> Entry:
    """A text or a message, checked and copied, or `BadInput` saying what cannot be meant."""
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens <= _MOST):
        raise BadInput(f"tokens is a whole number from 0 to {_MOST:,}, not {tokens!r:.80}")
    item = _checked(given)
    text, ends = text_of(item), ends_of(item)
    if not text_of(_unlabelled(item)).strip() and not ends.calls and not ends.results:
        raise BadInput("an item of working memory needs some content; the one given is empty")
    ours = count(text)
    if tokens is None:
        return Entry(item, text, ours, ends)
    return Entry(item, text, tokens, ends, tokens / max(1, ours))


def checked_text(name: str, text: Any) -> str:
    """A non-empty text that can be written down, or `BadInput`."""
    if not isinstance(text, str):
        raise BadInput(f"{name} is a text, not {type(text).__name__}")
    if not text.strip():
        raise BadInput(f"{name} needs some content; the text given is empty")
    _check_length(name, text)
    return checked_writable(name, text)


def checked_key(what: str, key: Any) -> str:
    """The name of a result or a variable."""
    return checked_name(what, key, _LONGEST_KEY, "units")


def checked_json(name: str, value: Any) -> Any:
    """A copy as plain JSON, or `BadInput` naming the limit."""
    copy = checked_plain(name, value)
    _check_length(name, json.dumps(copy, ensure_ascii=False))
    return copy


def as_told(entry: Entry, names: frozenset[str], count: Count) -> Entry:
    """The entry with those results as plain text, because their calls are gone."""
    item = entry.item if isinstance(entry.item, str) else told(entry.item, names)
    text = text_of(item)
    return Entry(item, text, math.ceil(count(text) * entry.scale), ends_of(item), entry.scale)


def shortened_entry(entry: Entry, limit: int, count: Count) -> Entry | None:
    """The entry in at most `limit` tokens, by the caller's count where they gave one; None if that cannot be."""
    item = shortened(entry.item, int(limit / max(entry.scale, 0.01)), count, shorten=extract)
    if item is None:
        return None
    text = text_of(item)
    short = replace(entry, item=item, text=text, tokens=math.ceil(count(text) * entry.scale))
    return short if short.tokens <= limit else None


def _checked(given: Any) -> Item:
    if isinstance(given, str):
        return checked_text("an item of working memory", given)
    if not isinstance(given, Mapping):
        raise BadInput(f"working memory keeps texts and messages (dicts), not {type(given).__name__}")
    item: dict[str, Any] = checked_json("item", dict(given))
    if "role" in item and (not isinstance(item["role"], str) or not item["role"].strip()):
        raise BadInput(f"the role of a message is a name such as 'user', not {item['role']!r:.80}")
    if item.get("tool_calls") is not None and not isinstance(item["tool_calls"], list):
        raise BadInput(f"tool_calls is a list, not {type(item['tool_calls']).__name__}")
    return item


def _unlabelled(item: Item) -> Item:
    if isinstance(item, str) or "role" not in item:
        return item or ""
    rest = {key: value for key, value in item.items() if key not in ("role", "name", "content")}
    content = item.get("content")
    if content is None or (isinstance(content, str | list) and not part_text(content).strip()):
        return "".join(str(value) for value in rest.values() if value)
    return part_text(content)


def _check_length(name: str, text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise BadInput(f"{name} has {len(text):,} characters; at most {LONGEST_TEXT:,} are kept here")
