"""An index by meaning, of one space each, for those too large to be read through at every question.

An index of all vectors would cost every write several times what it costs now, and would have to be searched past
everybody else's. A space that has become large gets one of its own, built while others read and write.
"""

from __future__ import annotations

import logging
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from recollect.stores.postgres.models import Models

# From here on reading through a space takes longer than an index: see docs/decisions/009.
LARGE = 20_000

_log = logging.getLogger("recollect.stores")

# Whether the index that `name` says is there and whole.
WHOLE = """
    (
        select i.indisvalid and i.indisready
        from pg_index i
        where i.indexrelid = to_regclass(format('recollect.near_%%s_%%s_%%s', s.id, {generation}, {dim}))
    )
"""

_UNFINISHED = """
    select 1
    from pg_index i
    where i.indexrelid = to_regclass(%(name)s) and not i.indisvalid
        and not exists (select 1 from pg_stat_progress_create_index p where p.index_relid = i.indexrelid)
"""
_PARTITION = """
    select tableoid::regclass::text
    from recollect.spaces
    where tenant = %(tenant)s and id = %(number)s
"""

# The dimensions are in the condition too: the other generation's vectors may have others one day.
_BUILD = """
    create index concurrently if not exists {name}
    on {partition} using hnsw ((data::halfvec({dim})) halfvec_ip_ops)
    where space = {number} and generation = {generation} and vector_dims(data) = {dim}
"""


async def build(connection: AsyncConnection[Any], tenant: str, number: int, models: Models) -> None:
    """Build what is missing, and build again what somebody began and could not finish."""
    name = f"near_{number}_{models.generation}_{models.dim}"
    async with connection.transaction():
        await connection.execute("select set_config('recollect.tenant', %s, true)", (tenant,))
        row = await (await connection.execute(_PARTITION, {"tenant": tenant, "number": number})).fetchone()
        half = await (await connection.execute(_UNFINISHED, {"name": f"recollect.{name}"})).fetchone()
    if row is None:
        return
    partition = str(row[0]).replace("spaces_", "vectors_").removeprefix("recollect.")
    values = {
        "name": sql.Identifier(name),
        "partition": sql.Identifier("recollect", partition),
        "dim": sql.SQL(str(int(models.dim))),
        "number": sql.Literal(number),
        "generation": sql.Literal(models.generation),
    }
    try:
        if half is not None:
            gone = sql.SQL("drop index concurrently if exists {}").format(sql.Identifier("recollect", name))
            await connection.execute(gone, prepare=False)
        await connection.execute(sql.SQL(_BUILD).format(**values), prepare=False)
    except psycopg.Error as error:
        # Without it everything works, only slower: nobody's question fails for it.
        _log.warning("no index was built for a space of more than %d items: %s", LARGE, error)
