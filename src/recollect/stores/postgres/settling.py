"""What deleting leaves on the server's disk: rows in tables, values in statistics, and all of it in the log."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import AsyncConnection, errors, sql

from recollect.stores.postgres import log_files, statistics
from recollect.stores.postgres.wiped import LOCK_WAIT, OVERTAKEN, Wiped, left

# A table that is written anew says by its `relfrozenxid` from which transaction on it has kept what was deleted for
# others who may still see it. What an earlier one has deleted is gone. The smallest first: it tells for all.
_STALE = """
    select c.relname
    from pg_class c
    where c.relnamespace = 'recollect'::regnamespace and c.relname = any(%s)
        and age(c.relfrozenxid) >= age(%s::text::xid8::xid)
    order by pg_total_relation_size(c.oid), c.relname
"""
# Indexes by meaning of spaces that are no more.
_ORPHANS = """
    select c.relname
    from pg_index i
    join pg_class c on c.oid = i.indexrelid
    where i.indrelid = to_regclass(%s) and starts_with(c.relname, 'near_')
        and not exists (select 1 from recollect.spaces s where s.id = split_part(c.relname, '_', 2)::bigint)
"""

_SEEN = (
    "a transaction, a replica or a slot began before and still sees what was deleted; end it (select pid, usename from "
    "pg_stat_activity where backend_xmin is not null; see pg_prepared_xacts and pg_replication_slots too), then go on: "
    "recollect lifecycle"
)


async def settle(connection: AsyncConnection[Any]) -> list[str]:
    """Write everything anew that deletions have touched; what is in the way, a sentence each."""
    waits: dict[str, None] = {}
    for wiped in await left(connection):
        held = await _settled(connection, wiped)
        if held is None:
            await wiped.note_done(connection)
        else:
            waits[held] = None
    return list(waits)


async def _settled(connection: AsyncConnection[Any], wiped: Wiped) -> str | None:
    try:
        if wiped.ended is None:
            held = await _rewritten(connection, wiped) or await statistics.renewed(connection, wiped)
            if held is not None:
                return held
            await wiped.note_ended(connection)
        if wiped.ended is None:
            return OVERTAKEN
        return await log_files.passed(connection, wiped)
    except (errors.LockNotAvailable, errors.QueryCanceled, errors.DeadlockDetected) as error:
        return f"others hold what has to be written anew ({_first_line(error)}); go on later: recollect lifecycle"
    except errors.InsufficientPrivilege as error:
        return (
            f"this user may not write tables anew ({_first_line(error)}); go on as their owner: recollect lifecycle "
            "--store postgresql://OWNER@…"
        )


async def _rewritten(connection: AsyncConnection[Any], wiped: Wiped) -> str | None:
    """Every table of a partition, with its indexes and what it keeps elsewhere, without what was deleted."""
    await _drop_orphans(connection, wiped.part)
    for name in await _stale(connection, wiped.tables, wiped.xid):
        table, key = sql.Identifier("recollect", name), sql.Identifier(f"{name}_pkey")
        async with connection.transaction():
            await connection.execute(LOCK_WAIT)
            # What VACUUM FULL does, in the order of the key, and in a transaction, where that cannot be: behind a
            # pooler a limit on the waiting that outlived this would be somebody else's.
            await connection.execute(sql.SQL("cluster {} using {}").format(table, key))
            await connection.execute(sql.SQL("alter table {} set without cluster").format(table))
        if await _stale(connection, [name], wiped.xid):
            return _SEEN
    return None


async def _stale(connection: AsyncConnection[Any], names: list[str], xid: str) -> list[str]:
    return [row[0] for row in await (await connection.execute(_STALE, (names, xid))).fetchall()]


async def _drop_orphans(connection: AsyncConnection[Any], part: int) -> None:
    async with connection.transaction():
        await connection.execute(LOCK_WAIT)
        await connection.execute("set local recollect.everyone = 'on'")
        rows = await (await connection.execute(_ORPHANS, (f"recollect.vectors_{part}",))).fetchall()
        for (name,) in rows:
            await connection.execute(sql.SQL("drop index {}").format(sql.Identifier("recollect", name)))


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().splitlines()[0]
