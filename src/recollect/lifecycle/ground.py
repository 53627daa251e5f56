"""The facts as a run sees them: as they are, or, in a plan, as they would be by now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from recollect.stores.base import Records
from recollect.stores.ops import Delete, Put, Write
from recollect.stores.where import Where, holds
from recollect.values import MemoryItem, Space

_PAGE = 500


class Ground:
    """Reads and writes items; `imagined` writes are only remembered here, and seen by the reads after them."""

    def __init__(self, records: Records, *, imagined: bool) -> None:
        self.records = records
        self.imagined = imagined
        self._changed: dict[tuple[Space, str], MemoryItem | None] = {}

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        """The items that exist, in the order asked for."""
        found = {item.id: item for item in await self.records.get(space, *ids)} if ids else {}
        seen = (self._changed.get((space, id), found.get(id)) for id in dict.fromkeys(ids))
        return [item for item in seen if item is not None]

    async def write(self, *writes: Write) -> None:
        if not self.imagined:
            await self.records.write(*writes)
            return
        for write in writes:
            match write:
                case Put():
                    held = await self.get(write.space, write.item.id)
                    version = held[0].version + 1 if held else 1
                    self._changed[write.space, write.item.id] = replace(write.item, version=version)
                case Delete():
                    self._changed[write.space, write.id] = None

    async def pages(self, where: Where) -> AsyncIterator[list[MemoryItem]]:
        """Every item that is meant, newest first, and last what exists in imagination alone."""
        left = {id: item for (space, id), item in self._changed.items() if space == where.space}
        after: MemoryItem | None = None
        while page := await self.records.find(where, limit=_PAGE, after=after):
            after = page[-1]
            yield self._as_seen(where, [left.pop(item.id, item) for item in page])
            if len(page) < _PAGE:
                break
        if left:
            yield self._as_seen(where, list(left.values()))

    @staticmethod
    def _as_seen(where: Where, items: Sequence[MemoryItem | None]) -> list[MemoryItem]:
        return [item for item in items if item is not None and holds(where, item)]
