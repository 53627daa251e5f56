"""A Where as SQL: fixed clauses chosen by the condition's kind, with every name and value bound."""

from __future__ import annotations

import json
from typing import Any

from recollect.clock import to_micros
from recollect.stores.where import Condition, Scalar, Where

Clause = tuple[str, tuple[Any, ...]]

_COLUMNS = {
    "importance": ("number", "importance"),
    "trust": ("number", "trust"),
    "position": ("number", "position"),
    "created_at": ("number", "created_at"),
    "access_count": ("number", "access_count"),
    "source": ("text", "source"),
    "key": ("text", "key"),
    "session": ("text", "session"),
    "speaker": ("text", "speaker"),
    "agent": ("text", "by_agent"),
}

_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

LIVE = """
    (valid_from is null or valid_from <= ?)
    and (valid_to is null or valid_to > ?)
    and (expires_at is null or expires_at > ?)
"""


def clauses(where: Where) -> Clause:
    """The condition that an item of the space has to meet, and its parameters."""
    parts: list[Clause] = []
    if where.live_at is not None:
        now = to_micros(where.live_at)
        parts.append((LIVE, (now, now, now)))
    if where.known_at is not None:
        parts.append(("valid_from is not null or created_at <= ?", (to_micros(where.known_at),)))
    if where.open_at is not None:
        parts.append(("superseded_by is null or valid_to is null or valid_to > ?", (to_micros(where.open_at),)))
    if where.min_importance > 0.0:
        parts.append(("importance >= ?", (where.min_importance,)))
    if where.key is not None:
        parts.append(("key = ?", (where.key,)))
    if where.ids is not None:
        parts.append(("id in (select value from json_each(?))", (json.dumps(sorted(where.ids)),)))
    parts.extend(_clause(condition) for condition in where.conditions)
    return _joined(" and ", parts) if parts else ("true", ())


def _clause(condition: Condition) -> Clause:
    match condition.op:
        case "eq":
            return _equals(condition, condition.value)
        case "ne":
            return _differs(condition)
        case "in":
            assert isinstance(condition.value, tuple)
            either = [_equals(condition, one) for one in condition.value]
            return _joined(" or ", either) if either else ("false", ())
        case "prefix":
            return _begins(condition)
        case "has":
            return _holds(condition)
        case _:
            return _compares(condition)


def _equals(condition: Condition, value: Any) -> Clause:
    kind = _kind(value)
    if condition.is_field:
        wanted, column = _COLUMNS[condition.path]
        if value is None:
            return f"{column} is null", ()
        return (f"{column} = ?", (value,)) if kind == wanted else ("false", ())
    path = _json_path(condition)
    match kind:
        case "text":
            return "(json_type(metadata, ?) = 'text' and json_extract(metadata, ?) = ?)", (path, path, value)
        case "number":
            return (
                "(json_type(metadata, ?) in ('integer', 'real') and json_extract(metadata, ?) = ?)",
                (path, path, value),
            )
        case _:
            return "json_type(metadata, ?) is ?", (path, kind)


def _differs(condition: Condition) -> Clause:
    same, values = _equals(condition, condition.value)
    if condition.is_field:
        return f"({same}) is not true", values
    return f"(json_type(metadata, ?) is not null and ({same}) is not true)", (_json_path(condition), *values)


def _compares(condition: Condition) -> Clause:
    sign, kind = _SIGNS[condition.op], _kind(condition.value)
    if condition.is_field:
        wanted, column = _COLUMNS[condition.path]
        return (f"{column} {sign} ?", (condition.value,)) if kind == wanted else ("false", ())
    path = _json_path(condition)
    types = "('text')" if kind == "text" else "('integer', 'real')"
    return (
        f"(json_type(metadata, ?) in {types} and json_extract(metadata, ?) {sign} ?)",
        (path, path, condition.value),
    )


def _begins(condition: Condition) -> Clause:
    """A range, which an index answers, and in which no character means anything but itself."""
    assert isinstance(condition.value, str)
    after = _after(condition.value)
    bounds = (condition.value,) if after is None else (condition.value, after)
    if condition.is_field:
        wanted, column = _COLUMNS[condition.path]
        if wanted != "text":
            return "false", ()
        return (f"{column} >= ?" if after is None else f"{column} >= ? and {column} < ?"), bounds
    path = _json_path(condition)
    at_least = "json_type(metadata, ?) = 'text' and json_extract(metadata, ?) >= ?"
    if after is None:
        return at_least, (path, path, condition.value)
    return f"{at_least} and json_extract(metadata, ?) < ?", (path, path, condition.value, path, after)


def _after(prefix: str) -> str | None:
    """The first text behind all that begin with the prefix; None when there is none."""
    shorter = prefix.rstrip("\U0010ffff")
    if not shorter:
        return None
    last = ord(shorter[-1])
    # Texts are compared byte by byte in UTF-8, which is the order of their characters; surrogates are none.
    return shorter[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)


def _holds(condition: Condition) -> Clause:
    """Whether a list holds a value of the same kind."""
    assert not isinstance(condition.value, tuple)
    path, kind = _json_path(condition), _kind(condition.value)
    match kind:
        case "text":
            same, values = "type = 'text' and atom = ?", (condition.value,)
        case "number":
            same, values = "type in ('integer', 'real') and atom = ?", (condition.value,)
        case _:
            same, values = "type = ?", (kind,)
    held = f"exists (select 1 from json_each(metadata, ?) where {same})"  # noqa: S608 - a constant of the three above
    return f"json_type(metadata, ?) = 'array' and {held}", (path, path, *values)


def _kind(value: Scalar | tuple[Scalar, ...]) -> str:
    """The kind of a value in JSON's own words where there is one: `true`, `false`, `null`."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "number"
        case _:
            return "text"


def _json_path(condition: Condition) -> str:
    # The keys were checked to hold letters, digits, _ and - only, so quoting them is enough.
    return "$" + "".join(f'."{key}"' for key in condition.keys)


def _joined(word: str, parts: list[Clause]) -> Clause:
    sql = word.join(f"({part})" for part, _ in parts)
    return sql, tuple(value for _, values in parts for value in values)
