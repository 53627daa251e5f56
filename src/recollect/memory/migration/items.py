"""Items on their way: with their vectors, words, versions and accesses, as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from recollect.memory.migration.part import MOST_TOGETHER, Sum, Tell, elsewhere, plain, together
from recollect.runtime.failpoints import reach
from recollect.stores.base import Records
from recollect.stores.ops import Delete, Put, Write
from recollect.stores.vectors import packed
from recollect.stores.where import Where
from recollect.values import MemoryItem, Space


@dataclass(frozen=True, slots=True)
class Items:
    """A space of facts, procedures or notes."""

    space: Space
    source: Records
    target: Records

    async def held(self) -> int:
        return sum([len(page) async for page in _pages(self.source, self.space)])

    async def check(self) -> None:
        async for page in _pages(self.target, self.space):
            known = {item.id: item for item in await self.source.get(self.space, *(item.id for item in page))}
            for item in page:
                if item.id not in known or _lasting(known[item.id]) != _lasting(item):
                    raise elsewhere(self.space, f"the item {item.id!r}")

    async def copy(self, tell: Tell) -> int:
        copied = 0
        async for page in _pages(self.source, self.space):
            there = {item.id: item for item in await self.target.get(self.space, *(item.id for item in page))}
            missing = [item for item in page if item.id not in there or not _same(item, there[item.id])]
            for puts in together(await self.source.whole(self.space, *(item.id for item in missing)), _size):
                reach("migrate.before")
                await self.target.write(*_writes(puts, there))
                reach("migrate.after")
                copied += len(puts)
            tell(len(page))
        return copied

    async def hashes(self, tell: Tell) -> tuple[Sum, Sum]:
        here, there = Sum(), Sum()
        for store, total in ((self.source, here), (self.target, there)):
            async for page in _pages(store, self.space):
                for put in await store.whole(self.space, *(item.id for item in page)):
                    total.add(_plain(put.item), sorted(put.terms or ()), put.model, _bytes(put))
                if store is self.source:
                    tell(len(page))
        return here, there


async def _pages(store: Records, space: Space) -> AsyncIterator[list[MemoryItem]]:
    last: MemoryItem | None = None
    while page := await store.find(Where(space), limit=MOST_TOGETHER, after=last):
        yield page
        if len(page) < MOST_TOGETHER:  # most spaces are small, and to ask each for more takes as long as its one page
            return
        last = page[-1]


def _writes(puts: Sequence[Put], there: dict[str, MemoryItem]) -> list[Write]:
    """What makes the items anew. Accesses that were counted since are taken over: a put alone would not."""
    stale = [Delete(put.space, put.item.id) for put in puts if put.item.id in there]
    return [*stale, *(replace(put, expect=0) for put in puts)]


def _same(one: MemoryItem, other: MemoryItem) -> bool:
    """How often a store has rewritten an item is its own business."""
    return replace(one, version=1) == replace(other, version=1)


def _lasting(item: MemoryItem) -> MemoryItem:
    """What nobody changes by asking."""
    return replace(item, version=1, access_count=0, last_accessed=None)


def _plain(item: MemoryItem) -> object:
    return plain(replace(item, version=1, metadata=dict(item.metadata)))


def _bytes(put: Put) -> str | None:
    return None if put.vectors is None else packed(put.vectors).tobytes().hex()


def _size(put: Put) -> int:
    return len(put.item.content) + (0 if put.vectors is None else put.vectors.size)
