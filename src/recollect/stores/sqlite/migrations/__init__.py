"""Schema migrations: numbered SQL files, applied in order and once each, after a backup of the file."""

from __future__ import annotations

from importlib import resources
from itertools import count
from pathlib import Path

import apsw

from recollect.errors import SchemaTooNew, SchemaTooOld, StoreUnavailable
from recollect.stores.sqlite.backup import lock_exclusively, write_migration_backup
from recollect.stores.sqlite.connection import (
    APPLICATION_ID,
    EncryptionKey,
    check_application_id,
    create_busy_handler,
    get_file_size,
    open_connection,
    translate_errors,
)
from recollect.validation import format_size

# A process that starts at the same moment has the file open for a few milliseconds.
_OPEN_ELSEWHERE_SECONDS = 2.0
# Backup and migration of 1 M items (1.1 GiB) ran at 260 MiB/s (benchmarks/migrations.py); other disks are slower.
_BYTES_PER_SECOND = 100 << 20


def load_migrations() -> list[tuple[int, str]]:
    """Return all migrations as (number, SQL), oldest first."""
    files = [file for file in resources.files(__package__).iterdir() if file.name.endswith(".sql")]
    return sorted((int(file.name.split("_")[0]), file.read_text("utf-8")) for file in files)


def open_migrated(path: Path, key: EncryptionKey | None, *, migrates: bool) -> apsw.Connection:
    """Open a file for writing, and bring it to the current schema; see `SqliteStore.open`."""
    wait = create_busy_handler(_OPEN_ELSEWHERE_SECONDS)
    for tries in count():
        connection = open_connection(path, writes=True, key=key)
        try:
            if _migrate(connection, path, key, migrates=migrates):
                return connection
        except BaseException:
            connection.close()
            raise
        # Of two processes that wait for each other, neither could have the file alone.
        connection.close()
        if not wait(tries):
            break
    raise StoreUnavailable(
        f"{path} has an older schema and is open elsewhere, so it was not migrated; stop every program that uses it, "
        "then open it again"
    )


def _migrate(connection: apsw.Connection, path: Path, key: EncryptionKey | None, *, migrates: bool) -> bool:
    """Return True if the file has the current schema, False if it has to be opened again.

    A new file gets its schema at once. An older file is locked and copied before its migration.
    """
    with translate_errors(path, connection):
        migrations = load_migrations()
        newest = migrations[-1][0]
        version = _read_version(connection, path, newest)
        if version == newest:
            return True
        is_new = version == 0
        if not is_new:
            if not migrates:
                size = get_file_size(path) + get_file_size(path.with_name(path.name + "-wal"))
                raise SchemaTooOld(
                    f"{path} has schema {version}, and this release needs {newest}; opening it migrates it, which "
                    f"takes about {1 + size // _BYTES_PER_SECOND} s and {format_size(size)} for a backup beside it"
                )
            if not lock_exclusively(connection):
                return False
            write_migration_backup(connection, path, key, newest)
        connection.execute("begin immediate")
        # Read again under the lock: another process may have created the store meanwhile. It cannot have migrated an
        # older file, because this connection has had a shared lock since it read the version.
        version = _read_version(connection, path, newest)
        for number, sql in migrations:
            if number > version:
                connection.execute(sql)
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", newest)
        connection.execute("commit")  # after an error, the closing of the connection rolls back
        return is_new  # the exclusive lock ends with the connection


def _read_version(connection: apsw.Connection, path: Path, newest: int) -> int:
    """Raise `SchemaTooNew` for the file of a later release, and `StoreCorrupt` for that of another program."""
    check_application_id(connection, path)
    version = int(connection.pragma("user_version"))
    if version > newest:
        raise SchemaTooNew(
            f"{path} has schema {version}, and this Recollect knows them up to {newest}; upgrade Recollect to open it"
        )
    return version
