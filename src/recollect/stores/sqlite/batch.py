"""A batch of writes, applied in order inside the writer's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

import apsw

from recollect.stores.ops import (
    Append,
    Clear,
    Delete,
    Drop,
    Embed,
    Entry,
    Put,
    Save,
    TaskWrite,
    Touch,
    Write,
)
from recollect.stores.sqlite import logs, tasks
from recollect.stores.sqlite.accesses import Counted
from recollect.stores.sqlite.advance import advanced
from recollect.stores.sqlite.records import RecordWriter
from recollect.values import Space


def apply(connection: apsw.Connection, writes: Sequence[Write], now: datetime) -> None:
    """Every write, or the first refusal as an exception: the writer then rolls the batch back."""
    records = RecordWriter(connection)
    for name, group in groupby(writes, _task_of):
        if name is not None:
            together = [write for write in group if isinstance(write, TaskWrite)]
            if not advanced(connection, together, now):
                tasks.apply(connection, records.space(together[0].space), together, now)
            continue
        for write in group:
            _apply(connection, records, write, now)


def append(connection: apsw.Connection, appends: Sequence[Append], now: datetime) -> list[Entry | None]:
    """Entries, and what the logs hold of each then."""
    apply(connection, appends, now)
    ids: dict[Space, list[str]] = {}
    for one in appends:
        ids.setdefault(one.space, []).append(one.entry.id)
    found = {
        (space, entry.id): entry for space, some in ids.items() for entry in logs.get(connection, space, some, now)
    }
    return [found.get((one.space, one.entry.id)) for one in appends]


def save(connection: apsw.Connection, writes: Sequence[Save], now: datetime) -> int:
    """A state, and the version that it has been given."""
    apply(connection, writes, now)
    write = writes[-1]
    task = tasks.task(connection, write.space, write.task, None)
    assert task is not None
    return task.version


def _apply(connection: apsw.Connection, records: RecordWriter, write: Write, now: datetime) -> None:
    match write:
        case Put() | Delete() | Touch() | Embed():
            records.apply(write)
        case Append() | Clear() | Drop():
            logs.apply(connection, records.space(write.space), write, now)


def _task_of(write: Write) -> tuple[Space, str] | None:
    """Neighbours that concern one task are applied together."""
    return (write.space, write.task) if isinstance(write, TaskWrite) else None


def count(connection: apsw.Connection, counted: Counted) -> None:
    """Accesses that were noted since the last time."""
    records = RecordWriter(connection)
    for space, accesses in counted.items():
        records.count(space, accesses)
