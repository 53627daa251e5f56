"""An item of working memory: checked, told as text, counted, and shortened where it does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recollect.errors import BadInput
from recollect.inference.summarise import Count, Passage, extract
from recollect.tiers.tool_pairs import Ends, Item, blocks_of, ends_of, told, tool_calls_of
from recollect.values import plain_json

LONGEST_TEXT = 1_000_000
_DEEPEST = 64
_MESSAGE = ("role", "content", "tool_calls", "tool_call_id", "name")
# What names and pairs the parts of a bare call or result; the rest of it is its substance.
_FRAME = frozenset({"role", "type", "id", "name", "tool_call_id", "tool_use_id", "call_id", "is_error", "status"})

_QUOTED = '{"extract": '

Path = tuple[str | int, ...]


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
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0):
        raise BadInput(f"tokens is a whole number from 0, not {tokens!r:.80}")
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
    return _writable(name, text)


def checked_json(name: str, value: Any) -> Any:
    """A copy as plain JSON, or `BadInput` naming the limit."""
    copy = plain_json(value, name)
    level, inner = 0, [copy]
    while inner := [one for one in inner if isinstance(one, dict | list)]:
        if level >= _DEEPEST:
            raise BadInput(f"{name} is nested more than {_DEEPEST} deep")
        inner = [value for one in inner for value in (one.values() if isinstance(one, dict) else one)]
        level += 1
    _writable(name, _json(copy))
    return copy


def text_of(item: Item) -> str:
    """The item as a person would tell it: who, what was said, which tool was called with what, what it answered."""
    if isinstance(item, str):
        return item
    if "role" not in item:
        if set(item) == {"content"} and isinstance(item["content"], str):
            return item["content"]
        return _block_text(item)
    content = item.get("content")
    said = [content] if isinstance(content, str) else [_block_text(block) for block in blocks_of(item)]
    if content is not None and not isinstance(content, str | list):
        said.append(_json(content))
    said += [_call_text(call) for call in tool_calls_of(item)]
    extra = {key: value for key, value in item.items() if key not in _MESSAGE and value is not None}
    if extra:
        said.append(_json(extra))
    who = str(item["role"])
    for key in ("name", "tool_call_id"):
        if item.get(key):
            who += f" ({item[key]})"
    return f"{who}: " + "\n".join(part for part in said if part)


def as_told(entry: Entry, names: frozenset[str], count: Count) -> Entry:
    """The entry with those results as plain text, because their calls are gone."""
    item = told(entry.item, names)
    text = text_of(item)
    return Entry(item, text, math.ceil(count(text) * entry.scale), ends_of(item), entry.scale)


def shortened(entry: Entry, limit: int, count: Count) -> Entry | None:
    """The entry in at most `limit` tokens: roles, names and ids stay, long parts become extracts.

    None if it cannot be told in so few.
    """
    paths = _parts(entry.item)
    parts = [_substance(_at(entry.item, path)) for path in paths]
    sizes = [count(part) for part in parts]
    room = int(limit / entry.scale) - max(0, count(entry.text) - sum(sizes)) if entry.scale else limit
    for _ in range(4):
        height = water_level(sizes, room)
        item: Any = entry.item
        for path, part, size in zip(paths, parts, sizes, strict=True):
            if size > height:
                item = _with(item, path, extract(part, height, count))
        text = text_of(item)
        short = replace(entry, item=item, text=text, tokens=math.ceil(count(text) * entry.scale))
        if short.tokens <= limit:
            return short
        # Quotes inside JSON cost something too; what it was too much is taken off.
        room -= math.ceil((short.tokens - limit) / max(entry.scale, 0.01)) + len(paths)
    return None


def water_level(sizes: Sequence[int], room: int) -> int:
    """How much each may have at most so that all fit: the small stay whole, the large share what is left."""
    left = max(0, room)
    for smaller, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - smaller)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


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
    if content is None or (isinstance(content, str | list) and not _part_text(content).strip()):
        return "".join(str(value) for value in rest.values() if value)
    return _part_text(content)


def _writable(name: str, text: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise BadInput(f"{name} has {len(text):,} characters; at most {LONGEST_TEXT:,} are kept here")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{name} has half a character (a lone surrogate) at {error.start}; decode it properly"
        ) from error
    return text


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    match block:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "tool_use" | "server_tool_use", "name": name, "input": given}:
            return f"calls {name}({_part_text(given)}) as {block.get('id')}"
        case {"type": "function_call", "name": name, "arguments": given}:
            return f"calls {name}({_part_text(given)}) as {block.get('call_id')}"
        case {"type": "tool_result"}:
            failed = " (an error)" if block.get("is_error") else ""
            return f"result of {block.get('tool_use_id')}{failed}: {_part_text(block.get('content'))}"
        case {"type": "function_call_output"}:
            return f"result of {block.get('call_id')}: {_part_text(block.get('output'))}"
        case _:
            return _json(block)


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return _json(call)
    return f"calls {function.get('name')}({_part_text(function.get('arguments'))}) as {call.get('id')}"


def _part_text(part: Any) -> str:
    match part:
        case None:
            return ""
        case str():
            return part
        case {"type": "text", "text": str(text)}:
            return text
        case {"extract": str(text)} if len(part) == 1:
            return text
        case list():
            return "\n".join(_block_text(block) for block in part)
        case _:
            return _json(part)


def _substance(part: Any) -> str:
    """The text of a part; of one that was shortened before, its extract without the quotes around it."""
    if isinstance(part, str) and part.startswith(_QUOTED):
        try:
            return _part_text(json.loads(part))
        except ValueError:
            return part
    return _part_text(part)


def _parts(item: Item) -> list[Path]:
    """Where the substance of an item is, apart from what names and pairs it."""
    if isinstance(item, str):
        return [()]
    if "role" not in item:
        return _block_parts(item, ())
    paths: list[Path] = [(key,) for key in item if key not in _MESSAGE]
    if isinstance(item.get("content"), list):
        paths += [path for at, block in enumerate(item["content"]) for path in _block_parts(block, ("content", at))]
    elif item.get("content") is not None:
        paths.append(("content",))
    for at, call in enumerate(item.get("tool_calls") or ()):
        if (
            isinstance(call, Mapping)
            and isinstance(call.get("function"), Mapping)
            and call["function"].get("arguments")
        ):
            paths.append(("tool_calls", at, "function", "arguments"))
    return paths


def _block_parts(block: Any, place: Path) -> list[Path]:
    ends = ends_of(block) if isinstance(block, Mapping) else Ends()
    if not ends.calls and not ends.results:
        return [place]
    return [(*place, key) for key in block if key not in _FRAME]


def _at(item: Any, path: Path) -> Any:
    for step in path:
        item = item[step]
    return item


def _with(item: Any, path: Path, short: str) -> Any:
    """A copy with one part replaced by its extract, in a form that is still valid there."""
    if not path:
        if isinstance(item, str):
            return short
        return {"type": "text", "text": short} if isinstance(item, Mapping) and "type" in item else {"extract": short}
    step, rest = path[0], path[1:]
    if not rest and step == "arguments" and isinstance(item[step], str):
        value: Any = json.dumps({"extract": short}, ensure_ascii=False)
    elif not rest and step in ("content", "output", "text"):
        value = short
    else:
        value = _with(item[step], rest, short)
    if isinstance(item, list):
        return [value if at == step else one for at, one in enumerate(item)]
    return {**item, step: value}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
