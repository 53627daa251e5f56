"""A store whose writes wait: they are collected, to be committed together with something else or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recollect.errors import Conflict
from recollect.stores import answers
from recollect.stores.admission import admitted
from recollect.stores.base import Records, Store
from recollect.stores.ops import Append, Delete, Entry, Put, Write
from recollect.stores.where import Where, holds
from recollect.values import MemoryItem, Space, plain_json

Name = tuple[Space, str]
Items = dict[Name, MemoryItem | None]


class Waiting:
    """Everything but writing goes to the real store, which knows nothing yet of what waits.

    Items that wait are found by id and by filter, as whoever wrote them expects when writing the next: a key said
    twice is superseded, an outcome counted twice. Searches and logs tell of what is committed. Several of these, one
    for each store, collect into one list: the order in which things were told is the order of their sources.
    """

    def __init__(self, real: Records, collected: list[tuple[Store, list[Write]]]) -> None:
        self._real = real
        self._items: Items = {}
        self._collected = collected

    async def write(self, *writes: Write) -> None:
        checked = [_own(admitted(write)) for write in writes]
        items = dict(self._items)
        for write in checked:
            match write:
                case Put():
                    name = (write.space, write.item.id)
                    held = await self._expected(items, name, write.expect)
                    items[name] = replace(
                        write.item,
                        version=held.version + 1 if held else 1,
                        access_count=held.access_count if held else write.item.access_count,
                        last_accessed=held.last_accessed if held else write.item.last_accessed,
                    )
                case Delete():
                    await self._expected(items, (write.space, write.id), write.expect)
                    items[write.space, write.id] = None
                case _:
                    pass
        self._items = items
        self._collected.append((self._real, checked))

    async def append(self, *appends: Append) -> list[Entry | None]:
        return await answers.appended(self, appends)

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        found = {item.id: item for item in await self._real.get(space, *ids)}
        for id in ids:
            if (space, id) in self._items:
                found.pop(id, None)
                item = self._items[space, id]
                if item is not None:
                    found[id] = item
        return [found[id] for id in dict.fromkeys(ids) if id in found]

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        here = {id: item for (space, id), item in self._items.items() if space == where.space}
        found = [
            item for item in await self._real.find(where, limit=limit + len(here), after=after) if item.id not in here
        ]
        found += [item for item in here.values() if item is not None and holds(where, item)]
        if after is not None:
            found = [item for item in found if _age(item) < _age(after)]
        return sorted(found, key=_age, reverse=True)[:limit]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def _expected(self, items: Items, name: Name, expect: int | None) -> MemoryItem | None:
        """The item as it is by now; `Conflict` when it is not at the version expected."""
        if name in items:
            held = items[name]
        else:
            stored = await self._real.get(name[0], name[1])
            held = stored[0] if stored else None
        if expect is not None and expect != (held.version if held else 0):
            raise Conflict(f"item {name[1]!r} is not at version {expect}; read it again")
        return held


def _own(write: Write) -> Write:
    """The write as nobody else can change it while it waits."""
    if isinstance(write, Append) and write.entry.metadata:
        return replace(write, entry=replace(write.entry, metadata=plain_json(dict(write.entry.metadata))))
    return write


def _age(item: MemoryItem) -> tuple[Any, str]:
    return item.created_at, item.id
