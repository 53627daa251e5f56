"""Logs: an order of headers and the entries by their ids, read by scripts that skip what is hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from recollect.stores.ops import Entry
from recollect.stores.redis import keys
from recollect.stores.redis.server import Server
from recollect.stores.redis.values import entries_of, entry_from, moment, rows_of
from recollect.stores.tails import Reach, Tail
from recollect.values import Space

# A place in a log is counted in numbers that scripts know exactly.
_LAST_PLACE = 1 << 53
# Logs that are listed at once: the server does nothing else meanwhile.
_PAGE = 500


class Logs:
    """What is asked of logs."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def get(self, space: Space, ids: Sequence[str], now: datetime) -> list[Entry]:
        wanted = [keys.raw(id) for id in dict.fromkeys(ids)]
        if not wanted:
            return []
        held = await self._server.plain("HMGET", keys.data(space), *wanted)
        found = entries_of([value for value in held if value is not None])
        return [entry for entry in found if _lives(entry, now)]

    def added(self, places: bytes, entries: Sequence[bytes], now: datetime) -> list[Entry | None]:
        """Entries that were just written, by where the server says that they stand; None for those it has not added."""
        stand = places.split(b",")
        found = iter(entries_of([place + value for place, value in zip(stand, entries, strict=True) if place]))
        held = [next(found) if place else None for place in stand]
        return [entry if entry is not None and _lives(entry, now) else None for entry in held]

    async def recent(self, space: Space, limit: int, kinds: Sequence[str], now: datetime) -> list[Entry]:
        return await self._read(space, moment(now), b"", limit, kinds)

    async def read(self, space: Space, after: int, limit: int, now: datetime | None) -> list[Entry]:
        place = b"%d" % max(min(after, _LAST_PLACE), -_LAST_PLACE)
        return await self._read(space, b"" if now is None else moment(now), place, limit, ())

    async def tails(self, space: Space, reach: Reach, now: datetime) -> list[Tail]:
        told = await self._listed(
            space, now, keys.within(space), *(b"%d" % most for most in (reach.own, reach.others, reach.of_each))
        )
        # The log itself comes first.
        spaces = [space, *(_named(space, name) for name in told[2::2])]
        return [_tail(one, rows) for one, rows in zip(spaces, told[1::2], strict=True)]

    async def listed(self, owner: Space, now: datetime | None) -> list[Space]:
        times: dict[bytes, bytes] = {}
        begin = b"-"
        # From the oldest on: one that gets an entry meanwhile comes up once more, and is not missed.
        while True:
            last, *told = await self._listed(owner, now, b"", begin, b"%d" % _PAGE)
            times |= {name: time for time, name in told}
            if not last:
                return [_named(owner, name) for _, name in sorted((time, name) for name, time in times.items())]
            begin = b"(" + last

    async def _read(self, space: Space, now: bytes, after: bytes, limit: int, kinds: Sequence[str]) -> list[Entry]:
        args = (now, after, b"%d" % limit, *map(keys.raw, kinds))
        found = await self._server.script("read", (keys.order(space), keys.data(space)), args)
        return [entry_from(place, parts) for place, parts in rows_of(found)]

    async def _listed(self, space: Space, now: datetime | None, *rest: bytes) -> Any:
        prefix = keys.prefix_of(space)
        seen_at = b"" if now is None else moment(now)
        return await self._server.script("logs", (keys.logs(space), keys.newest(space)), (prefix, seen_at, *rest))


def _lives(entry: Entry, now: datetime) -> bool:
    return entry.expires_at is None or entry.expires_at > now


def _named(owner: Space, name: bytes) -> Space:
    """The space of an owner that a name within stands for."""
    return replace(owner, session=name.decode("utf-8", "surrogatepass").partition("/")[2])


def _tail(space: Space, rows: bytes) -> Tail:
    kept = rows_of(rows)
    kinds, texts = [parts[1] for _, parts in kept], [parts[2] for _, parts in kept]
    return Tail(space, texts, kinds, lambda at: entry_from(*kept[at]))
