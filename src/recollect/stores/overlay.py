"""Stores whose writes are held back: buffered until a step commits, or discarded after a dry run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

from recollect.errors import Conflict
from recollect.stores.base import Log, Records, Store, read_appended
from recollect.stores.codec import normalize_item
from recollect.stores.filters import Where, matches_where
from recollect.stores.validation import validate_writes
from recollect.stores.writes import Append, Delete, Entry, Put, Touch, Write
from recollect.types import MemoryItem, Space
from recollect.validation import to_plain_json

_PAGE_SIZE = 1000


class BufferedStore:
    """A store that collects writes in a list and sends everything else to the real store.

    Buffered items are found by id and by filter, so that a second write of a key or an outcome sees the first. Searches
    and logs show committed data only. Several stores may share one list, which keeps the order of all writes.
    """

    def __init__(self, real: Records, collected: list[tuple[Store, list[Write]]]) -> None:
        self._real = real
        self._overlay: dict[tuple[Space, str], MemoryItem | None] = {}
        self._collected = collected

    async def write(self, *writes: Write) -> None:
        checked = [_copy_write(write) for write in validate_writes(writes)]
        overlay = dict(self._overlay)
        for write in checked:
            if isinstance(write, Put):
                current = await self._check_version(overlay, write.space, write.item.id, write.expect)
                overlay[write.space, write.item.id] = normalize_item(write.item, current)
            elif isinstance(write, Delete):
                await self._check_version(overlay, write.space, write.id, write.expect)
                overlay[write.space, write.id] = None
            elif isinstance(write, Touch):
                for id in write.ids:
                    if (read := overlay.get((write.space, id))) is not None:
                        last = max(read.last_accessed or write.at, write.at)
                        overlay[write.space, id] = replace(read, access_count=read.access_count + 1, last_accessed=last)
        self._overlay = overlay
        self._collected.append((self._real, checked))

    async def append(self, *appends: Append) -> list[Entry | None]:
        await self.write(*appends)
        return await read_appended(cast(Log, self), appends)

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        items: dict[str, MemoryItem | None] = {item.id: item for item in await self._real.get(space, *ids)}
        items |= {id: self._overlay[space, id] for id in ids if (space, id) in self._overlay}
        return [item for id in dict.fromkeys(ids) if (item := items.get(id)) is not None]

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        buffered = {id: item for (space, id), item in self._overlay.items() if space == where.space}
        stored = await self._real.find(where, limit=limit + len(buffered), after=after)
        found = [item for item in stored if item.id not in buffered]
        found += [item for item in buffered.values() if item is not None and matches_where(where, item)]
        if after is not None:
            found = [item for item in found if _build_age_key(item) < _build_age_key(after)]
        return sorted(found, key=_build_age_key, reverse=True)[:limit]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def _check_version(
        self, overlay: dict[tuple[Space, str], MemoryItem | None], space: Space, id: str, expect: int | None
    ) -> MemoryItem | None:
        """Return the current item; raise `Conflict` if it does not have the expected version."""
        is_buffered = (space, id) in overlay
        current = overlay[space, id] if is_buffered else next(iter(await self._real.get(space, id)), None)
        version = current.version if current else 0
        if expect is not None and expect != version:
            raise Conflict(f"item {id!r} must have version {expect}; it has {version}; read it again")
        return current


async def iter_pages(store: Records, where: Where) -> AsyncIterator[list[MemoryItem]]:
    """Yield all matching items of a store, newest first."""
    after: MemoryItem | None = None
    while page := await store.find(where, limit=_PAGE_SIZE, after=after):
        yield page
        if len(page) < _PAGE_SIZE:
            return
        after = page[-1]


def _copy_write(write: Write) -> Write:
    """Copy the metadata of an entry, which the caller may change before the commit."""
    if isinstance(write, Append) and write.entry.metadata:
        return replace(write, entry=replace(write.entry, metadata=to_plain_json(dict(write.entry.metadata))))
    return write


def _build_age_key(item: MemoryItem) -> tuple[Any, str]:
    return item.created_at, item.id
