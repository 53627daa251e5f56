"""A consistent copy of a store, made while others read and write."""

from __future__ import annotations

from pathlib import Path

import apsw

from recollect.errors import BadInput
from recollect.stores.sqlite.connection import translated

_PAGES_AT_ONCE = 256


def copy(connection: apsw.Connection, target: Path) -> None:
    """Copy into a new file, which has its name only once it is complete."""
    if target.exists():
        raise BadInput(f"{target} exists already; a backup is written to a new file")
    # The first read fixes the moment that is copied: without it each step would start anew after a write.
    connection.execute("select count(*) from meta").fetchall()
    partial = target.with_name(target.name + ".partial")
    with translated(partial):
        partial.unlink(missing_ok=True)
        into = apsw.Connection(str(partial))
        try:
            with into.backup("main", connection, "main") as work:
                while not work.done:
                    work.step(_PAGES_AT_ONCE)
            # One file that can be carried anywhere, without a companion.
            into.pragma("journal_mode", "delete")
        finally:
            into.close()
    partial.replace(target)
