"""What no tier takes: texts, names and JSON that some store could not keep, each refused with its limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recollect.errors import BadInput
from recollect.stores.admission import check_text
from recollect.values import has_control, is_simple, plain_json

_DEEPEST = 64
# A little can unfold into very much: a list of the same list twice, forty times over.
_MOST_VALUES = 100_000


def checked_writable(name: str, text: str) -> str:
    """A text that every store can keep."""
    if "\x00" in text:
        raise BadInput(f"{name} has a NUL character at {text.index(chr(0))}, which not every store can keep; drop it")
    try:
        check_text((text,))
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error
    return text


def checked_name(what: str, name: Any, most: int, example: str) -> str:
    """A short text without control characters: what things are called by."""
    if not isinstance(name, str) or not name.strip():
        raise BadInput(f"{what} is a name such as {example!r}, not {name!r:.80}")
    if len(name) > most:
        raise BadInput(f"{what} has at most {most} characters, not {len(name):,}")
    if has_control(name):
        raise BadInput(f"{what} has no control characters, and {name!r:.80} does")
    check_text((name,))
    return name


def checked_plain(name: str, value: Any) -> Any:
    """A copy as plain JSON that every store can keep, or `BadInput` naming what cannot be kept."""
    if is_simple(value):
        return dict(value)
    waiting, left = [(value, 0)], _MOST_VALUES
    while waiting:
        one, depth = waiting.pop()
        left -= 1
        if depth > _DEEPEST or left < 0:
            raise BadInput(
                f"{name} is nested more than {_DEEPEST} deep, has more than {_MOST_VALUES:,} values, "
                "or contains itself; keep it flatter"
            )
        if isinstance(one, str):
            checked_writable(name, one)
        elif isinstance(one, Mapping):
            for key, inner in one.items():
                if not isinstance(key, str):
                    raise BadInput(f"{name} has the key {key!r:.80}; a key is a text, so say {str(key)!r:.80}")
                waiting += [(key, depth + 1), (inner, depth + 1)]
        elif isinstance(one, list | tuple):
            waiting += [(inner, depth + 1) for inner in one]
    return plain_json(value, name)
