"""Logs: entries in the order they came, each space with a sequence of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores.ops import Append, Clear, Drop, Entry, LogWrite
from recollect.stores.postgres.holdings import Holdings
from recollect.stores.postgres.plan import Plan
from recollect.stores.postgres.rows import SPACE, dumped, dumped_rows, loaded, micros, moment, named, space_of
from recollect.stores.postgres.server import Values, Work
from recollect.stores.postgres.text import given, handle, handles, kept
from recollect.stores.tails import Reach, Tail
from recollect.values import Space

# Before any moment that can be written.
_NEVER = -(1 << 63)
_ALL = 1 << 31

_COLUMNS = "seq, id, kind, content, metadata, importance, at, expires_at"

_LATEST = f"""
    select {_COLUMNS}
    from recollect.entries
    where tenant = %(tenant)s and space = {SPACE}
        and (expires_at is null or expires_at > %(now)s)
        and (%(every)s or kind = any(%(kinds)s))
    order by seq desc
    limit %(limit)s
"""  # noqa: S608 - constant clauses

_SINCE = f"""
    select {_COLUMNS}
    from recollect.entries
    where tenant = %(tenant)s and space = {SPACE} and seq > %(after)s
        and (expires_at is null or expires_at > %(now)s)
    order by seq
    limit %(limit)s
"""  # noqa: S608 - constant clauses

_GET = f"""
    select {_COLUMNS}
    from recollect.entries
    where tenant = %(tenant)s and space = {SPACE} and handle = any(%(handles)s)
        and (expires_at is null or expires_at > %(now)s)
"""  # noqa: S608 - constant clauses

# The id of an entry that nobody can see any more is free again; of one that is seen, nothing happens.
_APPEND = """
    held{n} as materialized (
        select expires_at is null or expires_at > %(now{n})s as live
        from recollect.entries
        where tenant = %(tenant{n})s and space = %(space{n})s and handle = %(handle{n})s
    ),
    freed{n} as (
        delete from recollect.entries
        where tenant = %(tenant{n})s and space = %(space{n})s and handle = %(handle{n})s and expires_at <= %(now{n})s
    ),
    numbered{n} as (
        update recollect.spaces
        set next_seq = greatest(next_seq + 1, %(least{n})s)
        where tenant = %(tenant{n})s and id = %(space{n})s and not exists (select 1 from held{n} where live)
        returning next_seq
    ),
    appended{n} as (
        insert into recollect.entries (
            tenant, space, seq, handle, id, kind, content, metadata, importance, at, expires_at
        )
        select %(tenant{n})s, %(space{n})s, next_seq, %(handle{n})s, %(id{n})s, %(kind{n})s, %(content{n})s,
            %(metadata{n})s, %(importance{n})s, %(at{n})s, %(expires_at{n})s::bigint
        from numbered{n}
    )
"""

# Entries whose ids nobody has had: most are.
_EXTEND = """
    numbered{n} as (
        update recollect.spaces
        set next_seq = next_seq + %(count{n})s
        where tenant = %(tenant{n})s and id = %(space{n})s
        returning next_seq - %(count{n})s as last
    ),
    appended{n} as (
        insert into recollect.entries (
            tenant, space, seq, handle, id, kind, content, metadata, importance, at, expires_at
        )
        select %(tenant{n})s, %(space{n})s, numbered{n}.last + e.number, e.handle, e.id, e.kind, e.content, e.metadata,
            e.importance, e.at, e.expires_at
        from numbered{n}, json_to_recordset(%(rows{n})s::json) as e (
            number bigint, handle text, id text, kind text, content text, metadata text, importance float8, at bigint,
            expires_at bigint
        )
    )
"""

# The newest entry that is one too many; it and all before it go.
_TRIM = """
    trimmed{n} as (
        delete from recollect.entries
        where tenant = %(tenant{n})s and space = %(space{n})s
            and seq <= (
                select seq
                from recollect.entries
                where tenant = %(tenant{n})s and space = %(space{n})s
                    and (expires_at is null or expires_at > %(now{n})s)
                order by seq desc
                limit 1 offset %(cap{n})s
            )
    )
"""

_CLEAR = """
    cleared{n} as (delete from recollect.entries where tenant = %(tenant{n})s and space = %(space{n})s)
"""
_DROP = """
    dropped{n} as (
        delete from recollect.entries
        where tenant = %(tenant{n})s and space = %(space{n})s and seq = any(%(seqs{n})s)
    )
"""

_LOGS = """
    select s.tenant, s.tier, s.owner, s.agent, s.session
    from recollect.spaces s
    cross join lateral (
        select at
        from recollect.entries e
        where e.tenant = %(tenant)s and e.space = s.id and (e.expires_at is null or e.expires_at > %(now)s)
        order by e.seq desc
        limit 1
    ) last
    where s.tenant = %(tenant)s and s.tier = %(tier)s and s.owner = %(owner)s and s.agent = %(agent)s
    order by last.at desc, s.session desc
    limit %(limit)s
"""

_OWNERS = """
    select distinct s.tenant, s.tier, s.owner, s.agent, ''
    from recollect.spaces s
    where s.tenant = %(tenant)s
        and exists (select 1 from recollect.entries e where e.tenant = %(tenant)s and e.space = s.id)
    order by s.tier, s.owner, s.agent
"""


class Pages:
    """The logs that a batch writes to. Entries that follow each other are appended together."""

    def __init__(self, plan: Plan, there: Holdings, now: datetime) -> None:
        self._plan = plan
        self._spaces = there.spaces
        self._taken = set(there.entries)
        self._now = now
        self._runs: dict[Space, list[Append]] = {}
        self._last = {space: numbered.next_seq for space, numbered in there.spaces.items()}
        """The last place that each log has given, as far as it can be told before anything is written."""

    def apply(self, write: LogWrite) -> None:
        match write:
            case Append():
                self._append(write)
            case Clear():
                self._end(write.space)
                self._add(write.space, _CLEAR, {})
            case Drop():
                self._end(write.space)
                self._add(write.space, _DROP, {"seqs": list(write.seqs)})

    def plan(self) -> None:
        """Note what has not been noted yet."""
        for space in list(self._runs):
            self._end(space)

    def _append(self, append: Append) -> None:
        name = append.space, handle(append.entry.id)
        run = self._runs.get(append.space, [])
        if name in self._taken or (run and run[-1].cap != append.cap):
            self._end(append.space)
        if name in self._taken:
            more = {"now": to_micros(self._now), "least": append.seq}
            self._add(append.space, _APPEND, _values(append.entry) | more)
            self._trim(append.space, append.cap)
        else:
            self._taken.add(name)
            self._runs.setdefault(append.space, []).append(append)

    def _end(self, space: Space) -> None:
        run = self._runs.pop(space, [])
        if not run:
            return
        entries, cap = [append.entry for append in run], run[-1].cap
        last = self._last[space]
        places = list(
            accumulate((append.seq for append in run), lambda before, least: max(before + 1, least), initial=last)
        )
        self._last[space] = places[-1]
        rows = [{"number": place - last, **_values(entry)} for place, entry in zip(places[1:], entries, strict=True)]
        values: Values = {"count": places[-1] - last, "rows": dumped_rows(rows)}
        live = sum(entry.expires_at is None or entry.expires_at > self._now for entry in entries)
        if cap is None or live >= cap:
            self._add(space, _EXTEND, values)
            self._trim(space, cap)
        else:  # of those that were there, so many fewer may stay
            values |= {"cap": cap - live, "now": to_micros(self._now)}
            self._add(space, f"{_EXTEND}, {_TRIM}", values)

    def _trim(self, space: Space, cap: int | None) -> None:
        if cap is not None:
            self._add(space, _TRIM, {"cap": cap, "now": to_micros(self._now)})

    def _add(self, space: Space, part: str, values: Values) -> None:
        number = self._spaces[space].id
        about: Values = {"tenant": kept(space.tenant), "space": number}
        self._plan.add(space.tenant, part, about | values, [("space", number)])


async def get(work: Work, space: Space, ids: Sequence[str]) -> list[Entry]:
    rows = await work.rows(_GET, {**named(space), "handles": handles(ids), "now": to_micros(work.now)})
    found = {entry.id: entry for entry in map(_entry, rows)}
    return [found[id] for id in dict.fromkeys(ids) if id in found]


async def recent(work: Work, space: Space, limit: int, kinds: Sequence[str] = ()) -> list[Entry]:
    return [_entry(row) for row in await _latest(work, space, limit, kinds)]


async def tails(work: Work, space: Space, reach: Reach) -> list[Tail]:
    """The end of a log, and those of its owner's newest others."""
    # One more than are wanted: the log itself is among them, more often than not.
    listed = await _newest_logs(work, space, to_micros(work.now), reach.others + 1)
    others = [one for one in listed if one != space][: reach.others]
    return [
        await _tail(work, space, reach.own),
        *[await _tail(work, one, reach.of_each) for one in reversed(others)],
    ]


async def read(work: Work, space: Space, after: int, limit: int, *, hidden: bool) -> list[Entry]:
    """What is above a `seq`; with `hidden`, all that is there."""
    after = min(max(after, _NEVER), -_NEVER - 1)
    values = {**named(space), "after": after, "limit": limit, "now": _NEVER if hidden else to_micros(work.now)}
    return [_entry(row) for row in await work.rows(_SINCE, values)]


async def logs(work: Work, owner: Space, *, hidden: bool) -> list[Space]:
    return (await _newest_logs(work, owner, _NEVER if hidden else to_micros(work.now), _ALL))[::-1]


async def owners(work: Work, tenant: str) -> list[Space]:
    return [space_of(row) for row in await work.rows(_OWNERS, {"tenant": kept(tenant)})]


async def _newest_logs(work: Work, owner: Space, now: int, most: int) -> list[Space]:
    values = {
        "tenant": kept(owner.tenant),
        "tier": owner.tier,
        "owner": kept(owner.user),
        "agent": kept(owner.agent),
        "now": now,
        "limit": most,
    }
    return [space_of(row) for row in await work.rows(_LOGS, values)]


async def _tail(work: Work, space: Space, limit: int) -> Tail:
    rows = await _latest(work, space, limit)
    texts, kinds = [given(row[3]) for row in rows], [given(row[2]) for row in rows]
    return Tail(space, texts, kinds, lambda at: _entry(rows[at]))


async def _latest(work: Work, space: Space, limit: int, kinds: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    values = {
        **named(space),
        "now": to_micros(work.now),
        "limit": limit,
        "every": not kinds,
        "kinds": [kept(kind) for kind in kinds],
    }
    return (await work.rows(_LATEST, values))[::-1]


def _values(entry: Entry) -> Values:
    return {
        "handle": handle(entry.id),
        "id": kept(entry.id),
        "kind": kept(entry.kind),
        "content": kept(entry.content),
        "metadata": dumped(dict(entry.metadata)),
        "importance": float(entry.importance),
        "at": to_micros(entry.at),
        "expires_at": micros(entry.expires_at),
    }


def _entry(row: tuple[Any, ...]) -> Entry:
    seq, id, kind, content, metadata, importance, at, expires_at = row
    return Entry(
        id=given(id),
        kind=given(kind),
        content=given(content),
        metadata=loaded(metadata),
        importance=importance,
        at=from_micros(at),
        expires_at=moment(expires_at),
        seq=seq,
    )
