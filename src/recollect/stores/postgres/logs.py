"""Logs: entries in the order they came, each space with a sequence of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores.ops import Append, Clear, Drop, Entry, LogWrite
from recollect.stores.postgres.plan import Plan
from recollect.stores.postgres.rows import SPACE, dumped, loaded, micros, moment, named, space_of
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
    with held as materialized (
        select expires_at is null or expires_at > %(now)s as live
        from recollect.entries
        where tenant = %(tenant)s and space = %(space)s and handle = %(handle)s
    ),
    freed as (
        delete from recollect.entries
        where tenant = %(tenant)s and space = %(space)s and handle = %(handle)s and expires_at <= %(now)s
    ),
    numbered as (
        update recollect.spaces
        set next_seq = greatest(next_seq + 1, %(least)s)
        where tenant = %(tenant)s and id = %(space)s and not exists (select 1 from held where live)
        returning next_seq
    )
    insert into recollect.entries (
        tenant, space, seq, handle, id, kind, content, metadata, importance, at, expires_at
    )
    select %(tenant)s, %(space)s, next_seq, %(handle)s, %(id)s, %(kind)s, %(content)s, %(metadata)s, %(importance)s,
        %(at)s, %(expires_at)s::bigint
    from numbered
"""

# The newest entry that is one too many; it and all before it go.
_TRIM = """
    delete from recollect.entries
    where tenant = %(tenant)s and space = %(space)s
        and seq <= (
            select seq
            from recollect.entries
            where tenant = %(tenant)s and space = %(space)s and (expires_at is null or expires_at > %(now)s)
            order by seq desc
            limit 1 offset %(cap)s
        )
"""

_CLEAR = "delete from recollect.entries where tenant = %(tenant)s and space = %(space)s"
_DROP = """
    delete from recollect.entries
    where tenant = %(tenant)s and space = %(space)s and seq = any(%(seqs)s)
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


def apply(plan: Plan, space: int, write: LogWrite, now: datetime) -> None:
    tenant = write.space.tenant
    about: Values = {"tenant": kept(tenant), "space": space, "now": to_micros(now)}
    match write:
        case Append():
            plan.add(tenant, _APPEND, about | _values(write.entry) | {"least": write.seq})
            if write.cap is not None:
                plan.add(tenant, _TRIM, about | {"cap": write.cap})
        case Clear():
            plan.add(tenant, _CLEAR, about)
        case Drop():
            plan.add(tenant, _DROP, about | {"seqs": list(write.seqs)})


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
