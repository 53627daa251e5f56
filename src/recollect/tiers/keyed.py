"""Keyed facts: which value of a key counts, and what becomes of those before it."""

from __future__ import annotations

from dataclasses import replace

from recollect.errors import Conflict
from recollect.stores.base import Records
from recollect.stores.ops import Put
from recollect.stores.where import Where
from recollect.values import MemoryItem, Space, content_id

_TRIES = 64
_MOST_VALUES = 1000


async def values(store: Records, space: Space, key: str) -> list[MemoryItem]:
    """Every value a key has had, newest first."""
    return await store.find(Where(space, key=key), limit=_MOST_VALUES)


async def placed(store: Records, space: Space, item: MemoryItem) -> MemoryItem:
    """The item with the id it is to have: that of the current value when it says the same.

    A value that had been superseded and is said again is a new item, so that the times between stay as they were.
    """
    if item.key is None:
        return item
    held = await values(store, space, item.key)
    for old in held:
        if old.superseded_by is None and (old.content, old.turn) == (item.content, item.turn):
            return replace(item, id=old.id)
    if all(old.id != item.id for old in held):
        return item
    return replace(item, id=content_id(space, item.content, item.key, item.created_at.isoformat(), str(len(held))))


async def write(store: Records, space: Space, puts: list[Put], keyed: list[MemoryItem]) -> None:
    """The puts in one transaction, in which the older values of each key are superseded."""
    for _ in range(_TRIES):
        retired = await _superseded(store, space, keyed)
        if not puts and not retired:
            return
        try:
            await store.write(*puts, *retired)
        except Conflict:
            continue
        ended = {put.item.key for put in retired}
        # Whoever ends an older value holds its version against all others. The first values of a key have no such
        # thing in common, and two of them may have been written at once.
        for item in keyed:
            if item.key is not None and item.key not in ended:
                await _settle(store, space, item.key)
        return
    raise Conflict("the same keys are being written by others all the time; nothing was stored, try again")


async def _superseded(store: Records, space: Space, keyed: list[MemoryItem]) -> list[Put]:
    return [
        _retired(old, item)
        for item in {item.key: item for item in keyed}.values()
        if item.key is not None
        for old in await values(store, space, item.key)
        if old.id != item.id and (old.superseded_by is None or old.live_at(item.valid_from or item.created_at))
    ]


async def _settle(store: Records, space: Space, key: str) -> None:
    for _ in range(_TRIES):
        current = [one for one in await values(store, space, key) if one.superseded_by is None]
        if len(current) < 2:
            return
        try:
            await store.write(*(_retired(one, current[0]) for one in current[1:]))
        except Conflict:
            continue
        return


def _retired(old: MemoryItem, by: MemoryItem) -> Put:
    """The old value as history: it was true until the new one came, unless it had ended before."""
    came = by.valid_from or by.created_at
    ended = min(old.valid_to, came) if old.valid_to is not None else came
    start = old.valid_from or old.created_at
    return Put(item=replace(old, valid_to=max(ended, start), superseded_by=by.id), expect=old.version)
