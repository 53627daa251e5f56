"""What another store needs to make everything anew: whose it is, and items with their words and vectors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import apsw
import numpy as np

from recollect.stores.ops import Put, Vectors
from recollect.stores.sqlite import generations
from recollect.stores.sqlite.rows import PART_BITS, SEQ_BITS, space_id
from recollect.stores.sqlite.search import Search
from recollect.stores.vectors import STORED
from recollect.values import Space

_TENANTS = """
    select distinct tenant
    from spaces
    where exists (select 1 from records where space = spaces.id)
        or exists (select 1 from entries where place between spaces.id << ?1 and ((spaces.id + 1) << ?1) - 1)
        or exists (select 1 from tasks where space = spaces.id)
"""

# Items and fences are counted in the same column. By the tier alone it is known whether it is a log's: what was said in
# no session is a log and, as what it is found by, items under one name.
_COUNTED = """
    select tenant, tier, user, agent, session, next_seq
    from spaces
    where (?1 is null or tenant = ?1) and next_seq > 0 and tier in ('conversation', 'episodic', 'working')
"""

_TERMS = """
    select id, place, terms
    from records
    where space = ? and id in (select value from json_each(?))
"""

_VECTORS = {
    "a": "select data from vectors_a where id >= ? and id < ? order by id",
    "b": "select data from vectors_b where id >= ? and id < ? order by id",
}


def tenants(connection: apsw.Connection) -> list[str]:
    return sorted(row[0] for row in connection.execute(_TENANTS, (SEQ_BITS,)))


def counted(connection: apsw.Connection, tenant: str | None) -> dict[Space, int]:
    return {Space(*names): last for *names, last in connection.execute(_COUNTED, (tenant,))}


def whole(connection: apsw.Connection, search: Search, space: Space, ids: Sequence[str]) -> list[Put]:
    tables = generations.active(connection)
    values = (space_id(connection, space), json.dumps(ids))
    rows: list[Any] = connection.execute(_TERMS, values).fetchall()
    found = {id: (place, terms) for id, place, terms in rows}
    puts = []
    for item in search.get(connection, space, ids):
        place, terms = found[item.id]
        vectors = None if tables is None else _vectors(connection, tables, place)
        model = None if tables is None or vectors is None else tables.model
        puts.append(Put(item=item, vectors=vectors, terms=tuple(terms.split()), model=model))
    return puts


def _vectors(connection: apsw.Connection, tables: generations.Tables, place: int) -> Vectors | None:
    span = (place << PART_BITS, (place + 1) << PART_BITS)
    rows = [np.frombuffer(data, STORED) for (data,) in connection.execute(_VECTORS[tables.generation], span)]
    return np.stack(rows).astype(np.float32) if rows else None
