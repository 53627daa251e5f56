"""Keyed facts: which value of a key counts, and what becomes of those before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from recollect.errors import Conflict
from recollect.guard.instructions import VOUCHED
from recollect.stores.base import Records
from recollect.stores.ops import Put
from recollect.stores.where import Where
from recollect.tiers.patience import pause
from recollect.values import MemoryItem, Space, Turn, content_id

_TRIES = 200
_PAGE = 1000

# Of one text under one key.
_MOST_NAMES = 1000


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


def place(turn: Turn | None) -> list[str]:
    """What makes the same words another item: another place in a dialogue."""
    if turn is None:
        return []
    return [f"session={turn.session}", f"speaker={turn.speaker}", f"position={turn.position!r}"]


def identities(item: MemoryItem) -> Iterator[list[str]]:
    """What the id of an item may be derived from besides its content, in the order in which it is tried.

    First its content alone, with a key or without: whoever gives a known fact a key means that fact.
    """
    yield place(item.turn)
    if item.key is None:  # a value of some key, told without one when that key had another
        yield from ([*place(item.turn), "without a key", str(n)] for n in range(_MOST_NAMES))
        return
    yield [f"key={item.key}", *place(item.turn)]  # the same words under another key
    for n in range(_MOST_NAMES):  # a value that was said again after others
        yield [item.key, item.created_at.isoformat(), str(n)]


async def placed(store: Records, space: Space, item: MemoryItem) -> Placed:
    """The item with the id it is to have: that of the current value when it says the same.

    A value that had been superseded and is said again is a new item, so that the times between stay as they were.
    """
    around = [] if item.key is None else await _around(store, space, item)
    for old in around:
        if old.superseded_by is None and (old.content, old.turn) == (item.content, item.turn):
            return Placed(replace(item, id=old.id))
    aside: MemoryItem | None = None
    for parts in identities(item):
        id = content_id(space, item.content, *parts)
        held = await store.get(space, id)
        if not held or takes(item, held[0]):
            return Placed(replace(item, id=id), aside)
        if held[0].superseded_by is None and held[0].key == item.key:
            return Placed(replace(item, id=id))  # it became the value after we had looked for that
        if held[0].key is None and held[0].superseded_by is None:
            # A value that came after it was told without a key stays where it is in the history.
            if all(since(one) <= since(held[0]) for one in around):
                return Placed(replace(item, id=id))
            aside = aside or held[0]
    raise Conflict(f"the same words were said of {item.key!r} too often at one moment; try again")


def takes(item: MemoryItem, held: MemoryItem | None) -> bool:
    """Whether what is told without a key has its id by its content: not where that is a former value of some key."""
    return item.key is None and (held is None or held.key is None or held.superseded_by is None)


@dataclass(frozen=True, slots=True)
class Placed:
    """An item with its id, and what the same words were until now without a key: it ends where the item begins."""

    item: MemoryItem
    aside: MemoryItem | None = None


async def write(store: Records, space: Space, puts: list[Put], keyed: list[MemoryItem]) -> None:
    """The puts in one transaction, in which the older values of each key are superseded.

    What was true when counts, not what was said last: a value that is told late takes its place in the history.
    """
    for tries in range(_TRIES):
        held = {item.key: await _around(store, space, item) for item in keyed if item.key is not None}
        ending = _superseded(held, keyed)
        if not puts and not ending:
            return
        try:
            await store.write(*(_in_history(put, held) for put in puts), *ending)
        except Conflict:
            if not await _stand(store, space, puts):  # they are made of what was read, and have to be made anew
                raise
            await pause(tries)
            continue
        ended = {put.item.key for put in ending}
        # Whoever ends an older value holds its version against all others. The first values of a key have no such
        # thing in common, and two of them may have been written at once.
        for item in keyed:
            if item.key is not None and item.key not in ended:
                await _settle(store, space, item)
        return
    raise Conflict("the same keys are being written by others all the time; nothing was stored, try again")


async def _stand(store: Records, space: Space, puts: list[Put]) -> bool:
    """Whether nobody has changed what is to be put."""
    now = {item.id: item.version for item in await store.get(space, *(put.item.id for put in puts))}
    return all(put.expect is None or put.expect == now.get(put.item.id, 0) for put in puts)


def _superseded(held: Mapping[str, list[MemoryItem]], keyed: list[MemoryItem]) -> list[Put]:
    return [
        retired(old, item)
        for item in {item.key: item for item in keyed}.values()
        if item.key is not None
        for old in held[item.key]
        if old.id != item.id and since(old) <= since(item) and (old.superseded_by is None or old.live_at(since(item)))
        if may_end(item.trust, old)
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
        stays = next((one for one in current if all(may_end(one.trust, other) for other in current)), current[0])
        try:
            await store.write(*(retired(one, stays) for one in current if one is not stays))
        except Conflict:
            await pause(tries)
            continue
        return


async def open_values(store: Records, space: Space, item: MemoryItem) -> list[MemoryItem]:
    """The values of an item's key that would end where it begins."""
    around = await _around(store, space, item)
    return [old for old in around if old.superseded_by is None and old.live_at(since(item)) and old.id != item.id]


def may_end(trust: float, old: MemoryItem) -> bool:
    """Whether a value that is trusted so far may take the place of another.

    Not where it is somebody else's text, and the other is trusted more: a page does not overrule the user. The agent
    does, for it is who the user tells of changes.
    """
    return trust >= min(old.trust, VOUCHED)


def since(item: MemoryItem) -> datetime:
    """From when on a value holds."""
    return item.valid_from or item.created_at


def retired(old: MemoryItem, by: MemoryItem) -> Put:
    """The old value as history: it was true until the new one came, unless it had ended before."""
    came = since(by)
    ended = min(old.valid_to, came) if old.valid_to is not None else came
    start = since(old)
    return Put(item=replace(old, valid_to=max(ended, start), superseded_by=by.id), expect=old.version)
