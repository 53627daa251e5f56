"""Argument checks that raise an error with the name of the argument, and text formats for messages."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Collection, Mapping
from datetime import datetime
from types import NoneType
from typing import Any, TypeVar

from recollect.clock import to_utc
from recollect.errors import BadInput, RecollectError

ChoiceT = TypeVar("ChoiceT")

_PLAIN_JSON_TYPES = frozenset((str, bool, NoneType))
_FORBIDDEN_IN_NAMES = {"Cc", "Zl", "Zp"}  # Unicode categories: control characters, line and paragraph separators

# A mapping with more keys is checked value by value.
_MAX_SIMPLE_KEYS = 100
# json.dumps fails at the interpreter's recursion limit; this is far below it.
_MAX_JSON_DEPTH = 64
# If each of 40 nested lists contains the next one twice, a small object has 2^40 values.
_MAX_JSON_VALUES = 100_000


def check_text(
    name: str,
    value: Any,
    *,
    max_length: int | None = None,
    allow_empty: bool = False,
    error: type[RecollectError] = BadInput,
) -> str:
    """Return a text that every store can keep: no NUL character, no lone surrogate, at most `max_length` characters."""
    if not isinstance(value, str):
        raise error(f"{name} must be a string; got {type(value).__name__}")
    if not allow_empty and not value.strip():
        raise error(f"{name} must not be empty")
    if max_length is not None and len(value) > max_length:
        raise error(f"{name} must have at most {max_length:,} characters; got {len(value):,}")
    check_storable(name, value, error=error)
    return value


def check_storable(name: str, text: str, *, error: type[RecollectError] = BadInput) -> None:
    """Raise `error` if `text` has a NUL character or a lone surrogate, which no store can keep."""
    if "\x00" in text:
        raise error(f"{name} must not contain a NUL character; got one at position {text.index(chr(0))}")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise error(
            f"{name} must be valid Unicode; got a lone surrogate at position {cause.start}. Decode the text correctly"
        ) from cause


def check_name(name: str, value: Any, *, max_length: int, example: str) -> str:
    """Return a short, non-empty text without control characters, such as a key, a tag or an id."""
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{name} must be a non-empty string such as {example!r}; got {value!r:.80}")
    if len(value) > max_length:
        raise BadInput(f"{name} must have at most {max_length:,} characters; got {len(value):,}")
    if not value.isprintable() and any(unicodedata.category(character) in _FORBIDDEN_IN_NAMES for character in value):
        raise BadInput(f"{name} must not contain control characters; got {value!r:.80}")
    check_storable(name, value)
    return value


def check_number(
    name: str, value: Any, *, minimum: float = 0.0, maximum: float = math.inf, error: type[RecollectError] = BadInput
) -> float:
    """Return a finite number within the limits, both included."""
    if not is_number(value) or not minimum <= value <= maximum or math.isinf(value):
        limits = f"of at least {minimum:g}" if math.isinf(maximum) else f"from {minimum:g} to {maximum:g}"
        raise error(f"{name} must be a number {limits}; got {value!r:.80}")
    return float(value)


def check_fraction(name: str, value: Any, *, error: type[RecollectError] = BadInput) -> float:
    """Return a number from 0 to 1."""
    return check_number(name, value, maximum=1.0, error=error)


def check_count(
    name: str, value: Any, *, minimum: int = 0, maximum: int | None = None, error: type[RecollectError] = BadInput
) -> int:
    """Return a whole number within the limits, both included."""
    highest = math.inf if maximum is None else maximum
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= highest:
        limits = f"of at least {minimum:,}" if maximum is None else f"from {minimum:,} to {maximum:,}"
        raise error(f"{name} must be a whole number {limits}; got {value!r:.80}")
    return value


def check_seconds(name: str, value: Any, *, maximum: float = math.inf) -> float:
    """Return a finite number of seconds above 0."""
    if not is_number(value) or not 0 < value <= maximum or math.isinf(value):
        limits = "above 0" if math.isinf(maximum) else f"above 0 and at most {maximum:g}"
        raise BadInput(f"{name} must be a number of seconds {limits}; got {value!r:.80}")
    return float(value)


def check_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{name} must be True or False; got {value!r:.80}")
    return value


def check_choice(
    name: str, value: Any, choices: Collection[ChoiceT], *, error: type[RecollectError] = BadInput
) -> ChoiceT:
    """Return `value` if it is one of `choices`."""
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    *first, last = map(repr, choices)
    raise error(f"{name} must be {', '.join(first)}{' or ' if first else ''}{last}; got {value!r:.80}")


def check_utc(name: str, value: Any, *, error: type[RecollectError] = BadInput) -> datetime:
    """Return an aware datetime in UTC. Raise `error` for a naive one, because its time zone is unknown."""
    if not isinstance(value, datetime):
        raise error(f"{name} must be a datetime; got {value!r:.80}")
    if value.tzinfo is None:
        raise error(f"{name} must have a time zone, as in datetime.now(UTC); got {value}")
    try:
        return to_utc(value)
    except OverflowError as cause:
        raise error(f"{name} must be within the calendar in UTC; got {value}") from cause


def check_json(name: str, value: Any) -> Any:
    """Return a copy of `value` as plain JSON that every store can keep."""
    if is_simple_mapping(value):
        return dict(value)
    pending, remaining = [(value, 0)], _MAX_JSON_VALUES
    while pending:
        item, depth = pending.pop()
        remaining -= 1
        if depth > _MAX_JSON_DEPTH or remaining < 0:
            raise BadInput(
                f"{name} must not contain itself. It must be at most {_MAX_JSON_DEPTH} levels deep and have at most "
                f"{_MAX_JSON_VALUES:,} values"
            )
        if isinstance(item, str):
            check_storable(name, item)
        elif isinstance(item, Mapping):
            for key, inner in item.items():
                if not isinstance(key, str):
                    raise BadInput(f"{name} must have string keys; got {key!r:.80}. Use {str(key)!r:.80}")
                pending += [(key, depth + 1), (inner, depth + 1)]
        elif isinstance(item, list | tuple):
            pending += [(inner, depth + 1) for inner in item]
    return to_plain_json(value, name)


def to_plain_json(value: Any, path: str = "metadata") -> Any:
    """Return a copy of `value` as plain JSON data; raise `BadInput` with the path of a value that JSON cannot hold."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except RecursionError as cause:
        raise BadInput(f"{path} must not contain itself, and must have fewer nested levels") from cause
    except (TypeError, ValueError) as cause:
        if "Circular" in str(cause):
            raise BadInput(f"{path} must not contain itself") from cause
        raise BadInput(f"{_find_unstorable_path(value, path)} cannot be stored as JSON: {cause}") from cause
    return json.loads(text)


def is_simple_mapping(value: Any, depth: int = 1) -> bool:
    """Return whether every store keeps `value` unchanged: printable strings, booleans, None, at most `depth` levels."""
    if type(value) is not dict or len(value) > _MAX_SIMPLE_KEYS:
        return False
    for key, item in value.items():
        if type(key) is not str or not key.isprintable():
            return False
        if type(item) is str:
            if not item.isprintable():
                return False
        elif type(item) not in _PLAIN_JSON_TYPES and not (depth > 1 and is_simple_mapping(item, depth - 1)):
            return False
    return True


def is_number(value: Any) -> bool:
    """Return whether `value` is an int or a float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_count(count: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 fact`, `2 facts`."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def format_size(size: float) -> str:
    """Return a size in bytes with a unit: `12.3 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def _find_unstorable_path(value: Any, path: str, depth: int = 0) -> str:
    if depth > 100 or not isinstance(value, Mapping | list | tuple):
        return path
    is_mapping = isinstance(value, Mapping)
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if is_mapping and not isinstance(key, str):
            return f"{path} has the key {key!r}, which"
        try:
            json.dumps(item, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return _find_unstorable_path(item, f"{path}.{key}" if is_mapping else f"{path}[{key}]", depth + 1)
    return path
