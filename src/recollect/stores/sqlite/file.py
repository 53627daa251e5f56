"""What a file is by its first bytes, and a connection to it that has the key."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import apsw

from recollect.errors import KeyNeeded, NotEncrypted, StoreCorrupt, Unsupported, WrongKey
from recollect.stores.sqlite.key import SALT, Key

# 8 KiB: a scope's vectors are read in half the page fetches of 4 KiB, and a single small commit stays small
# (docs/decisions/002-one-file.md has the figures).
PAGE_BYTES = 8192

REKEYED = "-rekeyed"
"""The ending of a copy that is being given another key; it becomes the file, or is nothing to anybody."""

_CIPHER = "aegis"  # docs/decisions/015-the-whole-file-is-encrypted.md has the figures
_MAGIC = b"SQLite format 3\x00"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_JOURNAL_SIZE = slice(16, 20)  # how many pages there were before: none, when the file was being made
# Eight bytes after the salt are as in any database: the size of a page and what is constant. What else would have them?
_SIZE_OF_PAGE, _CONSTANT = slice(16, 18), slice(21, 24)
_START = 24


def connected(path: Path, key: Key | None) -> apsw.Connection:
    """A connection that can read the file; refused is one that is encrypted otherwise than the key says.

    SQLite learns the key only when it fits. With another one it would take what a crash has left in the log for
    nothing, and what lies in a journal for the truth.
    """
    salt = _salt_of(path, key)
    create_private(path)
    connection = apsw.Connection(str(path))
    if key is not None and salt is not None:
        try:
            unlock(connection, key, salt)
        except BaseException:
            connection.close()
            raise
    return connection


def is_as(path: Path, key: Key | None) -> bool:
    """Whether a file is encrypted with a key, or with none."""
    start = _start_of(path)
    if key is None:
        return start.startswith(_MAGIC)
    return len(start) == _START and key.fits(start[:SALT])


def create_private(path: Path) -> bool:
    """A new file that is its owner's alone, as what SQLite puts beside it will be; whether it was made now."""
    try:
        # Never through a link that leads nowhere, which somebody else may have put there.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:  # it is there already; of anything else SQLite complains better
        return False
    return True


def unlock(connection: apsw.Connection, key: Key, salt: bytes) -> None:
    connection.pragma("cipher", _CIPHER)
    connection.pragma("key", key.told(salt))
    connection.pragma("page_size", PAGE_BYTES)


def rekey(connection: apsw.Connection, key: Key | None) -> None:
    """Write every page anew, with another key or with none. For a file that is nobody else's."""
    connection.pragma("cipher", _CIPHER)
    connection.pragma("rekey", "" if key is None else key.told(key.fresh_salt()))


def can_encrypt() -> None:
    """Refuse when the SQLite that was imported cannot: both packages are installed as the module `apsw`."""
    if not hasattr(apsw, "mc_version"):
        raise Unsupported(
            "this SQLite cannot encrypt: the package apsw was installed over apsw-sqlite3mc; run "
            "pip uninstall apsw, then pip install --force-reinstall apsw-sqlite3mc"
        )


def has_moved(connection: apsw.Connection) -> bool:
    """Whether the name has gone to another file since this connection opened it."""
    moved = ctypes.c_int(0)
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
    return bool(moved.value)


def _salt_of(path: Path, key: Key | None) -> bytes | None:
    """By what the file's key is made; None for a file without."""
    if key is not None:
        can_encrypt()
    start = _start_of(path)
    if start.startswith(_MAGIC):
        if key is not None:
            raise NotEncrypted(
                f"{path} is not encrypted, and an encryption key is set; encrypt it with "
                f"`recollect key set --store {path}`, or take the key out of the settings"
            )
        return None
    if not start or _undone(path):
        return None if key is None else key.fresh_salt()
    if key is not None and key.fits(start[:SALT]):
        return start[:SALT]
    if len(start) < _START or start[_SIZE_OF_PAGE] != b"\x20\x00" or start[_CONSTANT] != b"\x40\x20\x20":
        raise StoreCorrupt(f"{path} is not a database; name another file, or move this one away")
    if key is None:
        raise KeyNeeded(
            f"{path} is encrypted, and no key was given; its key goes into encryption_key_file or encryption_key "
            "(RECOLLECT_ENCRYPTION_KEY_FILE, RECOLLECT_ENCRYPTION_KEY)"
        )
    raise WrongKey(
        f"{path} is encrypted with another key than the one in encryption_key or encryption_key_file; "
        "set the key it was encrypted with, nothing was changed"
    )


def _start_of(path: Path) -> bytes:
    """Read through SQLite: a program that opens the file itself and closes it gives up its process's locks on it."""
    if not path.is_file():
        return b""
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
    try:
        # Not as SQLite tells it: a file of one byte is an empty one to it.
        return file.xRead(min(_START, path.stat().st_size), 0)
    finally:
        file.xClose()


def _undone(path: Path) -> bool:
    """The power failed while the file was being made: the journal beside it says how to undo what there is of it."""
    journal = path.with_name(path.name + "-journal")
    if not journal.is_file():
        return False
    with journal.open("rb") as file:
        header = file.read(_JOURNAL_SIZE.stop)
    return header.startswith(_JOURNAL_MAGIC) and header[_JOURNAL_SIZE] == bytes(4)
