"""Tool calls and their results, in the shapes that models speak: which item holds which, and where a cut parts none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Item = str | Mapping[str, Any]

_CALLS = {"tool_use": "id", "server_tool_use": "id", "function_call": "call_id"}
_RESULTS = {"tool_result": "tool_use_id", "function_call_output": "call_id"}

# Whose texts hold neither calls nor results.
_PLAIN = ("user", "system")

# Names for calls that have none; no provider gives an id like this.
_UNNAMED = "\x00"


@dataclass(frozen=True, slots=True)
class Ends:
    """The ids of the calls that an item makes and of the calls that it answers."""

    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


def ends_of(item: Item) -> Ends:
    """OpenAI: `tool_calls` and `tool_call_id`. Anthropic: blocks `tool_use` and `tool_result`. Responses: `call_id`."""
    if isinstance(item, str):
        return Ends()
    calls, results = [], []
    for block in (item, *blocks_of(item)):
        if isinstance(block, Mapping):
            kind = block.get("type")
            calls.append(block.get(_CALLS.get(kind, "")) if isinstance(kind, str) else None)
            results.append(block.get(_RESULTS.get(kind, "")) if isinstance(kind, str) else None)
    calls += [call.get("id") for call in tool_calls_of(item)]
    results.append(item.get("tool_call_id"))
    return Ends(_names(calls), _names(results))


def ends_among(items: Sequence[Item]) -> list[Ends]:
    """The ends of each item, and of those that give no id by their order: a tool answers the assistant before it.

    The names that are made up for those are good for this sequence alone.
    """
    found = [ends_of(item) for item in items]
    called: set[str] = set()
    caller: int | None = None
    waiting: list[str] = []
    for at, item in enumerate(items):
        role = item.get("role") if isinstance(item, Mapping) else None
        if role == "assistant" and isinstance(item, Mapping):
            nameless = [call for call in tool_calls_of(item) if not _names([call.get("id")])]
            made = [f"{_UNNAMED}{at}.{number}" for number in range(len(nameless))]
            found[at] = Ends((*found[at].calls, *made), found[at].results)
            caller, waiting = at, list(found[at].calls)
        elif role == "tool" and caller is not None and called.isdisjoint(found[at].results):
            # An id that nobody called by answers a call without one.
            open_calls = [one for one in waiting if not found[at].results or one.startswith(_UNNAMED)]
            answered = open_calls[0] if open_calls else f"{_UNNAMED}{caller}"
            if answered not in found[caller].calls:
                found[caller] = Ends((*found[caller].calls, answered), found[caller].results)
            found[at] = Ends(found[at].calls, (*found[at].results, answered))
        waiting = [one for one in waiting if one not in found[at].results]
        called.update(found[at].calls)
    return found


def blocks_of(item: Mapping[str, Any]) -> Sequence[Any]:
    content = item.get("content")
    return content if isinstance(content, list) else ()


def tool_calls_of(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = item.get("tool_calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list | tuple) else []


def pending(ends: Sequence[Ends], before: Sequence[str] = ()) -> dict[str, int]:
    """The calls that have no result yet, with their places; those of `before` come from before the first place."""
    waiting = dict.fromkeys(before, -1)
    for at, end in enumerate(ends):
        for name in end.results:
            waiting.pop(name, None)
        waiting.update(dict.fromkeys(end.calls, at))
    return waiting


def joints(ends: Sequence[Ends], *, waiting: bool = False) -> list[int]:
    """Where a sequence may be parted, from 0 to its length, with every result on the side of its call.

    With `waiting`, not behind a call whose result is still to come.
    """
    belongs = list(range(len(ends)))
    for made, at, _ in _answers(ends):
        belongs[at] = min(belongs[at], made)
    last = min(pending(ends).values(), default=len(ends)) if waiting else len(ends)
    found, earliest = [len(ends)], len(ends)
    for place in range(len(ends) - 1, -1, -1):
        earliest = min(earliest, belongs[place])
        if earliest >= place:
            found.append(place)
    return [place for place in reversed(found) if place <= last]


def cut_before(ends: Sequence[Ends], wanted: int) -> int:
    """The last place at or before `wanted` where a cut parts no call from its result."""
    return max(place for place in joints(ends) if place <= wanted)


def cut_after(ends: Sequence[Ends], wanted: int) -> int:
    """The first place at or after `wanted` where a cut parts no call from its result."""
    return min(place for place in joints(ends) if place >= wanted)


def is_one_exchange(ends: Sequence[Ends]) -> bool:
    """Whether these are calls followed by their results and nothing else; a call after a result begins another."""
    answered = False
    for end in ends:
        if not (end.calls or end.results) or (end.calls and answered):
            return False
        answered = answered or bool(end.results)
    return True


def parted_by(ends: Sequence[Ends], cut: int) -> dict[int, frozenset[str]]:
    """For each item after the cut, the ids that it answers and whose calls stand before the cut."""
    found: dict[int, frozenset[str]] = {}
    for made, at, name in _answers(ends):
        if made < cut <= at:
            found[at] = found.get(at, frozenset()) | {name}
    return found


def orphans(items: Sequence[Item]) -> dict[int, frozenset[str]]:
    """For each item with results of no open call before it, their ids: providers refuse those, and second results too.

    What is known of an item by what stands before it stays so, whatever follows. A result without an id answers
    whoever spoke last, and one with an id that nobody called by a call without one.
    """
    found: dict[int, frozenset[str]] = {}
    waiting: dict[str, None] = {}
    nameless, caller = 0, False
    for at, item in enumerate(items):
        role = item.get("role") if isinstance(item, Mapping) else None
        if role in _PLAIN and isinstance(item, Mapping) and isinstance(item.get("content"), str):
            continue  # most are, and every message is looked at whenever there is a new one
        ends = ends_of(item)
        alone = [name for name in ends.results if name not in waiting]
        if role == "tool" and not ends.results:
            alone = [] if caller else [_UNNAMED]
        elif role == "tool" and alone and nameless:
            nameless, alone = nameless - 1, []
        if alone:
            found[at] = frozenset(alone)
        for name in ends.results:
            waiting.pop(name, None)
        waiting |= dict.fromkeys(ends.calls)
        if role == "assistant" and isinstance(item, Mapping):
            nameless = sum(not _names([call.get("id")]) for call in tool_calls_of(item))
            caller = True
    return found


def told(item: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The item with those results as plain text: their calls are gone, and a result alone is refused by every model."""
    name = item.get("tool_call_id") or _answered(item)
    if name in names or (item.get("role") == "tool" and any(one.startswith(_UNNAMED) for one in names)):
        content = item.get("content", item.get("output"))
        return {"role": "user", "content": f"[late result of {name or 'a tool'}] {_plain(content)}"}
    blocks = [
        {"type": "text", "text": f"[late result of {_answered(block)}] {_plain(block.get('content'))}"}
        if isinstance(block, Mapping) and _answered(block) in names
        else block
        for block in blocks_of(item)
    ]
    return {**item, "content": blocks} if blocks else dict(item)


def _answers(ends: Sequence[Ends]) -> Iterator[tuple[int, int, str]]:
    """(call, result, id) as places in the sequence; an id that is used again belongs to its last call."""
    made: dict[str, int] = {}
    for at, end in enumerate(ends):
        for name in end.results:
            if name in made:
                yield made[name], at, name
        made.update(dict.fromkeys(end.calls, at))


def _answered(block: Mapping[str, Any]) -> str | None:
    kind = block.get("type")
    name = block.get(_RESULTS.get(kind, "")) if isinstance(kind, str) else None
    return name if isinstance(name, str) else None


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(
            str(part["text"]) if isinstance(part, Mapping) and "text" in part else json.dumps(part, ensure_ascii=False)
            for part in content
        )
    return "" if content is None else json.dumps(content, ensure_ascii=False)


def _names(found: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in found if isinstance(name, str) and name))
