"""What the server has noted of our rows to plan by, common words and names among it: made anew after an erasure."""

from __future__ import annotations

import asyncio
from typing import Any

from psycopg import AsyncConnection, sql

from recollect.stores.postgres.wiped import LOCK_WAIT, OVERTAKEN, Wiped

# Few rows, which everybody who plans a statement reads: it takes a moment, and nobody is kept waiting for longer.
_SECONDS = 10.0

# How many rows a table of tables has is known only once it was analysed as a whole: then there is something to renew.
_WHOLES = """
    select c.relname
    from pg_class c
    where c.relnamespace = 'recollect'::regnamespace and c.relkind = 'p' and c.reltuples >= 0
    order by c.relname
"""
_EMPTY = """
    select c.relname
    from pg_class c
    where c.relnamespace = 'recollect'::regnamespace and c.relname = any(%s) and pg_relation_size(c.oid) = 0
    order by c.relname
"""

# A tenant that nobody can be, since names have no control characters, and whose rows come into this partition.
_NOBODY = """
    select nobody.tenant
    from (select chr(2) || number as tenant from generate_series(1, 10000) number) nobody
    where satisfies_hash_partition('recollect.spaces'::regclass, 16, %s::int, nobody.tenant)
    limit 1
"""
_ROW = """
    insert into {table}
    select (json_populate_record(null::{table}, (
        select json_object_agg(
            attname,
            case
                when attname = 'tenant' then %(nobody)s
                when atttypid = 'halfvec'::regtype then '[0]'
                else '0'
            end
        )
        from pg_attribute
        where attrelid = {name}::regclass and attnum > 0 and not attisdropped
    ))).*
"""

_FRESH = """
    select age(relfrozenxid) < age(%s::text::xid8::xid)
    from pg_class
    where oid = 'pg_catalog.pg_statistic'::regclass
"""
_OURS = "select pg_has_role(datdba, 'usage'), quote_ident(datname) from pg_database where datname = current_database()"


async def renewed(connection: AsyncConnection[Any], wiped: Wiped) -> str | None:
    """Analyse a partition without what was deleted, and leave nothing of what was noted before; what is in the way."""
    if wiped.analysed is None:
        await _analyse(connection, wiped)
    if wiped.analysed is None:
        return OVERTAKEN
    if await _fresh(connection, wiped.analysed):
        return None
    try:
        async with asyncio.timeout(_SECONDS):
            await connection.execute("vacuum full pg_catalog.pg_statistic")
    except TimeoutError:
        return "others hold pg_statistic, which has to be written anew; go on later: recollect lifecycle"
    if await _fresh(connection, wiped.analysed):
        return None
    [ours, database] = await (await connection.execute(_OURS)).fetchone() or (False, "")
    if ours:
        return "a transaction that began before still sees the old statistics; once it has ended: recollect lifecycle"
    return (
        f"the server's statistics may hold words that were deleted; have the owner of {database} run: "
        "vacuum full pg_catalog.pg_statistic; then go on: recollect lifecycle"
    )


async def _fresh(connection: AsyncConnection[Any], analysed: str) -> bool:
    [fresh] = await (await connection.execute(_FRESH, (analysed,))).fetchone() or (False,)
    return bool(fresh)


async def _analyse(connection: AsyncConnection[Any], wiped: Wiped) -> None:
    """A table that is empty is passed over by the server, and what was noted of it stays.

    So it gets a row of nobody's for as long as that takes.
    """
    async with connection.transaction():
        await connection.execute(LOCK_WAIT)
        rows = await (await connection.execute(_EMPTY, (wiped.tables,))).fetchall()
        empty = [sql.Identifier("recollect", name.rpartition("_")[0]) for (name,) in rows]
        [nobody] = await (await connection.execute(_NOBODY, (wiped.part,))).fetchone() or ("",)
        await connection.execute("select set_config('recollect.tenant', %s, true)", (nobody,))
        for table in empty:
            statement = sql.SQL(_ROW).format(table=table, name=sql.Literal(table.as_string()))
            await connection.execute(statement, {"nobody": nobody})
        wholes = [row[0] for row in await (await connection.execute(_WHOLES)).fetchall()]
        for name in (*wiped.tables, *wholes):
            await connection.execute(sql.SQL("analyze {}").format(sql.Identifier("recollect", name)))
        for table in empty:
            await connection.execute(sql.SQL("delete from {} where tenant = %s").format(table), (nobody,))
        await wiped.note_analysed(connection)
