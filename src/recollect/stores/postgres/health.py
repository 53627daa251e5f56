"""How a database is: its settings and versions, who holds whom up, how full it is, whether its indexes are whole."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores.health import Fill, Lapse, Vitals
from recollect.stores.postgres.index import LARGE, WHOLE
from recollect.stores.postgres.migrations import migrations
from recollect.stores.postgres.models import DIM, GENERATION
from recollect.stores.postgres.server import Work

_WEEK = timedelta(days=7)
_STUCK_SECONDS = 60

_ABOUT = """
    select current_setting('server_version'), (select extversion from pg_extension where extname = 'vector'),
        current_setting('fsync'), current_setting('full_page_writes'),
        (extract(epoch from clock_timestamp()) * 1000000)::bigint,
        (select value::int from recollect.meta where name = 'schema'),
        (select rolsuper or rolbypassrls from pg_roles where rolname = current_user),
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
        (select count(*) from pg_stat_activity where backend_type = 'client backend')
"""
_HELD = """
    select
        (select min(created_at) from recollect.records), (select max(created_at) from recollect.records),
        (select min(at) from recollect.entries), (select max(at) from recollect.entries),
        (select min(created_at) from recollect.tasks), (select max(updated_at) from recollect.tasks),
        (select coalesce(sum(items), 0)::bigint from recollect.spaces),
        (select count(*) from recollect.records where created_at >= %(since)s),
        (select count(*) from recollect.records where valid_to is not null and superseded_by is not null)
"""
_SIZE = """
    select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'recollect' and c.relkind = 'r'
"""
_DEAD = """
    select coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint
    from pg_stat_user_tables
    where schemaname = 'recollect'
"""
_STUCK = """
    select count(*)
    from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
        and (state like 'idle in transaction%%' or wait_event_type = 'Lock')
        and state_change < clock_timestamp() - make_interval(secs => %(seconds)s)
"""
_NEAR = f"""
    select count(*), count(*) filter (where {WHOLE.format(generation=GENERATION, dim=DIM)} is not true)
    from recollect.spaces s
    where s.items >= %(large)s and s.tier in ('semantic', 'procedural', 'conversation')
"""  # noqa: S608 - of constants


async def vitals(work: Work) -> Vitals:
    """What the server can tell at once."""
    version, vector, *careless, micros, schema, everybody, most, used = await _row(work, _ABOUT, {})
    held = await _row(work, _HELD, {"since": to_micros(work.now - _WEEK)})
    *moments, items, fresh, superseded = held
    firsts = [one for one in moments[::2] if one is not None]
    lasts = [one for one in moments[1::2] if one is not None]
    dead, live = await _row(work, _DEAD, {})
    [size] = await _row(work, _SIZE, {})
    [stuck] = await _row(work, _STUCK, {"seconds": _STUCK_SECONDS})
    lapses = tuple(
        Lapse(f"{name} is off: a power cut can cost the whole database", f"alter system set {name} = on")
        for name, value in zip(("fsync", "full_page_writes"), careless, strict=True)
        if value == "off"
    )
    return Vitals(
        engine="PostgreSQL",
        versions={"PostgreSQL": str(version).split()[0], "pgvector": str(vector)},
        survives="a crash of its processes" if lapses else "power loss",
        lapses=lapses,
        schema=(schema, migrations()[-1][0]),
        now=from_micros(micros),
        oldest=from_micros(min(firsts)) if firsts else None,
        newest=from_micros(max(lasts)) if lasts else None,
        bytes=size,
        items=items,
        fresh=fresh,
        superseded=superseded,
        unused=dead / (dead + live) if dead + live else 0.0,
        locked=f"{stuck} of its sessions hold or wait for a lock for over {_STUCK_SECONDS} s" if stuck else "",
        fills=(Fill("connections", used, most),),
        near=await _near(work),
        sees_everybody=bool(everybody),
    )


async def _near(work: Work) -> tuple[int, int]:
    large, broken = await _row(work, _NEAR, {"large": LARGE})
    return large, broken


async def _row(work: Work, statement: str, values: Mapping[str, Any]) -> tuple[Any, ...]:
    found = await work.row(statement, dict(values))
    assert found is not None
    return found
