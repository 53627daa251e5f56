"""Logs: entries in the order they came, each space with a sequence of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import apsw

from recollect.clock import from_micros, to_micros
from recollect.errors import BadInput
from recollect.stores.damage import reads
from recollect.stores.ops import Append, Clear, Drop, Entry, LogWrite
from recollect.stores.sqlite.rows import SEQ_BITS, dumped, loaded, micros, moment, place_of, places_of, space_id
from recollect.stores.tails import Reach, Tail
from recollect.values import Space

# Before any moment that can be written.
_NEVER = -(1 << 63)

_LATEST = """
    select place, id, kind, content, metadata, importance, at, expires_at
    from entries
    where place between ? and ?
        and (expires_at is null or expires_at > ?)
    order by place desc
    limit ?
"""

_LATEST_OF_KINDS = """
    select place, id, kind, content, metadata, importance, at, expires_at
    from entries
    where place between ? and ?
        and (expires_at is null or expires_at > ?)
        and kind in (select value from json_each(?))
    order by place desc
    limit ?
"""

_SINCE = """
    select place, id, kind, content, metadata, importance, at, expires_at
    from entries
    where place between ? and ?
        and (expires_at is null or expires_at > ?)
    order by place
    limit ?
"""

_GET = """
    select place, id, kind, content, metadata, importance, at, expires_at
    from entries
    where space = ?
        and id in (select value from json_each(?))
        and (expires_at is null or expires_at > ?)
"""

_INSERT = """
    insert into entries (place, space, id, kind, content, metadata, importance, at, expires_at)
    values (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

# The newest entry that is one too many; it and all before it go.
_TRIM = """
    delete from entries
    where place between ?1 and (
        select place
        from entries
        where place between ?1 and ?2
            and (expires_at is null or expires_at > ?3)
        order by place desc
        limit 1 offset ?4
    )
"""

# Entries of a space lie together in the order they came, so its last one is a single step back from its end.
_LOGS = """
    select id, session, (
        select at
        from entries
        where place between spaces.id << ?5 and ((spaces.id + 1) << ?5) - 1
            and (expires_at is null or expires_at > ?6)
        order by place desc
        limit 1
    ) as last
    from spaces
    where tenant = ?1 and tier = ?2 and user = ?3 and agent = ?4
    order by last desc, session desc
    limit ?7
"""
_ALL = -1

_OWNERS = """
    select distinct tenant, tier, user, agent
    from spaces
    where tenant = ?1
        and exists (
            select 1
            from entries
            where place between spaces.id << ?2 and ((spaces.id + 1) << ?2) - 1
        )
    order by tier, user, agent
"""


def apply(connection: apsw.Connection, space: int, write: LogWrite, now: datetime) -> None:
    match write:
        case Append():
            _append(connection, space, write, to_micros(now))
            if write.cap is not None:
                connection.execute(_TRIM, (*places_of(space), to_micros(now), write.cap))
        case Clear():
            connection.execute("delete from entries where place between ? and ?", places_of(space))
        case Drop():
            connection.executemany(
                "delete from entries where place = ?", [(place_of(space, seq),) for seq in write.seqs]
            )


def get(connection: apsw.Connection, space: Space, ids: Sequence[str], now: datetime) -> list[Entry]:
    number = space_id(connection, space)
    if number is None:
        return []
    rows = connection.execute(_GET, (number, json.dumps(ids), to_micros(now)))
    found = {entry.id: entry for entry in map(_entry, rows)}
    return [found[id] for id in dict.fromkeys(ids) if id in found]


def recent(connection: apsw.Connection, space: Space, limit: int, kinds: Sequence[str], now: datetime) -> list[Entry]:
    number = space_id(connection, space)
    if number is None:
        return []
    span = (*places_of(number), to_micros(now))
    if kinds:
        rows = connection.execute(_LATEST_OF_KINDS, (*span, dumped(list(kinds)), limit)).fetchall()
    else:
        rows = connection.execute(_LATEST, (*span, limit)).fetchall()
    return [_entry(row) for row in reversed(rows)]


def tails(connection: apsw.Connection, space: Space, reach: Reach, now: datetime) -> list[Tail]:
    """The end of a log, and those of its owner's newest others."""
    moment = to_micros(now)
    # One more than are wanted: the log itself is among them, more often than not.
    listed = _newest_logs(connection, space, moment, reach.others + 1)
    others = [one for one in listed if one[1] != space][: reach.others]
    return [
        _tail(connection, (space_id(connection, space), space), moment, reach.own),
        *(_tail(connection, one, moment, reach.of_each) for one in reversed(others)),
    ]


def read(connection: apsw.Connection, space: Space, after: int, limit: int, now: datetime | None) -> list[Entry]:
    """What is above a `seq` and lives at a moment; without a moment, all that is there."""
    number = space_id(connection, space)
    if number is None:
        return []
    first, last = places_of(number)
    start = min(max(first + after + 1, first), last)
    if after >= last - first:
        return []
    return [_entry(row) for row in connection.execute(_SINCE, (start, last, _moment(now), limit))]


def logs(connection: apsw.Connection, owner: Space, now: datetime | None) -> list[Space]:
    return [space for _, space in reversed(_newest_logs(connection, owner, _moment(now), _ALL))]


def owners(connection: apsw.Connection, tenant: str) -> list[Space]:
    return [Space(*row) for row in connection.execute(_OWNERS, (tenant, SEQ_BITS))]


def _newest_logs(connection: apsw.Connection, owner: Space, moment: int, most: int) -> list[tuple[int, Space]]:
    """The numbers and names of logs, newest first."""
    names = owner.tenant, owner.tier, owner.user, owner.agent
    rows: list[Any] = connection.execute(_LOGS, (*names, SEQ_BITS, moment, most)).fetchall()
    # Those without an entry come last; asked for in the statement, each one's last entry would be looked up twice.
    return [(number, Space(*names, session)) for number, session, last in rows if last is not None]


def _tail(connection: apsw.Connection, log: tuple[int | None, Space], moment: int, limit: int) -> Tail:
    number, space = log
    if number is None:
        return Tail.of(space, [])
    rows: list[Any] = connection.execute(_LATEST, (*places_of(number), moment, limit)).fetchall()[::-1]
    return Tail(space, [row[3] for row in rows], [row[2] for row in rows], lambda at: _entry(rows[at]))


def _moment(now: datetime | None) -> int:
    """Later than this an entry has to expire to be seen; without a moment all of them do."""
    return _NEVER if now is None else to_micros(now)


def _append(connection: apsw.Connection, space: int, write: Append, now: int) -> None:
    entry = write.entry
    held = connection.execute(
        "select place, expires_at from entries where space = ? and id = ?", (space, entry.id)
    ).fetchone()
    if held is not None:
        place, expires_at = held
        if expires_at is None or expires_at > now:
            return
        # Nobody can see it any more, so its id is free again.
        connection.execute("delete from entries where place = ?", (place,))
    seq = connection.execute(
        "update spaces set next_seq = max(next_seq + 1, ?) where id = ? returning next_seq", (write.seq, space)
    ).get
    if seq >> SEQ_BITS:
        raise BadInput(f"one log holds at most {1 << SEQ_BITS:,} entries over its life; start another session")
    connection.execute(
        _INSERT,
        (
            place_of(space, seq),
            space,
            entry.id,
            entry.kind,
            entry.content,
            dumped(dict(entry.metadata)),
            entry.importance,
            to_micros(entry.at),
            micros(entry.expires_at),
        ),
    )


@reads("an entry of a log")
def _entry(row: tuple[Any, ...]) -> Entry:
    place, id, kind, content, metadata, importance, at, expires_at = row
    return Entry(
        id=id,
        kind=kind,
        content=content,
        metadata=loaded(metadata),
        importance=importance,
        at=from_micros(at),
        expires_at=moment(expires_at),
        seq=place & ((1 << SEQ_BITS) - 1),
    )
