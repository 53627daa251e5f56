"""Item filters: parsing of `where` mappings, and the reference implementation of matching."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from recollect.clock import to_micros, to_utc
from recollect.errors import BadQuery
from recollect.types import MemoryItem, Space

Operator = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "prefix", "has"]

_OPERATORS: Mapping[str, Operator] = {
    "eq": "eq", "=": "eq", "==": "eq",
    "ne": "ne", "!=": "ne",
    "gt": "gt", ">": "gt", "gte": "gte", ">=": "gte",
    "lt": "lt", "<": "lt", "lte": "lte", "<=": "lte",
    "in": "in",
    "prefix": "prefix",
    "has": "has",
}  # fmt: skip

FILTER_FIELDS = frozenset(
    {"importance", "source", "trust", "key", "created_at", "session", "speaker", "position", "agent", "access_count"}
)
"""Item fields that a filter can name. A metadata path of the same name is written as `metadata.NAME`."""

_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(\.[A-Za-z_][A-Za-z0-9_-]{0,63}){0,7}")
_MAX_CONDITIONS = 32
_MAX_CHOICES = 1000

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparison of an item field or a metadata path with a value."""

    path: str
    op: Operator
    value: Scalar | tuple[Scalar, ...]

    @property
    def is_field(self) -> bool:
        return self.path in FILTER_FIELDS

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the metadata path."""
        return tuple(self.path.removeprefix("metadata.").split("."))


@dataclass(frozen=True, slots=True)
class Where:
    """Filter for the items of one space.

    `live_at` selects items that are valid at a time. `known_at` excludes items created later, unless they have a
    `valid_from`. `open_at` excludes items that were superseded by then. `created_from` is inclusive and `created_until`
    exclusive. `key_prefix` selects items with a key that starts with it.
    """

    space: Space
    live_at: datetime | None = None
    known_at: datetime | None = None
    open_at: datetime | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None
    min_importance: float = 0.0
    key: str | None = None
    key_prefix: str | None = None
    ids: frozenset[str] | None = None
    conditions: tuple[Condition, ...] = ()

    @property
    def is_narrow(self) -> bool:
        """True if the filter restricts more than space, validity and known time."""
        return self != Where(self.space, self.live_at, self.known_at)


def normalize_times(where: Where) -> Where:
    """Return the filter with its times in UTC."""
    names = ("live_at", "known_at", "open_at", "created_from", "created_until")
    times = {name: getattr(where, name) for name in names}
    in_utc: dict[str, Any] = {name: to_utc(time) for name, time in times.items() if time is not None}
    return replace(where, **in_utc) if in_utc else where


def parse_where(given: Mapping[str, Any] | None) -> tuple[Condition, ...]:
    """Return the conditions of a mapping such as `{"project": "apollo", "year": {"gte": 2020}}`; raise `BadQuery`."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise BadQuery(f"where must be a mapping of paths to values; got {type(given).__name__}")
    conditions = [condition for path, wanted in given.items() for condition in _parse_conditions(path, wanted)]
    if len(conditions) > _MAX_CONDITIONS:
        raise BadQuery(f"where must have at most {_MAX_CONDITIONS} conditions; got {len(conditions)}")
    return tuple(conditions)


def iter_metadata_paths(metadata: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every path of the metadata that a filter can name."""
    for key, value in metadata.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, Mapping):
            yield from iter_metadata_paths(value, f"{path}.")


def matches_where(where: Where, item: MemoryItem) -> bool:
    """Return whether the item matches; the space is not compared."""
    return (
        (where.live_at is None or item.live_at(where.live_at))
        and (where.known_at is None or item.valid_from is not None or item.created_at <= where.known_at)
        and (where.open_at is None or not _is_replaced_by(where.open_at, item))
        and (where.created_from is None or item.created_at >= where.created_from)
        and (where.created_until is None or item.created_at < where.created_until)
        and item.importance >= where.min_importance
        and (where.key is None or item.key == where.key)
        and (where.key_prefix is None or (item.key is not None and item.key.startswith(where.key_prefix)))
        and (where.ids is None or item.id in where.ids)
        and (not where.conditions or all(_matches_condition(condition, item) for condition in where.conditions))
    )


def find_prefix_range(prefix: str, after: str | None = None) -> tuple[str, str | None]:
    """Return the first text that starts with the prefix and is above `after`, and the first text after all of these.

    Texts are in the order of their code points, which is that of their UTF-8 bytes. The end is None if there is none.
    """
    start = prefix if after is None else max(prefix, after + "\0")
    shorter = prefix.rstrip("\U0010ffff")
    if not shorter:
        return start, None
    last = ord(shorter[-1])
    # U+D800 to U+DFFF are not characters.
    return start, shorter[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)


def _parse_conditions(path: Any, wanted: Any) -> list[Condition]:
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise BadQuery(f"{path!r} is not a path. Use names of letters, digits, _ and -, joined by dots")
    if not isinstance(wanted, Mapping):
        return [_parse_condition(path, "in" if _is_list(wanted) else "eq", wanted)]
    conditions = []
    for sign, value in wanted.items():
        op = _OPERATORS.get(str(sign).removeprefix("$"))
        if op is None:
            raise BadQuery(f"{sign!r} is not an operator. Use one of {', '.join(sorted(set(_OPERATORS.values())))}")
        conditions.append(_parse_condition(path, op, value))
    return conditions


def _parse_condition(path: str, op: Operator, value: Any) -> Condition:
    if op == "in":
        if not _is_list(value):
            raise BadQuery(f"{path} in needs a list of values; got {value!r}")
        if len(value) > _MAX_CHOICES:
            raise BadQuery(f"{path} in needs at most {_MAX_CHOICES} values; got {len(value)}")
        return Condition(path, op, tuple(_parse_scalar(path, choice) for choice in value))
    value = _parse_scalar(path, value)
    if op in ("gt", "gte", "lt", "lte") and (value is None or isinstance(value, bool)):
        raise BadQuery(f"{path} {op} needs a number, a string or a datetime; got {value!r}")
    if op == "prefix" and (not isinstance(value, str) or path == "created_at"):
        raise BadQuery(f"{path} prefix needs a string, and created_at has none; got {value!r}")
    if op == "has" and path in FILTER_FIELDS:
        raise BadQuery(f"{path} is not a list; `has` compares the items of a list in the metadata")
    return Condition(path, op, value)


def _parse_scalar(path: str, value: Any) -> Scalar:
    if isinstance(value, datetime):
        return to_micros(value) if path == "created_at" else to_utc(value).isoformat()
    if isinstance(value, float) and value != value:
        raise BadQuery(f"{path} cannot be compared with NaN")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise BadQuery(f"{path} cannot be compared with {value}: integers have 64 bits")
    if path == "created_at" and isinstance(value, str):
        try:
            return to_micros(datetime.fromisoformat(value))
        except (ValueError, OverflowError) as error:
            raise BadQuery(f"created_at needs an ISO 8601 time; got {value!r}") from error
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise BadQuery(f"{path} needs a string, a number, a bool, a datetime or None; got {type(value).__name__}")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes)


_MISSING = object()


def _matches_condition(condition: Condition, item: MemoryItem) -> bool:
    """Return whether an item fulfills the condition. A missing value never does, and values of two types differ."""
    value = _get_value(condition, item)
    return value is not _MISSING and _COMPARISONS[condition.op](value, condition.value)


def _get_value(condition: Condition, item: MemoryItem) -> Any:
    if condition.is_field:
        return _get_field(condition.path, item)
    value: Any = item.metadata
    for key in condition.keys:
        if not isinstance(value, Mapping) or key not in value:
            return _MISSING
        value = value[key]
    return value


def _get_field(name: str, item: MemoryItem) -> Any:
    match name:
        case "session" | "speaker" | "position":
            return getattr(item.turn, name) if item.turn else None
        case "agent":
            return item.scope.agent
        case "created_at":
            return to_micros(item.created_at)
        case _:
            return getattr(item, name)


def _is_replaced_by(moment: datetime, item: MemoryItem) -> bool:
    return item.superseded_by is not None and item.valid_to is not None and item.valid_to <= moment


def _classify_value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


def _is_equal(left: Any, right: Any) -> bool:
    return _classify_value(left) == _classify_value(right) != "other" and left == right


def _are_ordered(left: Any, right: Any) -> bool:
    return _classify_value(left) == _classify_value(right) in ("number", "text")


_COMPARISONS: Mapping[Operator, Callable[[Any, Any], bool]] = {
    "eq": _is_equal,
    "ne": lambda value, other: not _is_equal(value, other),
    "gt": lambda value, other: _are_ordered(value, other) and value > other,
    "gte": lambda value, other: _are_ordered(value, other) and value >= other,
    "lt": lambda value, other: _are_ordered(value, other) and value < other,
    "lte": lambda value, other: _are_ordered(value, other) and value <= other,
    "in": lambda value, choices: any(_is_equal(value, choice) for choice in choices),
    "prefix": lambda value, prefix: isinstance(value, str) and value.startswith(prefix),
    "has": lambda value, member: isinstance(value, list | tuple) and any(_is_equal(each, member) for each in value),
}
