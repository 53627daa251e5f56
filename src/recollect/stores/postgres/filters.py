"""A Where as SQL: fixed clauses chosen by the condition's kind, with every name and value bound."""

from __future__ import annotations

import json
import math
from typing import Any

from recollect.clock import to_micros
from recollect.stores.postgres.journey import Values
from recollect.stores.postgres.text import handle, handles, kept
from recollect.stores.where import Condition, Scalar, Where

_COLUMNS = {
    "importance": ("number", "r.importance"),
    "trust": ("number", "r.trust"),
    "position": ("number", "r.position"),
    "created_at": ("number", "r.created_at"),
    "access_count": ("number", "r.access_count"),
    "source": ("text", "r.source"),
    "key": ("text", "r.key"),
    "session": ("text", "r.session"),
    "speaker": ("text", "r.speaker"),
    "agent": ("text", "r.by_agent"),
}

_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


_BOUNDED = (
    "{row}.place not in ("
    "select r.place from recollect.records r where r.tenant = %(tenant)s and r.space = %(number)s "
    "and (r.valid_from is not null or r.valid_to is not null or r.expires_at is not null) and not ({live})"
    ")"
)
_ITEM = "join recollect.records r on r.tenant = %(tenant)s and r.space = %(number)s and r.place = {row}.place"


Parts = tuple[str, str]
"""A join and a condition."""


class Filter:
    """The condition that an item of the space has to meet, and its parameters."""

    def __init__(self, where: Where) -> None:
        self.values: Values = {}
        parts = [*self._of_item(where), *(self._clause(condition) for condition in where.conditions)]
        self.sql = " and ".join(f"({part})" for part in parts) if parts else "true"
        self._only_live = where.live_at is not None and not where.is_narrow and where.known_at is None

    @property
    def is_wide(self) -> bool:
        """Whether nearly everything that is there meets it."""
        return self._only_live or self.sql == "true"

    def about(self, row: str) -> Parts:
        """A join and a condition that keep a vector or a word to the items that are meant.

        Most questions ask for what is true now, and most items always are: then only the few with bounds need a look.
        """
        if self.sql == "true":
            return "", self.sql
        if self._only_live:
            return "", _BOUNDED.format(row=row, live=self.sql)
        return _ITEM.format(row=row), self.sql

    def _of_item(self, where: Where) -> list[str]:
        parts = []
        if where.live_at is not None:
            now = self._bound(to_micros(where.live_at), "bigint")
            parts.append(f"r.valid_from is null or r.valid_from <= {now}")
            parts.append(f"r.valid_to is null or r.valid_to > {now}")
            parts.append(f"r.expires_at is null or r.expires_at > {now}")
        if where.known_at is not None:
            known = self._bound(to_micros(where.known_at), "bigint")
            parts.append(f"r.valid_from is not null or r.created_at <= {known}")
        if where.open_at is not None:
            at = self._bound(to_micros(where.open_at), "bigint")
            parts.append(f"r.superseded_by is null or r.valid_to is null or r.valid_to > {at}")
        if where.min_importance > 0.0:
            parts.append(f"r.importance >= {self._bound(float(where.min_importance), 'float8')}")
        if where.key is not None:
            parts.append(f"r.key_handle = {self._bound(handle(where.key), 'text')}")
        if where.ids is not None:
            parts.append(f"r.handle = any({self._bound(handles(where.ids), 'text[]')})")
        return parts

    def _clause(self, condition: Condition) -> str:
        match condition.op:
            case "eq":
                return self._equals(condition, condition.value)
            case "ne":
                same = self._equals(condition, condition.value)
                if condition.is_field:
                    return f"({same}) is not true"
                return f"{self._found(condition)} is not null and ({same}) is not true"
            case "in":
                assert isinstance(condition.value, tuple)
                either = [self._equals(condition, one) for one in condition.value]
                return " or ".join(f"({one})" for one in either) if either else "false"
            case "prefix":
                return self._begins(condition)
            case "has":
                return self._holds(condition)
            case _:
                return self._compares(condition)

    def _equals(self, condition: Condition, value: Any) -> str:
        if condition.is_field:
            wanted, column = _COLUMNS[condition.path]
            if value is None:
                return f"{column} is null"
            return f"{column} = {self._scalar(value)}" if _kind(value) == wanted else "false"
        if isinstance(value, float) and math.isinf(value):
            return "false"  # JSON has none
        return f"{self._found(condition)} = {self._json(value)}"

    def _compares(self, condition: Condition) -> str:
        sign, kind = _SIGNS[condition.op], _kind(condition.value)
        if condition.is_field:
            wanted, column = _COLUMNS[condition.path]
            return f"{column} {sign} {self._scalar(condition.value)}" if kind == wanted else "false"
        return self._of_kind(condition, kind, f"{{}} {sign} {self._scalar(condition.value)}")

    def _begins(self, condition: Condition) -> str:
        assert isinstance(condition.value, str)
        start = f"starts_with({{}}, {self._scalar(condition.value)})"
        if condition.is_field:
            wanted, column = _COLUMNS[condition.path]
            return start.format(column) if wanted == "text" else "false"
        return self._of_kind(condition, "text", start)

    def _holds(self, condition: Condition) -> str:
        """Whether a list holds a value of the same kind."""
        if isinstance(condition.value, float) and math.isinf(condition.value):
            return "false"
        found = self._found(condition)
        return f"jsonb_typeof({found}) = 'array' and {found} @> jsonb_build_array({self._json(condition.value)})"

    def _of_kind(self, condition: Condition, kind: str, test: str) -> str:
        """A test of a value in the metadata; of another kind it cannot even be asked, hence the case."""
        found = self._found(condition)
        plain = f"({found} #>> '{{}}') collate \"C\"" if kind == "text" else f"({found})::numeric"
        wanted = "string" if kind == "text" else "number"
        return f"case when jsonb_typeof({found}) = '{wanted}' then {test.format(plain)} else false end"

    def _found(self, condition: Condition) -> str:
        """The value at a path of the metadata; null when there is none."""
        return f"(r.metadata::jsonb #> {self._bound(list(condition.keys), 'text[]')})"

    def _scalar(self, value: Any) -> str:
        if isinstance(value, str):
            return self._bound(kept(value), "text")
        # As text: a whole number of 64 bits is not rounded to a float on its way.
        return self._bound(repr(value), "numeric")

    def _json(self, value: Any) -> str:
        return self._bound(json.dumps(kept(value) if isinstance(value, str) else value), "jsonb")

    def _bound(self, value: Any, type: str) -> str:
        name = f"f{len(self.values)}"
        self.values[name] = value
        return f"%({name})s::{type}"


def _kind(value: Scalar | tuple[Scalar, ...]) -> str:
    match value:
        case None | bool():
            return str(value)
        case int() | float():
            return "number"
        case _:
            return "text"
