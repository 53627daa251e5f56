"""Messages in the shapes that models speak: told as text, and made shorter part by part."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recollect.inference.summarise import Count
from recollect.tiers.tool_pairs import Ends, Item, blocks_of, ends_of, tool_calls_of

_MESSAGE = ("role", "content", "tool_calls", "tool_call_id", "name")
# What names and pairs the parts of a bare call or result; the rest of it is its substance.
_FRAME = frozenset({"role", "type", "id", "name", "tool_call_id", "tool_use_id", "call_id", "is_error", "status"})

_PICTURES = ("image", "image_url", "input_image")
_QUOTED = '{"extract": '
_TRIES = 4

Path = tuple[str | int, ...]
Shorten = Callable[[str, int, Count], str]


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


def is_picture(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") in _PICTURES


def without_pictures(blocks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The blocks with a line of text in place of each picture."""
    return [{"type": "text", "text": _picture_text(block)} if is_picture(block) else block for block in blocks]


def shortened(
    item: Item, limit: int, count: Count, *, shorten: Shorten, measure: Callable[[Item], int] | None = None
) -> Item | None:
    """The item in at most `limit` tokens, by `measure` or as its text is counted; None if it cannot be told in so few.

    Roles, names and ids stay; long parts become what `shorten` makes of them.
    """
    measured = measure or (lambda one: count(text_of(one)))
    paths = _parts(item)
    parts = [_substance(_at(item, path)) for path in paths]
    sizes = [count(part) for part in parts]
    room = limit - max(0, measured(item) - sum(sizes))
    for _ in range(_TRIES):
        height = water_level(sizes, room)
        short: Any = item
        for path, part, size in zip(paths, parts, sizes, strict=True):
            if size > height:
                short = _with(short, path, shorten(part, height, count))
        over = measured(short) - limit
        if over <= 0:
            return short  # type: ignore[no-any-return]
        # Quotes inside JSON cost something too; what it was too much is taken off.
        room -= over + len(paths)
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


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    match block:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "tool_use" | "server_tool_use", "name": name, "input": given}:
            return f"calls {name}({part_text(given)}) as {block.get('id')}"
        case {"type": "function_call", "name": name, "arguments": given}:
            return f"calls {name}({part_text(given)}) as {block.get('call_id')}"
        case {"type": "tool_result"}:
            failed = " (an error)" if block.get("is_error") else ""
            return f"result of {block.get('tool_use_id')}{failed}: {part_text(block.get('content'))}"
        case {"type": "function_call_output"}:
            return f"result of {block.get('call_id')}: {part_text(block.get('output'))}"
        case _ if is_picture(block):
            return _picture_text(block)
        case _:
            return _json(block)


def _picture_text(block: Mapping[str, Any]) -> str:
    """Where a picture is, or of which kind; never the picture itself, whose letters say nothing."""
    source = block.get("source", block.get("image_url", block.get("file_id")))
    if isinstance(source, Mapping):
        named = (source.get(name) for name in ("url", "file_id", "media_type"))
        source = next((name for name in named if isinstance(name, str)), None)
    if not isinstance(source, str):
        return "[image]"
    return f"[image {source.partition(';')[0] if source.startswith('data:') else source}]"


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    named = function if isinstance(function, Mapping) else call
    if not isinstance(named.get("name"), str):
        return _json(call)
    given = next((named[key] for key in ("arguments", "args", "input") if key in named), None)
    as_named = f" as {call['id']}" if call.get("id") else ""
    return f"calls {named['name']}({part_text(given)}){as_named}"


def part_text(part: Any) -> str:
    """What content says, be it a text, blocks, or what a tool is called with."""
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
            return part_text(json.loads(part))
        except (ValueError, RecursionError):  # somebody's own text, which only begins like ours
            return part
    return part_text(part)


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
