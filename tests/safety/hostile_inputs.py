"""Hostile texts and values for every decoder of external input."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

DEEP = 100_000

# Too deep, too long, truncated, not JSON, or JSON that parsers read differently.
TEXTS: dict[str, str] = {
    "deep lists": "[" * DEEP + "]" * DEEP,
    "deep lists, open": "[" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "endless number": "9" * 5_000,
    "endless number within": '{"state": {"a": ' + "9" * 5_000 + "}}",
    "beyond floats": '{"a": 1e999, "b": -1e999}',
    "not a number": '{"a": NaN}',
    "infinite": '{"a": -Infinity}',
    "said twice": '{"state": {}, "state": 1}',
    "half a character": '{"state": {"a": "\\ud800"}}',
    "half a character as a name": '{"\\udfff": 1}',
    "cut": '{"state": {"a": "b',
    "cut after a backslash": '{"a": "\\',
    "empty": "",
    "blank": " \t ",
    "nothing": "null",
    "true": "true",
    "a number": "7",
    "a text": '"text"',
    "a list": "[1, 2, 3]",
    "an object": "{}",
    "zero bytes": "\x00\x00\x00",
    "a mark before": "\ufeff{}",
    "wide": "[" + "0," * 300_000 + "0]",
    "many names": "{" + ",".join(f'"{n}":0' for n in range(50_000)) + "}",
    "long name": '{"' + "a" * 1_000_000 + '": 1}',
    "comments": '{"a": 1} // and so on',
    "two at once": "{}{}",
    "python": "__import__('os').system('true')",
    "an object to be revived": '{"py/object": "os.system", "__class__": "os.system", "__reduce__": ["os.system"]}',
    "a pickle": "\x80\x04\x95cos\nsystem\n",
    "yaml": "!!python/object/apply:os.system ['true']",
}

# Values of unexpected types.
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    10**40,
    -(10**400),
    1e308,
    "",
    "x",
    "\x00",
    "\x1b[2J",
    "2026-13-45",
    "9999-12-31T23:59:59-12:00",
    [],
    [[]],
    {},
    {"a": {"b": None}},
    [None, 1, "x"],
)


def nest(levels: int, wide: bool = False) -> Any:
    """Return a value nested to a depth; with `wide`, shared references make its serialization exponentially large."""
    value: Any = "ha"
    for _ in range(levels):
        value = [value, value] if wide else {"a": value}
    return value


def mutate(document: Any, values: tuple[Any, ...] = VALUES) -> Iterator[Any]:
    """Yield copies of the document with one value replaced, removed or added."""
    for path in _paths(document):
        for value in values:
            yield _with(document, path, value)
        if path:
            yield _without(document, path)
    if isinstance(document, dict):
        yield {**document, "another": 1}
        yield {**document, "__class__": "os.system"}


def to_text(value: Any) -> str:
    """Return the value as JSON, or a hostile text if it cannot be serialized."""
    try:
        return json.dumps(value)
    except ValueError:  # an endless number
        return "9" * 5_000
    except RecursionError:
        return TEXTS["deep objects"]


def _paths(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield before
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for step, value in inner:
        yield from _paths(value, (*before, step))


def _with(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return copy.deepcopy(value)
    changed = copy.deepcopy(document)
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = copy.deepcopy(value)
    return changed


def _without(document: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(document)
    place = changed
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return changed
