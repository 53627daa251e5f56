"""A log on its way: its entries in their order and places, hidden ones too, and how far it has counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from recollect.errors import Conflict
from recollect.memory.migration.part import MOST_TOGETHER, Sum, Tell, elsewhere, plain, together
from recollect.runtime.failpoints import reach
from recollect.stores.base import Log
from recollect.stores.ops import Append, Drop, Entry
from recollect.values import Space

# Summaries and notes of the lifecycle refer to places, so the next entry must not get one that was given before.
_COUNTER = "recollect: the place of the next entry"
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Entries:
    """The log of one session."""

    space: Space
    source: Log
    target: Log
    last: int
    """The highest place that was given in the source."""
    reached: int
    """The highest that was given in the target, before the migration."""

    async def held(self) -> int:
        return sum([len(page) async for page in _pages(self.source, self.space)])

    async def check(self) -> None:
        here = _each(self.source, self.space)
        async for entry in _each(self.target, self.space):
            if await anext(here, None) != entry:
                raise elsewhere(self.space, f"the entry {entry.id!r} at place {entry.seq}")
        following = await anext(here, None)
        if following is not None and following.seq <= self.reached:
            raise Conflict(
                f"the target has counted to {self.reached} in {self.space}, where the entry {following.id!r} keeps the "
                f"place {following.seq}; move the conversation before the facts or with them, into an empty target"
            )

    async def copy(self, tell: Tell) -> int:
        there = [(entry.id, entry.seq) async for entry in _each(self.target, self.space)]
        after, copied = there[-1][1] if there else 0, 0
        reached = max(self.reached, after)
        tell(len(there))
        async for page in _pages(self.source, self.space, after):
            for batch in together(page, lambda entry: len(entry.content)):
                reach("migrate.before")
                await self.target.write(
                    *(Append(space=self.space, entry=entry, durable=True, seq=entry.seq) for entry in batch)
                )
                reach("migrate.after")
                copied += len(batch)
                reached = batch[-1].seq
            tell(len(page))
        if reached < self.last:
            await self._count()
        return copied

    async def hashes(self, tell: Tell) -> tuple[Sum, Sum]:
        here, there = Sum(), Sum()
        async for page in _pages(self.source, self.space):
            for entry in page:
                here.add(_plain(entry))
            tell(len(page))
        async for entry in _each(self.target, self.space):
            there.add(_plain(entry))
        return here, there

    async def _count(self) -> None:
        """Have the target go on where the source would: by an entry that is gone before anybody can see it."""
        mark = Entry(id=_COUNTER, kind="counter", content=_COUNTER, at=_NO_TIME)
        await self.target.write(
            Append(space=self.space, entry=mark, durable=True, seq=self.last), Drop(self.space, (self.last,))
        )


async def _pages(log: Log, space: Space, after: int = 0) -> AsyncIterator[list[Entry]]:
    while page := await log.read(space, after=after, limit=MOST_TOGETHER, hidden=True):
        yield page
        after = page[-1].seq


async def _each(log: Log, space: Space) -> AsyncIterator[Entry]:
    async for page in _pages(log, space):
        for entry in page:
            yield entry


def _plain(entry: Entry) -> object:
    told = {field.name: getattr(entry, field.name) for field in fields(entry)}
    return {**told, "metadata": plain(entry.metadata)}
