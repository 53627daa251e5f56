"""Numbered changes to the shape of a store, applied in order and once each, whoever comes first."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import apsw

from recollect.errors import SchemaTooNew
from recollect.stores.sqlite.connection import APPLICATION_ID, begin_immediate, refuse_strangers, translated


def migrations() -> list[tuple[int, str]]:
    """Every migration as (number, sql), oldest first."""
    files = [file for file in resources.files(__package__).iterdir() if file.name.endswith(".sql")]
    return sorted((int(file.name.split("_")[0]), file.read_text("utf-8")) for file in files)


def migrate(connection: apsw.Connection, path: Path) -> None:
    """Bring a file up to date, in one transaction; refuse what is newer than we are or is not ours."""
    with translated(path):
        known = migrations()
        newest = known[-1][0]
        if _version(connection, path, newest) == newest:
            return
        begin_immediate(connection)
        try:
            # Looked at again under the lock: another process may have done the work while we waited.
            version = _version(connection, path, newest)
            for number, sql in known:
                if number > version:
                    connection.execute(sql)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", newest)
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise


def _version(connection: apsw.Connection, path: Path, newest: int) -> int:
    refuse_strangers(connection, path)
    version = int(connection.pragma("user_version"))
    if version > newest:
        raise SchemaTooNew(
            f"{path} has schema {version}, and this Recollect knows them up to {newest}; upgrade Recollect to open it"
        )
    return version
