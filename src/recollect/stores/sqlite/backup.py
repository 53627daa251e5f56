"""Copies of a store file: backups, also before a migration, and copies that are encrypted with another key."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

import apsw

from recollect.errors import BadInput, NotFound, StoreCorrupt, StoreFull, StoreUnavailable, WrongKey
from recollect.stores.sqlite.connection import (
    CIPHER,
    REKEYED_SUFFIX,
    EncryptionKey,
    check_application_id,
    check_encryption_support,
    connect_briefly,
    get_file_size,
    is_encrypted_with,
    translate_errors,
)
from recollect.validation import format_size

_WIPE_BYTES = 1 << 20


def write_backup(connection: apsw.Connection, target: Path, key: EncryptionKey | None = None) -> None:
    """Copy the store into a new file with the same key. The file gets its name once it is complete.

    Raises `BadInput` if `target` exists.
    """
    if os.path.lexists(target):  # a dangling link counts too
        raise _build_exists_error(target)
    # The first read fixes the snapshot; without it the backup would start again after each write.
    connection.execute("select count(*) from meta").fetchall()
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with translate_errors(partial), connect_briefly(partial, key) as copy:
            with copy.backup("main", connection, "main") as backup:
                backup.step(-1)
            # Without a write-ahead log the backup is a single file.
            copy.pragma("journal_mode", "delete")
        try:
            os.link(partial, target)
        except OSError:  # another program has created it, or the file system has no hard links
            if os.path.lexists(target):
                raise _build_exists_error(target) from None
            partial.replace(target)
    finally:
        with suppress(OSError):  # it may not exist, nor its directory
            partial.unlink()


def write_migration_backup(connection: apsw.Connection, path: Path, key: EncryptionKey | None, schema: int) -> None:
    """Copy an exclusively locked store to `NAME.before-schema-SCHEMA`, and check the copy.

    The backup of an earlier attempt is replaced: an older release may have written or erased since.
    """
    target = path.with_name(f"{path.name}.before-schema-{schema}")
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)  # of a killed process
    size, free = get_file_size(path), shutil.disk_usage(path.parent).free
    if free < size:
        raise StoreFull(
            f"the migration of {path} needs {format_size(size)} for the backup {target.name}, and its disk has "
            f"{format_size(free)}; free some space and open it again, nothing was changed"
        )
    try:
        _write_checked_copy(connection, partial, path, key, key)
        partial.replace(target)
        _sync_path(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        reason = f"the backup {target.name} cannot be written ({error.strerror})"
        raise StoreUnavailable(f"{path} was not migrated: {reason}; check its directory") from error


def list_migration_backups(path: Path) -> list[Path]:
    """Return the backups beside a store that migrations have written, including unfinished ones."""
    name = re.compile(re.escape(path.name) + r"\.before-schema-\d+(\.partial)?")
    return sorted(file for file in path.parent.iterdir() if name.fullmatch(file.name))


def delete_migration_backups(path: Path, *, wiped: bool = False) -> None:
    """Delete the backups that migrations have written. With `wiped`, overwrite them first."""
    for file in list_migration_backups(path):
        if wiped:
            with file.open("r+b") as opened:
                _overwrite(opened, get_file_size(file))
        file.unlink(missing_ok=True)


def change_key(path: Path, old: EncryptionKey | None, new: EncryptionKey | None) -> bool:
    """Encrypt a store with another key, for the first time, or decrypt it; return False if it has that key already.

    A crash leaves the file either unchanged or completely changed. Raises `StoreUnavailable` if another connection
    has the store open: it would go on with a file that has lost its name.
    """
    path = Path(os.path.abspath(path))
    check_encryption_support()
    if not path.is_file():
        raise NotFound(f"there is no store at {path}")
    if is_encrypted_with(path, new):
        return False
    if old is None and not is_encrypted_with(path, None):
        raise WrongKey(
            f"{path} is encrypted with another key already; `recollect key rotate --to FILE` gives it a new one"
        )
    with translate_errors(path), connect_briefly(path, old) as connection:
        check_application_id(connection, path)
        if not lock_exclusively(connection):
            raise StoreUnavailable(f"{path} is open elsewhere; stop every program that uses it, then change the key")
        copy = path.with_name(path.name + REKEYED_SUFFIX)
        _write_checked_copy(connection, copy, path, old, new)
        os.chmod(copy, stat.S_IMODE(path.stat().st_mode))
        delete_migration_backups(path, wiped=old is None)  # the old key could read them
        _replace_file(connection, copy, path, wiped=old is None)
    return True


def lock_exclusively(connection: apsw.Connection) -> bool:
    """Keep every other connection out until this one closes; return False if another one has the file open."""
    try:
        # Only the last open connection can leave WAL mode. SQLite does not call the busy handler for it.
        if connection.pragma("journal_mode", "delete") != "delete":
            return False
        # The exclusive lock outlives its transaction: a backup cannot read a file that is being written.
        connection.pragma("locking_mode", "exclusive")
        connection.execute("begin exclusive; commit")
    except (apsw.BusyError, apsw.LockedError):
        return False
    return True


def _write_checked_copy(
    connection: apsw.Connection, copy: Path, path: Path, old: EncryptionKey | None, new: EncryptionKey | None
) -> None:
    """Write a copy of a locked store with the new key, check it, and sync it to disk."""
    copy.unlink(missing_ok=True)
    # The copy must not be readable by more users than the original.
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with translate_errors(copy):
            with connect_briefly(copy, old) as target, translate_errors(copy, target):
                target.execute("pragma temp_store = memory")
                target.pragma("journal_mode", "off")  # after a crash the next attempt starts with a new copy
                with target.backup("main", connection, "main") as backup:
                    backup.step(-1)
                if new is not old:
                    target.pragma("cipher", CIPHER)
                    target.pragma("rekey", "" if new is None else new.derive_pragma_key(new.create_salt()))
            with connect_briefly(copy, new) as target:
                result = target.execute("pragma quick_check").get
            if result != "ok":
                raise StoreCorrupt(f"{path} is damaged ({result}); nothing was changed, restore a backup")
        _sync_path(copy)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise


def _replace_file(connection: apsw.Connection, copy: Path, path: Path, *, wiped: bool) -> None:
    """Replace the file while its lock is held, and invalidate the old one for connections that wait for the lock.

    With `wiped`, overwrite all of the old file: it was not encrypted, and the disk will reuse its blocks.
    """
    if os.name == "nt":  # Windows cannot replace an open file, and reports one that is open elsewhere
        connection.close()
        copy.replace(path)
        return
    _sync_path(path.parent)  # the old log and journal must not reappear next to the new file after a crash
    with path.open("r+b") as old:
        copy.replace(path)
        _sync_path(path.parent)
        size = os.fstat(old.fileno()).st_size
        _overwrite(old, size if wiped else min(size, _WIPE_BYTES))
    # Closing the file has dropped the lock, and a connection that waited for it finds no database.


def _overwrite(file: IO[bytes], size: int) -> None:
    for at in range(0, size, _WIPE_BYTES):
        file.write(bytes(min(_WIPE_BYTES, size - at)))
    file.flush()
    os.fsync(file.fileno())


def _sync_path(path: Path) -> None:
    if os.name == "nt":  # Windows opens no directory, and syncs no file that was opened for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _build_exists_error(target: Path) -> BadInput:
    return BadInput(f"{target} exists already; a backup is written to a new file")
