"""Which items a query means: one value that every store answers in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from recollect.clock import aware, to_micros
from recollect.errors import BadQuery
from recollect.values import MemoryItem, Space

Op = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "prefix", "has"]

_OPS: Mapping[str, Op] = {
    "eq": "eq", "=": "eq", "==": "eq",
    "ne": "ne", "!=": "ne",
    "gt": "gt", ">": "gt", "gte": "gte", ">=": "gte",
    "lt": "lt", "<": "lt", "lte": "lte", "<=": "lte",
    "in": "in",
    "prefix": "prefix",
    "has": "has",
}  # fmt: skip

FIELDS = frozenset(
    {"importance", "source", "trust", "key", "created_at", "session", "speaker", "position", "agent", "access_count"}
)
"""What may be filtered besides metadata; a metadata path of the same name is reached as `metadata.NAME`."""

_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(\.[A-Za-z_][A-Za-z0-9_-]{0,63}){0,7}")
_MOST_CONDITIONS = 32
_MOST_CHOICES = 1000

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison: `path` is a field of ours or a path into the metadata."""

    path: str
    op: Op
    value: Scalar | tuple[Scalar, ...]

    @property
    def is_field(self) -> bool:
        return self.path in FIELDS

    @property
    def keys(self) -> tuple[str, ...]:
        """The steps of a metadata path."""
        return tuple(self.path.removeprefix("metadata.").split("."))


@dataclass(frozen=True, slots=True)
class Where:
    """A scope's items of one tier, narrowed.

    `live_at` asks for what is true at a moment. `known_at` leaves out what was only learned after one, unless the
    item itself says since when it has been true. `open_at` asks for what nothing had taken the place of by then.
    """

    space: Space
    live_at: datetime | None = None
    known_at: datetime | None = None
    open_at: datetime | None = None
    min_importance: float = 0.0
    key: str | None = None
    ids: frozenset[str] | None = None
    conditions: tuple[Condition, ...] = ()

    @property
    def is_narrow(self) -> bool:
        """Whether anything but time and scope is asked for."""
        return bool(
            self.min_importance > 0.0
            or self.open_at is not None
            or self.key is not None
            or self.ids is not None
            or self.conditions
        )


def parse_where(given: Mapping[str, Any] | None) -> tuple[Condition, ...]:
    """`{"project": "apollo", "year": {"gte": 2020}}` as conditions, or `BadQuery` saying what is wrong."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise BadQuery(f"where is a mapping of paths to values, not {type(given).__name__}")
    conditions = [condition for path, wanted in given.items() for condition in _conditions(path, wanted)]
    if len(conditions) > _MOST_CONDITIONS:
        raise BadQuery(f"where has {len(conditions)} conditions; at most {_MOST_CONDITIONS} are answered")
    return tuple(conditions)


def paths_of(metadata: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Every path of some metadata that a filter could name."""
    for key, value in metadata.items():
        path = f"{before}{key}"
        yield path
        if isinstance(value, Mapping):
            yield from paths_of(value, f"{path}.")


def holds(where: Where, item: MemoryItem) -> bool:
    """The reference answer: whether an item of the space is meant."""
    if where.live_at is not None and not item.live_at(where.live_at):
        return False
    if where.known_at is not None and item.valid_from is None and item.created_at > where.known_at:
        return False
    if where.open_at is not None and _replaced_by(where.open_at, item):
        return False
    if item.importance < where.min_importance:
        return False
    if where.key is not None and item.key != where.key:
        return False
    if where.ids is not None and item.id not in where.ids:
        return False
    return all(_holds(condition, _value_at(condition, item)) for condition in where.conditions)


def _conditions(path: Any, wanted: Any) -> list[Condition]:
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise BadQuery(f"{path!r} is not a path; use names of letters, digits, _ and -, joined by dots")
    if not isinstance(wanted, Mapping):
        return [Condition(path, "in", _choices(path, wanted))] if _is_list(wanted) else [_single(path, "eq", wanted)]
    found = []
    for sign, value in wanted.items():
        op = _OPS.get(str(sign).removeprefix("$"))
        if op is None:
            raise BadQuery(f"{sign!r} is not a comparison; use one of {', '.join(sorted(set(_OPS.values())))}")
        found.append(Condition(path, "in", _choices(path, value)) if op == "in" else _single(path, op, value))
    return found


def _single(path: str, op: Op, value: Any) -> Condition:
    value = _scalar(path, value)
    if op in ("gt", "gte", "lt", "lte") and (value is None or isinstance(value, bool)):
        raise BadQuery(f"{path} {op} needs a number, a text or a time, not {value!r}")
    if op == "prefix" and (not isinstance(value, str) or path == "created_at"):
        raise BadQuery(f"{path} prefix … needs the beginning of a text, not {value!r}")
    if op == "has" and path in FIELDS:
        raise BadQuery(f"{path} is no list; `has` asks whether a list in the metadata holds a value")
    return Condition(path, op, value)


def _choices(path: str, value: Any) -> tuple[Scalar, ...]:
    if not _is_list(value):
        raise BadQuery(f"{path} in … needs a list of values, not {value!r}")
    if len(value) > _MOST_CHOICES:
        raise BadQuery(f"{path} in … has {len(value)} values; at most {_MOST_CHOICES} are answered")
    return tuple(_scalar(path, one) for one in value)


def _scalar(path: str, value: Any) -> Scalar:
    if isinstance(value, datetime):
        return to_micros(value) if path == "created_at" else aware(value).isoformat()
    if isinstance(value, float) and value != value:
        raise BadQuery(f"{path} cannot be compared with NaN")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise BadQuery(f"{path} cannot be compared with {value}: whole numbers have 64 bits")
    if value is None or isinstance(value, str | int | float | bool):
        if path == "created_at" and isinstance(value, str):
            return _moment(value)
        return value
    raise BadQuery(f"{path} is compared with {type(value).__name__}; use a text, a number, a bool, a time or None")


def _moment(text: str) -> int:
    try:
        return to_micros(datetime.fromisoformat(text))
    except (ValueError, OverflowError) as error:
        raise BadQuery(f"created_at is compared with {text!r}, which is not an ISO time") from error


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes)


_MISSING = object()


def _value_at(condition: Condition, item: MemoryItem) -> Any:
    if condition.is_field:
        return _field(condition.path, item)
    value: Any = item.metadata
    for key in condition.keys:
        if not isinstance(value, Mapping) or key not in value:
            return _MISSING
        value = value[key]
    return value


def _field(name: str, item: MemoryItem) -> Any:
    match name:
        case "session" | "speaker" | "position":
            return getattr(item.turn, name) if item.turn else None
        case "agent":
            return item.scope.agent
        case "created_at":
            return to_micros(item.created_at)
        case _:
            return getattr(item, name)


def _replaced_by(moment: datetime, item: MemoryItem) -> bool:
    return item.superseded_by is not None and item.valid_to is not None and item.valid_to <= moment


def _holds(condition: Condition, value: Any) -> bool:
    """Missing never matches, and values of different kinds are different."""
    if value is _MISSING:
        return False
    match condition.op:
        case "eq":
            return _same(value, condition.value)
        case "ne":
            return not _same(value, condition.value)
        case "in":
            assert isinstance(condition.value, tuple)
            return any(_same(value, one) for one in condition.value)
        case "prefix":
            assert isinstance(condition.value, str)
            return isinstance(value, str) and value.startswith(condition.value)
        case "has":
            return isinstance(value, list | tuple) and any(_same(one, condition.value) for one in value)
        case _:
            return _ordered(condition.op, value, condition.value)


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


def _same(left: Any, right: Any) -> bool:
    return _kind(left) == _kind(right) != "other" and left == right


def _ordered(op: Op, left: Any, right: Any) -> bool:
    if _kind(left) != _kind(right) or _kind(left) not in ("number", "text"):
        return False
    if op == "gt":
        return bool(left > right)
    if op == "gte":
        return bool(left >= right)
    return bool(left < right) if op == "lt" else bool(left <= right)
