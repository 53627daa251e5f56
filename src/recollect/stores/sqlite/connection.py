"""Connections to a store file: encryption keys, settings, error translation and raw page access."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import hmac
import json
import os
import random
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import cast

import apsw

from recollect import errors
from recollect.settings import Secret, Settings

# Encryption keys

# An encrypted file starts with this many plain bytes, from which its key is derived.
_SALT_BYTES = 16
_NONCE_BYTES = 12
_HEX_KEY_PATTERN = re.compile(r"[0-9a-fA-F]{64}")
_MIN_KEY_LENGTH = 16
# OWASP's scrypt setting with the least memory: about 160 ms and 16 MiB, once per file and process.
_SCRYPT_PARAMETERS = {"n": 2**14, "r": 8, "p": 5}


class EncryptionKey:
    """A store's key: 64 random hexadecimal digits, or a passphrase. It is never shown.

    The salt at the start of a file is a random nonce of 12 bytes and a mark of 4 bytes that only this key can compute.
    So a wrong key is detected before SQLite touches the file or its log.
    """

    __slots__ = ("_secret",)

    def __init__(self, text: str) -> None:
        if len(text) < _MIN_KEY_LENGTH:
            raise errors.BadSettings(
                f"an encryption key must have at least {_MIN_KEY_LENGTH} characters; got {len(text)}; "
                "`recollect key new FILE` makes a good one"
            )
        self._secret = Secret(text)

    def __repr__(self) -> str:
        return "EncryptionKey(not shown)"

    def create_salt(self) -> bytes:
        return self._add_mark(secrets.token_bytes(_NONCE_BYTES))

    def is_key_for(self, salt: bytes) -> bool:
        return hmac.compare_digest(salt, self._add_mark(salt[:_NONCE_BYTES]))

    def derive_pragma_key(self, salt: bytes) -> str:
        """Return the page key and the salt in the form of SQLite's `key` pragma."""
        master = _derive_master_key(self._secret, salt[:_NONCE_BYTES])
        return f"raw:{hashlib.blake2b(b'pages', key=master, digest_size=32).hexdigest()}{salt.hex()}"

    def _add_mark(self, nonce: bytes) -> bytes:
        master = _derive_master_key(self._secret, nonce)
        return nonce + hashlib.blake2b(b"mark", key=master, digest_size=_SALT_BYTES - _NONCE_BYTES).digest()


@lru_cache(maxsize=16)
def _derive_master_key(secret: Secret, nonce: bytes) -> bytes:
    """Derive a file's master key. Cached, because every connection of a store needs it and scrypt is slow."""
    text = secret.reveal()
    if _HEX_KEY_PATTERN.fullmatch(text):
        return hashlib.blake2b(nonce, key=bytes.fromhex(text), digest_size=32).digest()
    return hashlib.scrypt(text.encode(), salt=nonce, dklen=32, **_SCRYPT_PARAMETERS)


def load_key(settings: Settings) -> EncryptionKey | None:
    """Return the key that the settings contain or name a file for; None if stores are not encrypted."""
    text, file = settings.encryption_key, settings.encryption_key_file
    if text and file:
        raise errors.BadSettings("encryption_key and encryption_key_file are both set; keep one of them")
    if file:
        return read_key_file(Path(file))
    return EncryptionKey(cast(Secret, text).reveal()) if text else None


def read_key_file(file: Path) -> EncryptionKey:
    """Read a key. Raises `BadSettings` if other users of this machine can read the file too."""
    path = Path(os.path.abspath(file.expanduser()))
    try:
        if path.exists() and not path.is_file():
            raise errors.BadSettings(f"{path} is not a file; name the key file (`recollect key new FILE` makes one)")
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise errors.BadSettings(f"other users can read the key in {path}; run chmod 600 {path}")
        return EncryptionKey(path.read_text("utf-8").strip())
    except UnicodeDecodeError as error:
        raise errors.BadSettings(
            f"the key in {path} is not text; `recollect key new FILE` makes one that is"
        ) from error
    except OSError as error:
        raise errors.BadSettings(
            f"the key in {path} cannot be read: {error.strerror}; name a key file that you own"
        ) from error


def create_key_file(file: Path) -> Path:
    """Write a random key to a new file that only its owner can read, and return its absolute path."""
    path = Path(os.path.abspath(file.expanduser()))
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(secrets.token_hex(32) + "\n")
    except OSError as error:
        raise errors.BadSettings(f"no key can be written to {path}: {error.strerror}; name a new file") from error
    return path


# Files with a key

# With pages of 8 KiB a scope's vectors take half the page fetches of 4 KiB, and a small commit stays small
# (docs/decisions/002-vectors-as-rows.md has the figures).
PAGE_BYTES = 8192

# The suffix of the copy that `change_key` writes before it replaces the file.
REKEYED_SUFFIX = "-rekeyed"

CIPHER = "aegis"  # docs/decisions/015-file-encryption.md has the figures
_SQLITE_MAGIC = b"SQLite format 3\x00"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_HEADER_BYTES = 24


def connect_with_key(path: Path, key: EncryptionKey | None) -> apsw.Connection:
    """Open a file, creating it if needed; raise `KeyNeeded`, `WrongKey` or `NotEncrypted` if the key does not fit.

    SQLite gets the key only if it fits. With a wrong one it would discard the log that a crash has left, and would
    trust what is in a journal.
    """
    salt = _find_salt(path, key)
    # SQLite gives its log and journal the permissions of the file. It reports every problem better than `os.open` does.
    # O_EXCL does not follow a dangling symbolic link, which another user may have put there.
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    connection = apsw.Connection(str(path))
    if key is not None and salt is not None:
        connection.pragma("cipher", CIPHER)
        connection.pragma("key", key.derive_pragma_key(salt))
        connection.pragma("page_size", PAGE_BYTES)
    return connection


@contextlib.contextmanager
def connect_briefly(path: Path, key: EncryptionKey | None, *, timeout_ms: int = 2000) -> Iterator[apsw.Connection]:
    """Open a connection that waits at most `timeout_ms` for locks, and close it afterwards."""
    with contextlib.closing(connect_with_key(path, key)) as connection:
        connection.set_busy_timeout(timeout_ms)
        yield connection


def is_encrypted_with(path: Path, key: EncryptionKey | None) -> bool:
    """Return whether a file is encrypted with `key`; with None, whether it is a plain database."""
    header = _read_header(path)
    if key is None:
        return header.startswith(_SQLITE_MAGIC)
    return len(header) == _HEADER_BYTES and key.is_key_for(header[:_SALT_BYTES])


def check_encryption_support() -> None:
    """Raise `Unsupported` if plain `apsw` is installed over `apsw-sqlite3mc`: both provide the module `apsw`."""
    if not hasattr(apsw, "mc_version"):
        raise errors.Unsupported(
            "this SQLite cannot encrypt: the package apsw was installed over apsw-sqlite3mc; run "
            "pip uninstall apsw, then pip install --force-reinstall apsw-sqlite3mc"
        )


def _find_salt(path: Path, key: EncryptionKey | None) -> bytes | None:
    """Return the salt of an encrypted file or a new one for a new file; None without encryption."""
    if key is not None:
        check_encryption_support()
    header = _read_header(path)
    if header.startswith(_SQLITE_MAGIC):
        if key is not None:
            raise errors.NotEncrypted(
                f"{path} is not encrypted, and an encryption key is set; encrypt it with "
                f"`recollect key set --store {path}`, or take the key out of the settings"
            )
        return None
    if not header or _is_unfinished(path):
        return None if key is None else key.create_salt()
    if key is not None and key.is_key_for(header[:_SALT_BYTES]):
        return header[:_SALT_BYTES]
    # These bytes stay plain in an encrypted file: the page size, and constants of the format.
    if header[16:18] != b"\x20\x00" or header[21:] != b"\x40\x20\x20":
        raise errors.StoreCorrupt(f"{path} is not a database; name another file, or move this one away")
    if key is None:
        raise errors.KeyNeeded(
            f"{path} is encrypted, and no key was given; its key goes into encryption_key_file or encryption_key "
            "(RECOLLECT_ENCRYPTION_KEY_FILE, RECOLLECT_ENCRYPTION_KEY)"
        )
    raise errors.WrongKey(
        f"{path} is encrypted with another key than the one in encryption_key or encryption_key_file; "
        "set the key it was encrypted with, nothing was changed"
    )


def _read_header(path: Path) -> bytes:
    """Read through SQLite: closing a file that was opened another way drops all POSIX locks of the process on it."""
    if not path.is_file():
        return b""
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
    try:
        # xFileSize reports 0 for a file of one byte.
        return file.xRead(min(_HEADER_BYTES, path.stat().st_size), 0)
    finally:
        file.xClose()


def _is_unfinished(path: Path) -> bool:
    """Return whether a crash interrupted the file's creation, so that its journal rolls it back to nothing."""
    journal = path.with_name(path.name + "-journal")
    if not journal.is_file():
        return False
    with journal.open("rb") as file:
        header = file.read(20)
    return header.startswith(_JOURNAL_MAGIC) and header[16:] == bytes(4)  # there were no pages before


# Connections of an open store

APPLICATION_ID = 0x5265636F  # "Reco" in the file header

_CACHE_KIB = 16 << 10
_LOCK_TIMEOUT_SECONDS = 60.0
# SQLite reports only ENOSPC as SQLITE_FULL; a file size limit or a disk quota is an I/O error.
_DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
_MAX_REOPENS = 3


def open_connection(path: Path, *, writes: bool, key: EncryptionKey | None = None) -> apsw.Connection:
    """Open and configure a connection to an existing or a new store file. Raises a `RecollectError`."""
    with translate_errors(path):
        reopens = _MAX_REOPENS
        while True:
            connection = connect_with_key(path, key)
            try:
                _configure_connection(connection, writes=writes)
                if writes:
                    _prepare_for_writing(connection, path, strict=reopens > 0)
                return connection
            except BaseException as error:
                connection.close()
                # Another process may have created the file or changed its key since the header was read.
                if not isinstance(error, apsw.NotADBError) or not reopens:
                    raise
                reopens -= 1


@contextlib.contextmanager
def translate_errors(path: Path, connection: apsw.Connection | None = None) -> Iterator[None]:
    """Raise driver errors as a `RecollectError`. With `connection`, its errno tells a full disk from an I/O error."""
    try:
        yield
    except apsw.Error as error:
        os_error = connection.system_errno if connection is not None and isinstance(error, apsw.IOError) else 0
        raise _convert_error(apsw.FullError() if os_error in _DISK_FULL_ERRNOS else error, path) from error
    except json.JSONDecodeError as error:
        raise errors.StoreCorrupt(f"{path} has a row that cannot be read ({error}); restore a backup") from error
    except UnicodeEncodeError as error:
        raise errors.BadInput(
            f"a text has half a character (a lone surrogate) at {error.start}; decode it properly"
        ) from error


def truncate_wal(connection: apsw.Connection) -> bool:
    """Checkpoint and truncate the write-ahead log; return False while another connection reads or writes it."""
    # First without the write lock: it copies all pages that no reader needs.
    connection.execute("pragma wal_checkpoint(passive)").fetchall()
    busy, *_ = connection.execute("pragma wal_checkpoint(truncate)").fetchone() or (1,)
    return not busy


def check_application_id(connection: apsw.Connection, path: Path) -> None:
    """Raise `StoreCorrupt` if the file belongs to another program. Call it before the first change."""
    # One statement reads one snapshot: another process may be creating the store right now.
    owner, tables = connection.execute(
        "select application_id, (select count(*) from sqlite_schema) from pragma_application_id"
    ).get
    if owner != APPLICATION_ID and tables:
        raise errors.StoreCorrupt(f"{path} is an SQLite database of another program; name another file")


def get_file_size(path: Path) -> int:
    """Return a file's size in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _configure_connection(connection: apsw.Connection, *, writes: bool) -> None:
    connection.set_busy_handler(create_busy_handler())
    connection.execute("pragma foreign_keys = off")
    connection.execute("pragma secure_delete = on")
    connection.execute("pragma temp_store = memory")
    connection.pragma("cache_size", -_CACHE_KIB)
    if not writes:
        connection.execute("pragma query_only = on")


def _prepare_for_writing(connection: apsw.Connection, path: Path, *, strict: bool) -> None:
    """Check that the file is a store, and switch it to the write-ahead log."""
    check_application_id(connection, path)
    # `change_key` in another process may have replaced the file while the statement above waited for its lock.
    # The last attempt skips this: on a file system without stable inode numbers, every file seems to have moved.
    moved = ctypes.c_int(0)
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
    if strict and moved.value:
        raise apsw.NotADBError
    connection.pragma("page_size", PAGE_BYTES)
    wait, tries, mode = create_busy_handler(), 0, None
    while mode is None:  # SQLite does not call the busy handler if two connections change the mode at once
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if not wait(tries):
                raise
            tries += 1
    if mode != "wal":
        raise errors.StoreUnavailable(
            f"this file system cannot share memory between processes (journal mode {mode!r}); "
            "put the store on a local disk"
        )
    connection.execute("pragma synchronous = full")
    # `change_key` needs the file alone, so a copy that exists now is from a killed process.
    path.with_name(path.name + REKEYED_SUFFIX).unlink(missing_ok=True)


def create_busy_handler(seconds: float = _LOCK_TIMEOUT_SECONDS) -> Callable[[int], bool]:
    """Return a handler that waits with short random pauses: fairer between processes than SQLite's back-off."""
    jitter = random.Random()
    deadline = 0.0

    def wait(tries: int) -> bool:
        nonlocal deadline
        now = time.monotonic()
        if tries == 0:
            deadline = now + seconds
        if now > deadline:
            return False
        time.sleep(jitter.uniform(0.0002, min(0.02, 0.001 * (tries + 1))))
        return True

    return wait


def _convert_error(error: apsw.Error, path: Path) -> errors.RecollectError:
    match error:
        case apsw.NotADBError():
            return errors.StoreCorrupt(f"{path} is not a database; name another file, or move this one away")
        case apsw.CorruptError():
            return errors.StoreCorrupt(f"{path} is damaged ({error}); restore a backup")
        case apsw.FullError():
            return errors.StoreFull(
                f"there is no room left for {path}; free some space and try again, nothing was lost"
            )
        case apsw.BusyError() | apsw.LockedError():
            return errors.StoreUnavailable(
                f"{path} was locked by another program for {_LOCK_TIMEOUT_SECONDS:.0f} s; end that program, or wait if "
                "it migrates the store"
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return errors.StoreUnavailable(f"{path} cannot be written: make the file and its directory writable")
        case apsw.TooBigError():
            return errors.BadInput("a text is larger than a store takes (about a gigabyte); split it")
        case apsw.CantOpenError():
            advice = f"check that {path.parent} is writable"
            if not path.parent.exists():
                advice = f"the directory {path.parent} does not exist; create it"
            elif path.is_dir():
                advice = "it is a directory; name a file"
            return errors.StoreUnavailable(f"{path} cannot be opened: {advice}")
        case _:
            return errors.StoreUnavailable(f"SQLite could not use {path}: {error}")


# Raw page access

_CHUNK_PAGES = 512
_READ_ATTEMPTS = 5
_WAL_HEADER_BYTES, _WAL_FRAME_HEADER_BYTES = 32, 24
_MAIN_FILE, _WAL_FILE = 0, 1


def read_main_file(connection: apsw.Connection) -> Iterator[bytes]:
    """Yield the main file in chunks of whole pages, decrypted."""
    # SQLite reads the file: closing a handle of our own would drop the locks of the process on it.
    page_size, size = int(connection.pragma("page_size")), get_file_size(Path(connection.filename))
    for start in range(0, size, _CHUNK_PAGES * page_size):
        end = min(start + _CHUNK_PAGES * page_size, size)
        yield b"".join(_read_page(connection, _MAIN_FILE, at, page_size) for at in range(start, end, page_size))


def read_wal_pages(connection: apsw.Connection) -> Iterator[bytes]:
    """Yield the pages of the write-ahead log, decrypted."""
    page_size, size = int(connection.pragma("page_size")), get_file_size(Path(connection.filename_wal))
    frame = _WAL_FRAME_HEADER_BYTES + page_size
    for at in range(_WAL_HEADER_BYTES, size - frame + 1, frame):
        yield _read_page(connection, _WAL_FILE, at + _WAL_FRAME_HEADER_BYTES, page_size)


def _read_page(connection: apsw.Connection, which: int, at: int, size: int) -> bytes:
    """Read a page. A page that is being written is read again, because it may not decrypt."""
    for _ in range(_READ_ATTEMPTS - 1):
        with contextlib.suppress(apsw.Error):
            return connection.read("main", which, at, size)[1]
    return connection.read("main", which, at, size)[1]
