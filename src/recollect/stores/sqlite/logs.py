"""Log entries in order of arrival; each space numbers its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import apsw

from recollect.clock import from_micros, to_micros
from recollect.errors import BadInput
from recollect.stores.base import Log, LogTail, TailLimits, group_ids
from recollect.stores.codec import detects_corruption
from recollect.stores.sqlite.records import (
    MAX_SEQ,
    SEQ_BITS,
    dump_json,
    encode_place,
    find_space_id,
    from_optional_micros,
    get_place_range,
    load_metadata,
    to_optional_micros,
)
from recollect.stores.sqlite.threads import SqliteStoreBase, run_in_reader
from recollect.stores.validation import check_last_seq, validate_limit
from recollect.stores.writes import Append, Clear, Drop, Entry, LogWrite
from recollect.types import Space

_BEFORE_ALL_MOMENTS = -(1 << 63)
_NO_LIMIT = -1

_ENTRY_COLUMNS = "place, id, kind, content, metadata, importance, at, expires_at"
_SELECT_LATEST = f"""
    select {_ENTRY_COLUMNS} from entries
    where place between ?1 and ?2 and (expires_at is null or expires_at > ?3)
        and (?4 is null or kind in (select value from json_each(?4)))
    order by place desc limit ?5"""  # noqa: S608
_SELECT_AFTER = f"""
    select {_ENTRY_COLUMNS} from entries
    where place between ? and ? and (expires_at is null or expires_at > ?)
        and at >= coalesce(?, at) and at < coalesce(?, at + 1)
    order by place limit ?"""  # noqa: S608
_SELECT_ENTRIES_BY_ID = f"""
    select {_ENTRY_COLUMNS} from entries
    where space = ? and id in (select value from json_each(?)) and (expires_at is null or expires_at > ?)"""  # noqa: S608

_INSERT_ENTRY = """
    insert into entries (place, space, id, kind, content, metadata, importance, at, expires_at)
    values (?, ?, ?, ?, ?, ?, ?, ?, ?)"""

# Deletes the first entry beyond the cap and all before it.
_TRIM_LOG = """
    delete from entries
    where place between ?1 and (
        select place from entries
        where place between ?1 and ?2 and (expires_at is null or expires_at > ?3)
        order by place desc limit 1 offset ?4
    )"""

# A space's entries are adjacent in the table, so finding its last one is a single step back from the end.
_SELECT_LOGS = """
    select id, session, (
        select at from entries
        where place between spaces.id << ?5 and ((spaces.id + 1) << ?5) - 1
            and (expires_at is null or expires_at > ?6)
        order by place desc limit 1
    ) as last
    from spaces
    where tenant = ?1 and tier = ?2 and user = ?3 and agent = ?4
    order by last desc, session desc limit ?7"""


class SqliteLogs(SqliteStoreBase, Log):
    """The log methods of a store."""

    async def append(self, *appends: Append) -> list[Entry | None]:
        def read_stored(connection: apsw.Connection, now: datetime) -> list[Entry | None]:
            ids = group_ids(appends)
            found = {(space, e.id): e for space in ids for e in _load_entries(connection, space, ids[space], now)}
            return [found.get((append.space, append.entry.id)) for append in appends]

        return await self._submit_writes(appends, read_stored) if appends else []

    @run_in_reader
    def entries(self, connection: apsw.Connection, space: Space, *ids: str) -> list[Entry]:
        return _load_entries(connection, space, ids, self._clock())

    @run_in_reader
    def recent(
        self, connection: apsw.Connection, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()
    ) -> list[Entry]:
        now = to_micros(self._clock())
        rows = _select_latest(connection, find_space_id(connection, space), now, validate_limit(limit), kinds)
        return [_decode_entry(row) for row in rows]

    @run_in_reader
    def read_tails(self, connection: apsw.Connection, space: Space, reach: TailLimits) -> list[LogTail]:
        reach, now = reach.validate(), to_micros(self._clock())
        # One more than wanted, because the log itself is usually among them.
        newest = _find_newest_logs(connection, space, now, reach.other_logs + 1)
        others = [log for log in newest if log[1] != space][: reach.other_logs]
        return [
            _load_tail(connection, (find_space_id(connection, space), space), now, reach.own_entries),
            *(_load_tail(connection, log, now, reach.entries_per_log) for log in reversed(others)),
        ]

    @run_in_reader
    def read(
        self,
        connection: apsw.Connection,
        space: Space,
        *,
        after: int = 0,
        limit: int = 1000,
        since: datetime | None = None,
        until: datetime | None = None,
        hidden: bool = False,
    ) -> list[Entry]:
        limit, number = validate_limit(limit), find_space_id(connection, space)
        if after >= MAX_SEQ:
            return []
        places = encode_place(number, max(after + 1, 0)), encode_place(number, MAX_SEQ)
        moments = self._get_expiry_bound(hidden=hidden), to_optional_micros(since), to_optional_micros(until)
        rows = connection.execute(_SELECT_AFTER, (*places, *moments, limit))
        return [_decode_entry(row) for row in rows]

    @run_in_reader
    def logs(self, connection: apsw.Connection, owner: Space, *, hidden: bool = False) -> list[Space]:
        newest = _find_newest_logs(connection, owner, self._get_expiry_bound(hidden=hidden), _NO_LIMIT)
        return [space for _, space in reversed(newest)]

    def _get_expiry_bound(self, *, hidden: bool) -> int:
        """Return the time in microseconds after which a visible entry must expire."""
        return _BEFORE_ALL_MOMENTS if hidden else to_micros(self._clock())


def apply_log_write(connection: apsw.Connection, space: int, write: LogWrite, now: datetime) -> None:
    match write:
        case Append():
            _append_entry(connection, space, write, to_micros(now))
            if write.cap is not None:
                connection.execute(_TRIM_LOG, (*get_place_range(space), to_micros(now), write.cap))
        case Clear():
            connection.execute("delete from entries where place between ? and ?", get_place_range(space))
        case Drop():
            connection.executemany(
                "delete from entries where place = ?", [(encode_place(space, seq),) for seq in write.seqs]
            )


def _append_entry(connection: apsw.Connection, space: int, write: Append, now: int) -> None:
    """Store an entry with the next number, unless a visible entry has its id."""
    entry = write.entry
    existing = connection.execute(
        "select place, expires_at from entries where space = ? and id = ?", (space, entry.id)
    ).fetchone()
    if existing is not None:
        place, expires_at = existing
        if expires_at is None or expires_at > now:
            return
        # An expired entry is hidden, so its id is free again.
        connection.execute("delete from entries where place = ?", (place,))
    elif write.expect_last is not None:
        check_last_seq(write, connection.execute("select next_seq from spaces where id = ?", (space,)).get)
    seq = connection.execute(
        "update spaces set next_seq = max(next_seq + 1, ?) where id = ? returning next_seq", (write.seq, space)
    ).get
    if seq > MAX_SEQ:
        raise BadInput(f"one log holds at most {MAX_SEQ + 1:,} entries over its life; start another session")
    texts = entry.id, entry.kind, entry.content, dump_json(dict(entry.metadata))
    moments = to_micros(entry.at), to_optional_micros(entry.expires_at)
    connection.execute(_INSERT_ENTRY, (encode_place(space, seq), space, *texts, entry.importance, *moments))


def _load_entries(connection: apsw.Connection, space: Space, ids: Sequence[str], now: datetime) -> list[Entry]:
    values = find_space_id(connection, space), json.dumps(ids), to_micros(now)
    rows = connection.execute(_SELECT_ENTRIES_BY_ID, values)
    found = {entry.id: entry for entry in map(_decode_entry, rows)}
    return [found[id] for id in dict.fromkeys(ids) if id in found]


def _find_newest_logs(connection: apsw.Connection, owner: Space, now: int, limit: int) -> list[tuple[int, Space]]:
    """Return the ids and names of an owner's logs, newest first."""
    names = owner.tenant, owner.tier, owner.user, owner.agent
    rows: list[Any] = connection.execute(_SELECT_LOGS, (*names, SEQ_BITS, now, limit)).fetchall()
    # Empty logs come last. A condition in the statement would look each log's last entry up twice.
    return [(number, Space(*names, session)) for number, session, last in rows if last is not None]


def _select_latest(
    connection: apsw.Connection, space: int, now: int, limit: int, kinds: Sequence[str] = ()
) -> list[tuple[Any, ...]]:
    """Return the rows of a log's newest entries, newest last."""
    if not space:
        return []
    values = (*get_place_range(space), now, dump_json(list(kinds)) if kinds else None, limit)
    return connection.execute(_SELECT_LATEST, values).fetchall()[::-1]


def _load_tail(connection: apsw.Connection, log: tuple[int, Space], now: int, limit: int) -> LogTail:
    """Return the newest entries of a log. Each is decoded when it is used."""
    number, space = log
    rows = _select_latest(connection, number, now, limit)
    return LogTail(space, [row[3] for row in rows], [row[2] for row in rows], lambda at: _decode_entry(rows[at]))


@detects_corruption("an entry of a log")
def _decode_entry(row: tuple[Any, ...]) -> Entry:
    place, id, kind, content, metadata, importance, at, expires_at = row
    return Entry(
        id=id,
        kind=kind,
        content=content,
        metadata=load_metadata(metadata),
        importance=importance,
        at=from_micros(at),
        expires_at=from_optional_micros(expires_at),
        seq=place & MAX_SEQ,
    )
