"""Numbered changes of the schema, each applied once and in order."""

from __future__ import annotations

from importlib import resources

from recollect.errors import SchemaTooNew, SchemaTooOld
from recollect.stores.postgres.connections import PostgresConnection

# The advisory lock of the process that migrates.
_MIGRATION_LOCK = 0x5265636F
_SCHEMA_EXISTS = "select to_regclass('recollect.meta') is not null"
_GET_SCHEMA_VERSION = "select value::int from recollect.meta where name = 'schema'"
_SET_SCHEMA_VERSION = """
    insert into recollect.meta (name, value) values ('schema', %s)
    on conflict (name) do update set value = excluded.value
"""


def list_migrations() -> list[tuple[int, str]]:
    """Return the number and SQL of each migration, oldest first."""
    files = [file for file in resources.files(__package__).iterdir() if file.name.endswith(".sql")]
    return sorted((int(file.name.split("_")[0]), file.read_text("utf-8")) for file in files)


async def migrate(connection: PostgresConnection, display_url: str, *, migrates: bool) -> None:
    """Migrate a database in one transaction. Raise `SchemaTooNew` if a newer release has migrated it.

    With `migrates=False`, an older schema raises `SchemaTooOld`.
    """
    migrations = list_migrations()
    newest = migrations[-1][0]
    version = await _load_schema_version(connection, display_url, newest)
    if version == newest:
        return
    if version and not migrates:
        raise SchemaTooOld(
            f"{display_url} has schema {version}, and this release needs {newest}; opening it migrates it in one "
            "transaction, without a backup: stop every program that uses it and run pg_dump first"
        )
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        # Read again under the lock: another process may have migrated meanwhile.
        version = await _load_schema_version(connection, display_url, newest)
        if version == 0:
            await connection.execute("create schema if not exists recollect")
        for number, sql in migrations:
            if number > version:
                await connection.execute(sql.encode())
        await connection.execute(_SET_SCHEMA_VERSION, (str(newest),))


async def _load_schema_version(connection: PostgresConnection, display_url: str, newest: int) -> int:
    [[exists]] = await connection.fetch_rows(_SCHEMA_EXISTS)
    rows = await connection.fetch_rows(_GET_SCHEMA_VERSION) if exists else []
    version = int(rows[0][0]) if rows else 0
    if version > newest:
        raise SchemaTooNew(
            f"{display_url} has schema {version}, and this release supports up to {newest}; upgrade Recollect"
        )
    return version
