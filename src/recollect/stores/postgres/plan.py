"""What a batch has decided to write: parts that do not touch each other's rows become one statement.

Every statement is a journey to the server and back. The parts of one statement see the store as it was before it, and
are done in no order: so each part says what it touches, and of two that touch the same the later goes into a later
statement.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from recollect.stores.postgres.server import Values, Work

# With more statements than this, to wait for all answers at once is worth what it costs the driver.
_FEW = 3


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
        self.changes = False
        """Whether rows of items, words or vectors are changed or dropped, not only added."""

    def add(self, tenant: str, part: str, values: Values, touches: Iterable[Hashable]) -> None:
        keys = [(tenant, key) for key in touches]
        at = 1 + max((self._touched.get(key, -1) for key in keys), default=-1)
        self._touched.update(dict.fromkeys(keys, at))
        statements = self._statements.setdefault(tenant, [])
        statements.extend(_Statement() for _ in range(at + 1 - len(statements)))
        chosen = statements[at]
        number = len(chosen.parts)
        chosen.parts.append(part)
        chosen.values |= {f"{name}{number}": value for name, value in values.items()}

    async def run(self, work: Work) -> None:
        if self.changes:
            await work.replanned()
        if sum(map(len, self._statements.values())) > _FEW:
            async with work.connection.pipeline():
                await self._each(work)
        else:
            await self._each(work)

    async def _each(self, work: Work) -> None:
        for tenant, statements in self._statements.items():
            await work.about(tenant)
            for statement in statements:
                await work.run(_together(tuple(statement.parts)), statement.values)


@lru_cache(maxsize=256)
def _together(parts: tuple[str, ...]) -> str:
    named = (" ".join(part.split()).format(n=number) for number, part in enumerate(parts))
    return f"with {', '.join(named)} select"
