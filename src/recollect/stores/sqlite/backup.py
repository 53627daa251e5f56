"""A consistent copy of a store, made while others read and write."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import apsw

from recollect.errors import BadInput
from recollect.stores.sqlite.connection import translated
from recollect.stores.sqlite.file import connected, create_private
from recollect.stores.sqlite.key import Key

_PAGES_AT_ONCE = 256
_TAKEN = "{} exists already; a backup is written to a new file"


def copy(connection: apsw.Connection, target: Path, key: Key | None = None) -> None:
    """Copy into a new file, which has its name only once it is complete, and the key of the store if that has one."""
    if os.path.lexists(target):  # be it by a link that leads nowhere
        raise BadInput(_TAKEN.format(target))
    # The first read fixes the moment that is copied: without it each step would start anew after a write.
    connection.execute("select count(*) from meta").fetchall()
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    made = create_private(partial)
    try:
        with translated(partial):
            into = connected(partial, key)
            try:
                copy_pages(connection, into)
                # One file that can be carried anywhere, without a companion.
                into.pragma("journal_mode", "delete")
            finally:
                into.close()
        _name(partial, target)
    finally:
        if made:
            partial.unlink(missing_ok=True)


def _name(partial: Path, target: Path) -> None:
    """Give the copy its name, and take it from nobody."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise BadInput(_TAKEN.format(target)) from None
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise BadInput(_TAKEN.format(target)) from None
        partial.replace(target)


def copy_pages(source: apsw.Connection, into: apsw.Connection) -> None:
    with into.backup("main", source, "main") as work:
        while not work.done:
            work.step(_PAGES_AT_ONCE)
