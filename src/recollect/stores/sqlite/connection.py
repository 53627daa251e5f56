"""One SQLite connection, set up the way every promise of the store needs it."""

from __future__ import annotations

import contextlib
import errno
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from recollect.errors import BadInput, RecollectError, StoreCorrupt, StoreFull, StoreUnavailable
from recollect.stores.sqlite.file import PAGE_BYTES, REKEYED, connected, has_moved
from recollect.stores.sqlite.key import Key

APPLICATION_ID = 0x5265636F  # "Reco", so that `file` and we can tell our files from others

_PATIENCE_SECONDS = 60.0
# SQLite calls only a full disk full; a limit on the file's size or on the user's space is an I/O error to it.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
_OPENED_AGAIN = 3


def open_connection(path: Path, *, writes: bool, cache_mib: int = 16, key: Key | None = None) -> apsw.Connection:
    """A connection to an existing or new file, or one of our errors saying what to do."""
    with translated(path):
        again = _OPENED_AGAIN
        while True:
            connection = connected(path, key)
            try:
                _prepare(connection, writes=writes, cache_mib=cache_mib)
                if writes:
                    _take(connection, path, strict=again > 0)
                return connection
            except (apsw.NotADBError, _Moved):
                # Another file than the one that was looked at: it was made, or given another key, in between.
                connection.close()
                if not again:
                    raise
                again -= 1
            except BaseException:
                connection.close()
                raise


class _Moved(Exception):
    """The name has gone to another file; what was opened is nobody's any more."""


@contextlib.contextmanager
def translated(path: Path, connection: apsw.Connection | None = None) -> Iterator[None]:
    """Driver errors become ours, with their cause and the way out; a connection knows what the system had said."""
    try:
        yield
    except apsw.IOError as error:
        if connection is not None and connection.system_errno in _NO_ROOM:
            raise _full(path) from error
        raise _ours(error, path) from error
    except apsw.Error as error:
        raise _ours(error, path) from error
    except json.JSONDecodeError as error:
        raise StoreCorrupt(f"{path} has a row that cannot be read ({error}); restore a backup") from error
    except UnicodeEncodeError as error:
        raise BadInput(
            f"a text has half a character (a lone surrogate) at {error.start}; decode it properly"
        ) from error


def begin_immediate(connection: apsw.Connection) -> None:
    """Take the write lock now: a transaction that starts as a reader could not wait for it later."""
    connection.execute("begin immediate")


def checkpointed(connection: apsw.Connection) -> bool:
    """Write the log back and cut it to nothing; False while somebody reads from it or writes to it."""
    busy, *_ = connection.execute("pragma wal_checkpoint(truncate)").fetchone() or (1,)
    return not busy


def refuse_strangers(connection: apsw.Connection, path: Path) -> None:
    """Before the first change, and be it only of the journal mode: another program's file is not ours to touch."""
    # One statement, one moment: another process may be creating the store between two.
    owner, tables = connection.execute(
        "select application_id, (select count(*) from sqlite_schema) from pragma_application_id"
    ).get
    if owner != APPLICATION_ID and tables:
        raise StoreCorrupt(f"{path} is an SQLite database of another program; name another file")


def _prepare(connection: apsw.Connection, *, writes: bool, cache_mib: int) -> None:
    connection.set_busy_handler(_patient())
    connection.execute("pragma foreign_keys = off")
    connection.execute("pragma secure_delete = on")
    connection.execute("pragma temp_store = memory")
    connection.pragma("cache_size", -1024 * cache_mib)
    if not writes:
        connection.execute("pragma query_only = on")


def _take(connection: apsw.Connection, path: Path, *, strict: bool) -> None:
    """Make sure that the file is ours, and let it have a log."""
    refuse_strangers(connection, path)
    # Who changes the key has held the lock that the question above waited for, and put another file in its place.
    # A file system whose files have no lasting numbers says so each time.
    if strict and has_moved(connection):
        raise _Moved
    connection.pragma("page_size", PAGE_BYTES)
    mode = _use_wal(connection)
    if mode != "wal":
        raise StoreUnavailable(
            f"this file system cannot share memory between processes (journal mode {mode!r}); "
            "put the store on a local disk"
        )
    connection.execute("pragma synchronous = full")
    # Nobody gives a file that we have open another key: who began to was killed.
    path.with_name(path.name + REKEYED).unlink(missing_ok=True)


def _use_wal(connection: apsw.Connection) -> str:
    """Change the journal mode, patiently: SQLite does not ask the busy handler when two do so at once."""
    wait, tries = _patient(), 0
    while True:
        try:
            return str(connection.pragma("journal_mode", "wal"))
        except apsw.BusyError:
            if not wait(tries):
                raise
            tries += 1


def _patient() -> Callable[[int], bool]:
    """Wait for a lock with short random pauses: fairer among many processes than SQLite's own back-off."""
    chance = random.Random()  # spreads waiting processes apart; nothing secret
    deadline = 0.0

    def wait(tries: int) -> bool:
        nonlocal deadline
        now = time.monotonic()
        if tries == 0:
            deadline = now + _PATIENCE_SECONDS
        if now > deadline:
            return False
        time.sleep(chance.uniform(0.0002, min(0.02, 0.001 * (tries + 1))))
        return True

    return wait


def _ours(error: apsw.Error, path: Path) -> RecollectError:
    match error:
        case apsw.NotADBError():
            return StoreCorrupt(f"{path} is not a database; name another file, or move this one away")
        case apsw.CorruptError():
            return StoreCorrupt(f"{path} is damaged ({error}); restore a backup")
        case apsw.FullError():
            return _full(path)
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(f"{path} was locked by another program for {_PATIENCE_SECONDS:.0f} s")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreUnavailable(f"{path} cannot be written: make the file and its directory writable")
        case apsw.TooBigError():
            return BadInput("a text is larger than a store takes (about a gigabyte); split it")
        case apsw.CantOpenError():
            return StoreUnavailable(f"{path} cannot be opened: {_why_not(path)}")
        case _:
            return StoreUnavailable(f"SQLite could not use {path}: {error}")


def _full(path: Path) -> StoreFull:
    return StoreFull(f"there is no room left for {path}; free some space and try again, nothing was lost")


def _why_not(path: Path) -> str:
    if not path.parent.exists():
        return f"the directory {path.parent} does not exist; create it"
    if path.is_dir():
        return "it is a directory; name a file"
    return f"check that {path.parent} is writable"
