"""How a file is: its settings, its size, its log, who has locked it, and when it was copied last."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw

from recollect.clock import to_micros
from recollect.stores.health import Lapse, Vitals
from recollect.stores.sqlite.ballast import is_kept
from recollect.stores.sqlite.connection import begin_immediate, translated
from recollect.stores.sqlite.file import connected
from recollect.stores.sqlite.generations import active
from recollect.stores.sqlite.key import Key
from recollect.stores.sqlite.migrations import migrations
from recollect.stores.sqlite.rows import moment

_WEEK = timedelta(days=7)
# A batch of a busy neighbour takes less; whoever holds the file for longer is stuck or at very long work.
_LOCKED_MILLISECONDS = 1000
_BYTES_A_NUMBER = 2
_COMPANIONS = ("-wal", "-shm", "-journal", ".erasures.jsonl")

# Each space is asked by its index: the moments of a million rows are not read one by one.
_SPAN = """
    select min(first), max(last), sum(fresh), sum(items), max(embedded)
    from (
        select
            (select min(created_at) from records r where r.space = s.id) as first,
            (select max(created_at) from records r where r.space = s.id) as last,
            (select count(*) from records r where r.space = s.id and r.created_at >= ?) as fresh,
            s.items as items,
            iif(s.tier in ('semantic', 'procedural', 'conversation'), s.items, 0) as embedded
        from spaces s
    )
"""
_OF_LOGS = """
    select min(first), max(last)
    from (
        select
            (select at from entries e where e.place >= s.id << 28 order by e.place limit 1) as first,
            (select at from entries e where e.place < (s.id + 1) << 28 order by e.place desc limit 1) as last
        from spaces s
        where exists (select 1 from entries e where e.place >= s.id << 28 and e.place < (s.id + 1) << 28)
    )
"""
_OF_TASKS = "select min(created_at), max(updated_at) from tasks"
_SUPERSEDED = "select count(*) from records where valid_to is not null and superseded_by is not null"
_BACKED_UP = "select cast(value as integer) from meta where name = 'backed_up'"
_NOTE_BACKUP = """
    insert into meta (name, value)
    values ('backed_up', ?)
    on conflict do update
    set value = excluded.value
"""


def vitals(connection: apsw.Connection, path: Path, key: Key | None, now: datetime) -> Vitals:
    """What a reader can tell at once."""
    first, last, fresh, items, embedded = _row(connection, _SPAN, to_micros(now - _WEEK))
    moments = [_row(connection, _OF_LOGS), _row(connection, _OF_TASKS)]
    pages, free = int(connection.pragma("page_count")), int(connection.pragma("freelist_count"))
    tables = active(connection)
    mode = str(connection.pragma("journal_mode"))
    size, log = _size(path), _size(path.with_name(path.name + "-wal"))
    return Vitals(
        engine="SQLite",
        versions={"SQLite": apsw.sqlite_lib_version()},
        survives="power loss",
        lapses=() if mode == "wal" else (Lapse(f"its journal mode is {mode}", "close every program that has it open"),),
        schema=(int(connection.pragma("user_version")), migrations()[-1][0]),
        oldest=moment(min((one for one in (first, *(one[0] for one in moments)) if one is not None), default=None)),
        newest=moment(max((one for one in (last, *(one[1] for one in moments)) if one is not None), default=None)),
        files=(path, *(file for part in _COMPANIONS if (file := path.with_name(path.name + part)).exists())),
        bytes=size + log,
        items=items or 0,
        fresh=fresh or 0,
        superseded=connection.execute(_SUPERSEDED).get,
        largest_space=0 if tables is None else (embedded or 0) * tables.model.dim * _BYTES_A_NUMBER,
        ballast=is_kept(path),
        log_bytes=log,
        unused=free / pages if pages else 0.0,
        encrypted=key is not None,
        backed_up=moment(connection.execute(_BACKED_UP).get),
        backs_up=True,
    )


def locked(path: Path, key: Key | None) -> str:
    """Who holds the file so that nobody can write; empty when nobody does."""
    with translated(path):
        connection = connected(path, key)
        try:
            connection.set_busy_timeout(_LOCKED_MILLISECONDS)
            begin_immediate(connection)
            connection.execute("rollback")
        except apsw.BusyError:
            return f"a program has held the write lock for more than {_LOCKED_MILLISECONDS / 1000:g} s"
        finally:
            connection.close()
    return ""


def note_backup(connection: apsw.Connection, now: datetime) -> None:
    """Remember when a copy was made."""
    connection.execute(_NOTE_BACKUP, (str(to_micros(now)),))


def _row(connection: apsw.Connection, statement: str, *values: Any) -> tuple[Any, ...]:
    [found] = connection.execute(statement, values).fetchall()
    return tuple(found)


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
