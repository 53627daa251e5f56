"""Reading items: by id, by filter, by place in a dialogue, and what a space is known to hold."""

from __future__ import annotations

from collections.abc import Sequence

from recollect.clock import from_micros, to_micros
from recollect.stores.base import SpaceCount
from recollect.stores.evidence import Brief
from recollect.stores.ops import Model
from recollect.stores.postgres import models
from recollect.stores.postgres.filters import Filter
from recollect.stores.postgres.journey import Rows
from recollect.stores.postgres.models import LACKING
from recollect.stores.postgres.rows import BRIEF, ITEM, SPACE, brief_of, item_of, named, space_of
from recollect.stores.postgres.server import Server, Work
from recollect.stores.postgres.text import given, handle, handles, kept
from recollect.stores.where import Where
from recollect.values import MemoryItem, Space

# Statements whose text depends on a Where get its clauses appended; clauses hold constants and bound names only.
_OF_SPACE = f"from recollect.records r where r.tenant = %(tenant)s and r.space = {SPACE}"
_GET = f"select {ITEM} {_OF_SPACE} and r.handle = any(%(handles)s)"
_FIND = f"select {ITEM} {_OF_SPACE} and "
_TERMS = f"select r.id, r.terms {_OF_SPACE} and r.handle = any(%(handles)s)"
_SPEAKERS = f"select distinct r.speaker {_OF_SPACE} and r.speaker is not null"
_PATHS = f"select path from recollect.paths where tenant = %(tenant)s and space = {SPACE}"  # noqa: S608
_LAST_TURNS = f"""
    select {ITEM} {_OF_SPACE} and r.session_handle = %(session)s
    order by r.position desc, r.id desc
    limit %(limit)s
"""
_AROUND = f"""
    select distinct {BRIEF}
    from unnest(%(sessions)s::text[], %(lows)s::float8[], %(highs)s::float8[]) as span (session, low, high)
    cross join lateral (
        select {BRIEF}
        {_OF_SPACE} and r.session_handle = span.session and r.position between span.low and span.high and {{filter}}
        offset 0
    ) r
"""  # noqa: S608
_SPACES = """
    select s.tenant, s.tier, s.owner, s.agent, s.session, count(*), max(r.created_at)
    from recollect.spaces s
    join recollect.records r on r.tenant = s.tenant and r.space = s.id
    where %(tenant)s::text is null or s.tenant = %(tenant)s
    group by s.tenant, s.tier, s.owner, s.agent, s.session
"""
_SIZE = """
    select sum(pg_total_relation_size(c.oid))::bigint
    from pg_class c
    where c.relnamespace = 'recollect'::regnamespace and c.relkind = 'r'
"""
_UNEMBEDDED = f"""
    select s.tenant, s.tier, s.owner, s.agent, s.session, {ITEM}
    from recollect.records r
    join recollect.spaces s on s.tenant = r.tenant and s.id = r.space
    where {LACKING}
    order by r.space, r.place
    limit %(limit)s
"""  # noqa: S608


async def get(server: Server, space: Space, ids: Sequence[str]) -> list[MemoryItem]:
    return _in_turn(space, ids, await server.read(space.tenant, _GET, {**named(space), "handles": handles(ids)}))


async def got(work: Work, space: Space, ids: Sequence[str]) -> list[MemoryItem]:
    """The same, as of the moment of a transaction."""
    return _in_turn(space, ids, await work.rows(_GET, {**named(space), "handles": handles(ids)}))


def _in_turn(space: Space, ids: Sequence[str], rows: Rows) -> list[MemoryItem]:
    found = {item.id: item for item in (item_of(space, row) for row in rows)}
    return [found[id] for id in dict.fromkeys(ids) if id in found]


async def find(server: Server, where: Where, limit: int, after: MemoryItem | None) -> list[MemoryItem]:
    filter = Filter(where)
    sql, values = f"{_FIND} {filter.sql}", {**named(where.space), **filter.values, "limit": limit}
    if after is not None:
        sql += " and (r.created_at, r.id) < (%(created_at)s::bigint, %(id)s)"
        values |= {"created_at": to_micros(after.created_at), "id": kept(after.id)}
    sql += " order by r.created_at desc, r.id desc limit %(limit)s"
    rows = await server.read(where.space.tenant, sql, values)
    return [item_of(where.space, row) for row in rows]


async def terms(work: Work, space: Space, ids: Sequence[str]) -> dict[str, str]:
    rows = await work.rows(_TERMS, {**named(space), "handles": handles(ids)})
    return {given(id): given(words) for id, words in rows}


async def around(server: Server, where: Where, places: Sequence[tuple[str, float]], reach: int) -> list[Brief]:
    filter = Filter(where)
    wanted = sorted(set(places))
    values = {
        **named(where.space),
        **filter.values,
        "sessions": [handle(session) for session, _ in wanted],
        "lows": [float(at) - reach for _, at in wanted],
        "highs": [float(at) + reach for _, at in wanted],
    }
    rows = await server.read(where.space.tenant, _AROUND.format(filter=filter.sql), values)
    return [brief_of(row) for row in rows]


async def last_turns(server: Server, space: Space, session: str, limit: int) -> list[MemoryItem]:
    values = {**named(space), "session": handle(session), "limit": limit}
    rows = await server.read(space.tenant, _LAST_TURNS, values)
    return [item_of(space, row) for row in rows]


async def paths(server: Server, space: Space) -> frozenset[str]:
    return frozenset(given(row[0]) for row in await server.read(space.tenant, _PATHS, named(space)))


async def speakers(server: Server, space: Space) -> frozenset[str]:
    return frozenset(given(row[0]) for row in await server.read(space.tenant, _SPEAKERS, named(space)))


async def size(work: Work) -> int:
    row = await work.row(_SIZE, {})
    return int(row[0]) if row else 0


async def spaces(work: Work, tenant: str | None) -> list[SpaceCount]:
    rows = await work.rows(_SPACES, {"tenant": None if tenant is None else kept(tenant)})
    counts = [SpaceCount(space_of(row[:5]), row[5], from_micros(row[6])) for row in rows]
    return sorted(counts, key=lambda count: str(count.space).split("/"))


async def unembedded(work: Work, model: Model, limit: int) -> list[MemoryItem]:
    prepared = await models.prepared(work, model)
    rows = await work.rows(_UNEMBEDDED, {"fresh": prepared.fresh, "limit": limit})
    return [item_of(space_of(row[:5]), row[5:]) for row in rows]
