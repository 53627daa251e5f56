"""Logs: entries in the order they came, each space with a sequence of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores.damage import reads
from recollect.stores.ops import Append, Clear, Drop, Entry, LogWrite
from recollect.stores.postgres.holdings import Holdings
from recollect.stores.postgres.journey import Values
from recollect.stores.postgres.plan import Plan
from recollect.stores.postgres.rows import (
    SPACE,
    dumped,
    dumped_rows,
    loaded,
    micros,
    moment,
    named,
    space_handle,
    space_of,
)
from recollect.stores.postgres.server import NOW, Server, Work
from recollect.stores.postgres.text import given, handle, handles, kept
from recollect.stores.tails import Reach, Tail
from recollect.values import Space

# Before any moment that can be written.
_NEVER = -(1 << 63)
_ALL = 1 << 31

_COLUMNS = "e.seq, e.id, e.kind, e.content, e.metadata, e.importance, e.at, e.expires_at"

_LIVE = f"(e.expires_at is null or e.expires_at > {NOW})"

_LATEST = f"""
    select {_COLUMNS}
    from recollect.entries e
    where tenant = %(tenant)s and space = {SPACE} and {_LIVE}
        and (%(every)s or kind = any(%(kinds)s))
    order by seq desc
    limit %(limit)s
"""  # noqa: S608 - constant clauses

_SINCE = f"""
    select {_COLUMNS}
    from recollect.entries e
    where tenant = %(tenant)s and space = {SPACE} and seq > %(after)s and {_LIVE}
    order by seq
    limit %(limit)s
"""  # noqa: S608 - constant clauses

_GET = f"""
    select {_COLUMNS}
    from recollect.entries e
    where tenant = %(tenant)s and space = {SPACE} and handle = any(%(handles)s) and {_LIVE}
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

_EXTEND_AND_TRIM = f"{_EXTEND}, {_TRIM}"

_CLEAR = """
    cleared{n} as (delete from recollect.entries where tenant = %(tenant{n})s and space = %(space{n})s)
"""
_DROP = """
    dropped{n} as (
        delete from recollect.entries
        where tenant = %(tenant{n})s and space = %(space{n})s and seq = any(%(seqs{n})s)
    )
"""

_NEWEST_LOGS = f"""
    select s.id, s.tenant, s.tier, s.owner, s.agent, s.session, last.at
    from recollect.spaces s
    cross join lateral (
        select at
        from recollect.entries e
        where e.tenant = %(tenant)s and e.space = s.id and {_LIVE}
        order by e.seq desc
        limit 1
    ) last
    where s.tenant = %(tenant)s and s.tier = %(tier)s and s.owner = %(owner)s and s.agent = %(agent)s
        and s.handle <> %(besides)s
    order by last.at desc, s.session desc
    limit %(others)s
"""  # noqa: S608 - constant clauses
_LOGS = f"select tenant, tier, owner, agent, session from ({_NEWEST_LOGS}) listed"  # noqa: S608

# The log itself stands under nobody's name: it comes first, also when nothing is in it.
_TAILS = f"""
    with picked as materialized (
        select null::text as session, 0::bigint as newest, (
            select id from recollect.spaces where tenant = %(tenant)s and handle = %(besides)s
        ) as id, %(own)s::bigint as most
        union all
        select listed.session, row_number() over (order by listed.at desc, listed.session desc), listed.id, %(of_each)s
        from ({_NEWEST_LOGS}) listed
    )
    select picked.session, {_COLUMNS}
    from picked
    left join lateral (
        select {_COLUMNS}
        from recollect.entries e
        where e.tenant = %(tenant)s and e.space = picked.id and {_LIVE}
        order by e.seq desc
        limit picked.most
    ) e on true
    order by picked.newest desc, e.seq
"""  # noqa: S608 - constant clauses

_OWNERS = """
    select distinct s.tenant, s.tier, s.owner, s.agent, ''
    from recollect.spaces s
    where s.tenant = %(tenant)s
        and exists (select 1 from recollect.entries e where e.tenant = %(tenant)s and e.space = s.id)
    order by s.tier, s.owner, s.agent
"""


@dataclass(slots=True)
class _Page:
    """The end of one log: its entries that are to be appended together, and the ids that it has given away."""

    tenant: str
    number: int
    last: int
    """The last place that it has given, as far as it can be told before anything is written."""
    taken: set[str]
    run: list[Append] = field(default_factory=list)


class Pages:
    """The logs that a batch writes to. Entries that follow each other are appended together."""

    def __init__(self, plan: Plan, there: Holdings, now: datetime) -> None:
        self._plan = plan
        self._there = there
        self._now = now
        self._pages: dict[Space, _Page] = {}

    def apply(self, write: LogWrite) -> None:
        page = self._pages.get(write.space) or self._opened(write.space)
        match write:
            case Append():
                self._append(page, write)
            case Clear():
                self._end(page)
                self._add(page, _CLEAR, {})
            case Drop():
                self._end(page)
                self._add(page, _DROP, {"seqs": list(write.seqs)})

    def plan(self) -> None:
        """Note what has not been noted yet."""
        for page in self._pages.values():
            self._end(page)

    def _opened(self, space: Space) -> _Page:
        numbered = self._there.spaces[space]
        taken = set(self._there.entries.get(space, ()))
        page = self._pages[space] = _Page(space.tenant, numbered.id, numbered.next_seq, taken)
        return page

    def _append(self, page: _Page, append: Append) -> None:
        name, run = handle(append.entry.id), page.run
        if name in page.taken or (run and run[-1].cap != append.cap):
            self._end(page)
        if name in page.taken:
            more = {"now": to_micros(self._now), "least": append.seq}
            self._add(page, _APPEND, _values(append.entry) | more)
            self._trim(page, append.cap)
        else:
            page.taken.add(name)
            page.run.append(append)

    def _end(self, page: _Page) -> None:
        run, page.run = page.run, []
        if not run:
            return
        cap, first, now = run[-1].cap, page.last, self._now
        rows, live = [], 0
        for append in run:
            entry = append.entry
            page.last = max(page.last + 1, append.seq)
            rows.append({"number": page.last - first, **_values(entry)})
            live += entry.expires_at is None or entry.expires_at > now
        values: Values = {"count": page.last - first, "rows": dumped_rows(rows)}
        if cap is None or live >= cap:
            self._add(page, _EXTEND, values)
            self._trim(page, cap)
        else:  # of those that were there, so many fewer may stay
            values |= {"cap": cap - live, "now": to_micros(now)}
            self._add(page, _EXTEND_AND_TRIM, values)

    def _trim(self, page: _Page, cap: int | None) -> None:
        if cap is not None:
            self._add(page, _TRIM, {"cap": cap, "now": to_micros(self._now)})

    def _add(self, page: _Page, part: str, values: Values) -> None:
        about: Values = {"tenant": kept(page.tenant), "space": page.number}
        self._plan.add(page.tenant, part, about | values, [("space", page.number)])


async def get(server: Server, space: Space, ids: Sequence[str]) -> list[Entry]:
    values = {**named(space), "handles": handles(ids), "now": server.moment}
    found = {entry.id: entry for entry in map(_entry, await server.read(space.tenant, _GET, values))}
    return [found[id] for id in dict.fromkeys(ids) if id in found]


async def recent(server: Server, space: Space, limit: int, kinds: Sequence[str] = ()) -> list[Entry]:
    wanted = [kept(kind) for kind in kinds]
    values = {**named(space), "now": server.moment, "limit": limit, "every": not kinds, "kinds": wanted}
    return [_entry(row) for row in await server.read(space.tenant, _LATEST, values)][::-1]


async def tails(server: Server, space: Space, reach: Reach) -> list[Tail]:
    """The end of a log, and those of its owner's newest others."""
    values = {
        **_owned(space),
        "besides": space_handle(space),
        "now": server.moment,
        "own": reach.own,
        "others": reach.others,
        "of_each": reach.of_each,
    }
    ends: dict[str | None, list[Sequence[Any]]] = {}
    for session, *row in await server.read(space.tenant, _TAILS, values):
        ends.setdefault(session, []).extend([row] if row[0] is not None else [])
    mine = ends.pop(None, [])
    others = [_tail(replace(space, session=given(session or "")), rows) for session, rows in ends.items()]
    return [_tail(space, mine), *others]


async def read(server: Server, space: Space, after: int, limit: int, *, hidden: bool) -> list[Entry]:
    """What is above a `seq`; with `hidden`, all that is there."""
    after = min(max(after, _NEVER), -_NEVER - 1)
    values = {**named(space), "after": after, "limit": limit, "now": _NEVER if hidden else server.moment}
    return [_entry(row) for row in await server.read(space.tenant, _SINCE, values)]


async def logs(server: Server, owner: Space, *, hidden: bool) -> list[Space]:
    now = _NEVER if hidden else server.moment
    values = {**_owned(owner), "besides": "", "now": now, "others": _ALL}
    return [space_of(row) for row in await server.read(owner.tenant, _LOGS, values)][::-1]


async def owners(work: Work, tenant: str) -> list[Space]:
    return [space_of(row) for row in await work.rows(_OWNERS, {"tenant": kept(tenant)})]


def _owned(space: Space) -> Values:
    return {
        "tenant": kept(space.tenant),
        "tier": space.tier,
        "owner": kept(space.user),
        "agent": kept(space.agent),
    }


def _tail(space: Space, rows: Sequence[Sequence[Any]]) -> Tail:
    texts, kinds = [given(row[3]) for row in rows], [given(row[2]) for row in rows]
    return Tail(space, texts, kinds, lambda at: _entry(rows[at]))


def _values(entry: Entry) -> Values:
    return {
        "handle": handle(entry.id),
        "id": kept(entry.id),
        "kind": kept(entry.kind),
        "content": kept(entry.content),
        "metadata": dumped(entry.metadata),
        "importance": float(entry.importance),
        "at": to_micros(entry.at),
        "expires_at": micros(entry.expires_at),
    }


@reads("an entry of a log")
def _entry(row: Sequence[Any]) -> Entry:
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
