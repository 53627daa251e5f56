"""Another key for a file, its first one, or none: a copy that is complete takes the place of the file in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import apsw

from recollect.errors import NotFound, StoreCorrupt, StoreUnavailable, WrongKey
from recollect.stores.sqlite.backup import copy_pages
from recollect.stores.sqlite.connection import refuse_strangers, translated
from recollect.stores.sqlite.file import REKEYED, can_encrypt, connected, is_as, rekey
from recollect.stores.sqlite.key import Key
from recollect.stores.sqlite.pages import file_of

_BUSY_MILLISECONDS = 2000
# SQLite writes no more than 128 KiB at a time; and whole pages would be encrypted once more.
_BYTES_AT_ONCE = (1 << 16) - 1


def change_key(path: Path, old: Key | None, new: Key | None) -> bool:
    """Whoever is killed meanwhile leaves the file as it was or as it was to be. False when it is so already.

    Nobody else may have the store open: they would go on with a file that has lost its name.
    """
    path = Path(os.path.abspath(path))
    can_encrypt()
    if not path.is_file():
        raise NotFound(f"there is no store at {path}")
    if is_as(path, new):
        return False
    if old is None and not is_as(path, None):
        raise WrongKey(
            f"{path} is encrypted with another key already; `recollect key rotate --to FILE` gives it a new one"
        )
    with translated(path):
        connection = connected(path, old)
        try:
            refuse_strangers(connection, path)
            _take_alone(connection, path)
            aside = _copied(connection, path, old, new)
            _put_in_place(connection, aside, path, wiped=old is None)
        finally:
            connection.close()
    return True


def _take_alone(connection: apsw.Connection, path: Path) -> None:
    """Only the last one who has a store open can take its log away; from then on nobody else gets in."""
    connection.set_busy_timeout(_BUSY_MILLISECONDS)
    try:
        mode = connection.pragma("journal_mode", "delete")
        if mode == "delete":
            # The lock outlives the transaction: a file that is being written is not one that can be copied.
            connection.pragma("locking_mode", "exclusive")
            connection.execute("begin exclusive; commit")
            return
    except (apsw.BusyError, apsw.LockedError) as error:
        raise _in_use(path) from error
    raise _in_use(path)


def _in_use(path: Path) -> StoreUnavailable:
    return StoreUnavailable(f"{path} is open elsewhere; stop whoever uses it, and change the key then")


def _copied(connection: apsw.Connection, path: Path, old: Key | None, new: Key | None) -> Path:
    """All of the file with the new key, on disk and looked through."""
    aside = path.with_name(path.name + REKEYED)
    aside.unlink(missing_ok=True)
    # What is written is not to be read by more people than before.
    os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with translated(aside):
        into = connected(aside, old)
        try:
            into.execute("pragma temp_store = memory")
            into.pragma("journal_mode", "off")  # who is killed begins with another copy
            copy_pages(connection, into)
            rekey(into, new)
        finally:
            into.close()
        _look_through(aside, new)
    os.chmod(aside, stat.S_IMODE(path.stat().st_mode))
    _sync(aside)
    return aside


def _look_through(path: Path, key: Key | None) -> None:
    connection = connected(path, key)
    try:
        said = connection.execute("pragma quick_check").get
    finally:
        connection.close()
    if said != "ok":
        raise StoreCorrupt(f"the copy with the new key is damaged ({said}); nothing was changed, check the store")


def _put_in_place(connection: apsw.Connection, aside: Path, path: Path, *, wiped: bool) -> None:
    """With the lock still held. Whoever waited for it has the old file in hand, and must find nothing there.

    A file that was not encrypted is wiped: its blocks are about to be anybody's.
    """
    if os.name == "nt":  # where a file that is open cannot be replaced, and who has it open is told so
        connection.close()
        aside.replace(path)
        return
    _sync(path.parent)  # the log and the journal of the old file must not come back beside the new one
    aside.replace(path)
    _sync(path.parent)
    old = file_of(connection)
    size = old.length
    for at in range(0, size if wiped else 1, _BYTES_AT_ONCE):
        old.write(at, bytes(min(_BYTES_AT_ONCE, size - at)))
    old.sync()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
