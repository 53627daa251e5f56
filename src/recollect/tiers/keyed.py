"""Keyed facts: which value of a key counts, and what becomes of those before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from recollect.errors import Conflict
from recollect.stores.base import Records
from recollect.stores.ops import Put
from recollect.stores.where import Where
from recollect.tiers.patience import pause
from recollect.values import MemoryItem, Space, content_id

_TRIES = 200
_PAGE = 1000


async def values(store: Records, space: Space, key: str) -> list[MemoryItem]:
    """Every value a key has had, newest first."""
    return await _all(store, Where(space, key=key))


async def _around(store: Records, space: Space, item: MemoryItem) -> list[MemoryItem]:
    """The values of an item's key that it may end, or that may end it: not the long history before those."""
    return await _all(store, Where(space, key=item.key, open_at=since(item)))


async def _all(store: Records, where: Where) -> list[MemoryItem]:
    found = page = await store.find(where, limit=_PAGE)
    while len(page) == _PAGE:
        page = await store.find(where, limit=_PAGE, after=page[-1])
        found = [*found, *page]
    return found


async def placed(store: Records, space: Space, item: MemoryItem) -> MemoryItem:
    """The item with the id it is to have: that of the current value when it says the same.

    A value that had been superseded and is said again is a new item, so that the times between stay as they were.
    """
    if item.key is None:
        return item
    for old in await _around(store, space, item):
        if old.superseded_by is None and (old.content, old.turn) == (item.content, item.turn):
            return replace(item, id=old.id)
    id, said = item.id, 0
    while await store.get(space, id):
        said += 1
        id = content_id(space, item.content, item.key, item.created_at.isoformat(), str(said))
    return replace(item, id=id)


async def write(store: Records, space: Space, puts: list[Put], keyed: list[MemoryItem]) -> None:
    """The puts in one transaction, in which the older values of each key are superseded.

    What was true when counts, not what was said last: a value that is told late takes its place in the history.
    """
    for tries in range(_TRIES):
        held = {item.key: await _around(store, space, item) for item in keyed if item.key is not None}
        retired = _superseded(held, keyed)
        if not puts and not retired:
            return
        try:
            await store.write(*(_in_history(put, held) for put in puts), *retired)
        except Conflict:
            await pause(tries)
            continue
        ended = {put.item.key for put in retired}
        # Whoever ends an older value holds its version against all others. The first values of a key have no such
        # thing in common, and two of them may have been written at once.
        for item in keyed:
            if item.key is not None and item.key not in ended:
                await _settle(store, space, item)
        return
    raise Conflict("the same keys are being written by others all the time; nothing was stored, try again")


def _superseded(held: Mapping[str, list[MemoryItem]], keyed: list[MemoryItem]) -> list[Put]:
    return [
        _retired(old, item)
        for item in {item.key: item for item in keyed}.values()
        if item.key is not None
        for old in held[item.key]
        if old.id != item.id and since(old) <= since(item) and (old.superseded_by is None or old.live_at(since(item)))
    ]


def _in_history(put: Put, held: Mapping[str, list[MemoryItem]]) -> Put:
    """A value that others have followed already ends where the next one begins."""
    item = put.item
    values = held.get(item.key, []) if item.key is not None else []
    later = [old for old in values if old.id != item.id and since(old) > since(item)]
    if not later:
        return put
    following = min(later, key=since)
    end = since(following) if item.valid_to is None else min(item.valid_to, since(following))
    return replace(put, item=replace(item, valid_to=end, superseded_by=following.id))


async def _settle(store: Records, space: Space, item: MemoryItem) -> None:
    for tries in range(_TRIES):
        current = [one for one in await _around(store, space, item) if one.superseded_by is None]
        if len(current) < 2:
            return
        try:
            await store.write(*(_retired(one, current[0]) for one in current[1:]))
        except Conflict:
            await pause(tries)
            continue
        return


def since(item: MemoryItem) -> datetime:
    """From when on a value holds."""
    return item.valid_from or item.created_at


def _retired(old: MemoryItem, by: MemoryItem) -> Put:
    """The old value as history: it was true until the new one came, unless it had ended before."""
    came = since(by)
    ended = min(old.valid_to, came) if old.valid_to is not None else came
    start = since(old)
    return Put(item=replace(old, valid_to=max(ended, start), superseded_by=by.id), expect=old.version)
