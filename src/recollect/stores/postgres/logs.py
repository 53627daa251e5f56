"""Logs: entries in the order of their arrival, with sequence numbers per space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores.base import Log, LogTail, TailLimits
from recollect.stores.codec import detects_corruption
from recollect.stores.postgres import codec
from recollect.stores.postgres.connections import SqlParams
from recollect.stores.postgres.transactions import PostgresServer, SpaceBatch, StoredRows
from recollect.stores.validation import check_last_seq, validate_limit
from recollect.stores.writes import Append, Drop, Entry, LogWrite
from recollect.types import Space

# Before every time that can be stored: as the current time, it makes expired entries visible.
_MIN_BIGINT = -(1 << 63)
_MAX_BIGINT = (1 << 63) - 1
_NO_LIMIT = 1 << 31
_SHOW_EXPIRED = {"now": _MIN_BIGINT}

# Reads.

_ENTRY_FIELDS = "seq id kind content metadata importance at expires_at".split()
_ENTRY_COLUMNS = ", ".join(f"e.{name}" for name in _ENTRY_FIELDS)
_ENTRY_IS_LIVE = f"(e.expires_at is null or e.expires_at > {codec.NOW_MICROS_SQL})"

_FROM_LOG = f"""
    select {_ENTRY_COLUMNS} from recollect.entries e
    where tenant = %(tenant)s and space = {codec.SPACE_ID_SQL} and {_ENTRY_IS_LIVE}
"""  # noqa: S608 - constant clauses
_GET_ENTRIES = f"{_FROM_LOG} and handle = any(%(handles)s)"
_GET_RECENT_ENTRIES = f"{_FROM_LOG} and (%(every)s or kind = any(%(kinds)s)) order by seq desc limit %(limit)s"
_GET_ENTRIES_AFTER = f"""
    {_FROM_LOG} and seq > %(after)s and at >= %(since)s and at < %(until)s order by seq limit %(limit)s
"""

_NEWEST_LOGS = f"""
    select s.id, s.tenant, s.tier, s.owner, s.agent, s.session, last.at from recollect.spaces s
    cross join lateral (
        select at from recollect.entries e where e.tenant = %(tenant)s and e.space = s.id and {_ENTRY_IS_LIVE}
        order by e.seq desc limit 1
    ) last
    where s.tenant = %(tenant)s and s.tier = %(tier)s and s.owner = %(owner)s and s.agent = %(agent)s
        and s.handle <> %(besides)s
    order by last.at desc, s.session desc limit %(others)s
"""  # noqa: S608 - constant clauses
_LIST_LOGS = f"select tenant, tier, owner, agent, session from ({_NEWEST_LOGS}) listed"  # noqa: S608

# The first row is of the log itself, without a session, even if the log is empty.
_GET_TAILS = f"""
    with picked as materialized (
        select null::text as session, 0::bigint as newest, {codec.SPACE_ID_SQL} as id, %(own)s::bigint as most
        union all
        select listed.session, row_number() over (order by listed.at desc, listed.session desc), listed.id, %(of_each)s
        from ({_NEWEST_LOGS}) listed
    )
    select picked.session, {_ENTRY_COLUMNS} from picked
    left join lateral (
        select {_ENTRY_COLUMNS} from recollect.entries e
        where e.tenant = %(tenant)s and e.space = picked.id and {_ENTRY_IS_LIVE}
        order by e.seq desc limit picked.most
    ) e on true
    order by picked.newest desc, e.seq
"""  # noqa: S608 - constant clauses


class PostgresLog(Log):
    """The methods of logs."""

    _server: PostgresServer

    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        if not ids:
            return []
        found = await self._read_entries(space, _GET_ENTRIES, handles=codec.build_handles(ids))
        entries = {entry.id: entry for entry in found}
        return [entries[id] for id in dict.fromkeys(ids) if id in entries]

    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        most, chosen = validate_limit(limit), list(map(codec.escape_text, kinds))
        found = await self._read_entries(space, _GET_RECENT_ENTRIES, limit=most, every=not kinds, kinds=chosen)
        return found[::-1]

    async def read_tails(self, space: Space, reach: TailLimits) -> list[LogTail]:
        limits = reach.validate()
        values = {**codec.encode_space(space), "besides": codec.build_space_handle(space)}
        values |= {"own": limits.own_entries, "others": limits.other_logs, "of_each": limits.entries_per_log}
        tails: dict[str | None, list[Sequence[Any]]] = {None: []}
        for session, *row in await self._server.read_space(space, _GET_TAILS, **values):
            tails.setdefault(session, []).extend([row] if row[0] is not None else [])
        own, *others = tails.values()
        sessions = [replace(space, session=codec.unescape_text(name)) for name in tails if name is not None]
        return [_build_tail(space, own), *map(_build_tail, sessions, others)]

    async def read(
        self,
        space: Space,
        *,
        after: int = 0,
        limit: int = 1000,
        since: datetime | None = None,
        until: datetime | None = None,
        hidden: bool = False,
    ) -> list[Entry]:
        values = {
            "after": min(max(after, _MIN_BIGINT), _MAX_BIGINT),
            "since": _MIN_BIGINT if since is None else to_micros(since),
            "until": _MAX_BIGINT if until is None else to_micros(until),
            "limit": validate_limit(limit),
        }
        return await self._read_entries(space, _GET_ENTRIES_AFTER, **values, **(_SHOW_EXPIRED if hidden else {}))

    async def _read_entries(self, space: Space, statement: str, **values: Any) -> list[Entry]:
        return [_decode_entry(row) for row in await self._server.read_space(space, statement, **values)]

    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        values = {**codec.encode_space(owner), "besides": "", "others": _NO_LIMIT, **(_SHOW_EXPIRED if hidden else {})}
        return [codec.decode_space(row) for row in await self._server.read_space(owner, _LIST_LOGS, **values)][::-1]


def _build_tail(space: Space, rows: Sequence[Sequence[Any]]) -> LogTail:
    contents, kinds = [codec.unescape_text(row[3]) for row in rows], [codec.unescape_text(row[2]) for row in rows]
    return LogTail(space, contents, kinds, lambda at: _decode_entry(rows[at]))


def _encode_entry(entry: Entry) -> SqlParams:
    values = codec.encode_fields(entry, ("id", "kind", "content", "at", "expires_at"))
    texts = {"handle": codec.build_handle(entry.id), "metadata": codec.dump_json(entry.metadata)}
    return {**values, **texts, "importance": float(entry.importance)}


@detects_corruption("an entry of a log")
def _decode_entry(row: Sequence[Any]) -> Entry:
    seq, id, kind, content, metadata, importance, at, expires_at = row
    return Entry(
        id=codec.unescape_text(id),
        kind=codec.unescape_text(kind),
        content=codec.unescape_text(content),
        metadata=codec.load_metadata(metadata),
        importance=importance,
        at=from_micros(at),
        expires_at=codec.decode_timestamp(expires_at),
        seq=seq,
    )


# Writes.

SELECT_ENTRIES = codec.SELECT_NAMED_SQL.format(table="entries", columns="t.seq")

_INSERT_ENTRIES = """
    insert into recollect.entries (tenant, space, seq, handle, id, kind, content, metadata, importance, at, expires_at)
    select %(tenant)s, %(space)s, numbered.last + e.seq, e.handle, e.id, e.kind, e.content, e.metadata, e.importance,
        e.at, e.expires_at
    from numbered, json_populate_recordset(null::recollect.entries, %(rows)s::json) as e
"""

# The id of an expired entry may be reused. An entry whose id is taken is not appended.
_APPEND_ENTRY = f"""
    with held as materialized (
        select expires_at is null or expires_at > %(now)s as live from recollect.entries
        where {codec.OF_SPACE_SQL} and handle = %(handle)s
    ),
    freed as (
        delete from recollect.entries where {codec.OF_SPACE_SQL} and handle = %(handle)s and expires_at <= %(now)s
    ),
    numbered as (
        update recollect.spaces set next_seq = greatest(next_seq + 1, %(least)s)
        where tenant = %(tenant)s and id = %(space)s and not exists (select 1 from held where live)
        returning next_seq - 1 as last
    )
    {_INSERT_ENTRIES}
"""  # noqa: S608 - constant clauses

# Consecutive entries with new ids, which most are.
_APPEND_NEW_ENTRIES = f"""
    with numbered as (
        update recollect.spaces set next_seq = next_seq + %(count)s
        where tenant = %(tenant)s and id = %(space)s returning next_seq - %(count)s as last
    )
    {_INSERT_ENTRIES}
"""  # noqa: S608 - constant clauses

# Deletes the newest entry beyond the cap, and all before it.
_TRIM_LOG = f"""
    delete from recollect.entries
    where {codec.OF_SPACE_SQL} and seq <= (
        select seq from recollect.entries
        where {codec.OF_SPACE_SQL} and (expires_at is null or expires_at > %(now)s)
        order by seq desc limit 1 offset %(cap)s
    )
"""  # noqa: S608 - constant clauses

_CLEAR_LOG = f"delete from recollect.entries where {codec.OF_SPACE_SQL}"  # noqa: S608
_DELETE_ENTRIES = f"{_CLEAR_LOG} and seq = any(%(seqs)s)"


class PostgresLogBatch(SpaceBatch):
    """The writes of a batch to one log. Consecutive entries are appended by one statement."""

    def _load(self, rows: StoredRows) -> None:
        self._used_handles = set(rows)
        self._now = to_micros(self._plan.now)
        self._pending: list[Append] = []

    def apply(self, write: LogWrite) -> None:
        if isinstance(write, Append):
            self._append(write)
            return
        self.add_to_plan()
        if isinstance(write, Drop):
            self._add(_DELETE_ENTRIES, seqs=list(write.seqs))
        else:
            self._add(_CLEAR_LOG)

    def _append(self, append: Append) -> None:
        handle = codec.build_handle(append.entry.id)
        is_used = handle in self._used_handles
        if not is_used:
            check_last_seq(append, self._last)
        if is_used or (self._pending and self._pending[-1].cap != append.cap):
            self.add_to_plan()
        if is_used:
            rows = codec.encode_json([{"seq": 1, **_encode_entry(append.entry)}])
            self._add(_APPEND_ENTRY, handle=handle, now=self._now, least=append.seq, rows=rows)
            self._trim(append.cap)
        else:
            self._used_handles.add(handle)
            self._pending.append(append)

    def add_to_plan(self) -> None:
        """Add the statements for the pending entries."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        first, rows = self._last, []
        for append in pending:
            self._last = max(self._last + 1, append.seq)
            rows.append({"seq": self._last - first, **_encode_entry(append.entry)})
        self._add(_APPEND_NEW_ENTRIES, count=self._last - first, rows=codec.encode_json(rows))
        self._trim(pending[-1].cap)

    def _trim(self, cap: int | None) -> None:
        if cap is not None:
            self._add(_TRIM_LOG, cap=cap, now=self._now)
