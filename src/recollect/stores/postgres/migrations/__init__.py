"""Numbered changes to the shape of a store, applied in order and once each, whoever comes first."""

from __future__ import annotations

from importlib import resources
from typing import Any

from psycopg import AsyncConnection

from recollect.errors import SchemaTooNew

# Any number, the same for everybody: whoever holds it changes the shape, and the others wait and find it changed.
_LOCK = 0x5265636F
_THERE = "select to_regclass('recollect.meta') is not null"
_VERSION = "select value::int from recollect.meta where name = 'schema'"
_REACHED = """
    insert into recollect.meta (name, value)
    values ('schema', %s)
    on conflict (name) do update set value = excluded.value
"""


def migrations() -> list[tuple[int, str]]:
    """Every migration as (number, sql), oldest first."""
    files = [file for file in resources.files(__package__).iterdir() if file.name.endswith(".sql")]
    return sorted((int(file.name.split("_")[0]), file.read_text("utf-8")) for file in files)


async def migrate(connection: AsyncConnection[Any], place: str) -> None:
    """Bring a database up to date, in one transaction; refuse what is newer than we are."""
    known = migrations()
    newest = known[-1][0]
    if await _version(connection, place, newest) == newest:
        return
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        # Looked at again under the lock: another process may have done the work while we waited.
        version = await _version(connection, place, newest)
        if version == 0:
            await connection.execute("create schema if not exists recollect")
        for number, sql in known:
            if number > version:
                await connection.execute(sql.encode())
        await connection.execute(_REACHED, (str(newest),))


async def _version(connection: AsyncConnection[Any], place: str, newest: int) -> int:
    [there] = await (await connection.execute(_THERE)).fetchone() or (False,)
    row = await (await connection.execute(_VERSION)).fetchone() if there else None
    version = int(row[0]) if row else 0
    if version > newest:
        raise SchemaTooNew(
            f"{place} has schema {version}, and this Recollect knows them up to {newest}; upgrade Recollect to open it"
        )
    return version
