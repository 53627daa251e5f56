"""What a batch has decided to write: parts that do not touch each other's rows become one statement.

Every statement is a journey to the server and back. The parts of one statement see the store as it was before it, and
are done in no order: so each part says what it touches, and of two that touch the same the later goes into a later
statement.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from recollect.stores.postgres.journey import Statement, Values
from recollect.stores.postgres.server import Work, seen_as


@dataclass(slots=True)
class _Statement:
    parts: list[str] = field(default_factory=list)
    values: Values = field(default_factory=dict)


class Plan:
    """Parts by tenant, since rows of others are out of sight.

    A part is one or more named queries, as between `with` and the rest. Its names and its parameters end in `{n}`.
    """

    def __init__(self) -> None:
        self._statements: dict[str, list[_Statement]] = {}
        self._touched: dict[Hashable, int] = {}
        """The first statement that may touch something again."""
        self.changes = False
        """Whether rows of items, words or vectors are changed or dropped, not only added."""

    def add(self, tenant: str, part: str, values: Values, touches: Iterable[Hashable]) -> None:
        keys = [(tenant, key) for key in touches]
        at = max([self._touched.get(key, 0) for key in keys], default=0)
        for key in keys:
            self._touched[key] = at + 1
        statements = self._statements.setdefault(tenant, [])
        while len(statements) <= at:
            statements.append(_Statement())
        chosen = statements[at]
        number = len(chosen.parts)
        chosen.parts.append(part)
        for name, value in values.items():
            chosen.values[f"{name}{number}"] = value

    def statements(self, work: Work) -> list[Statement]:
        """All of it, in the order in which it is to be done."""
        sent = work.replanned() if self.changes else []
        for tenant, statements in self._statements.items():
            if tenant != work.tenant or len(self._statements) > 1:
                sent.append(seen_as(tenant))
            sent += [Statement(_together(tuple(one.parts)), one.values) for one in statements]
        return sent

    async def run(self, work: Work) -> None:
        """Do all of it, and with it end the transaction."""
        await work.end(self.statements(work))


@lru_cache(maxsize=256)
def _together(parts: tuple[str, ...]) -> str:
    named = (" ".join(part.split()).format(n=number) for number, part in enumerate(parts))
    return f"with {', '.join(named)} select"
