"""A batch of writes, applied in order inside the writer's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import apsw

from recollect.stores.ops import (
    Append,
    Clear,
    Delete,
    Drop,
    DropTask,
    Embed,
    Journal,
    Put,
    Save,
    SetStatus,
    Touch,
    Write,
)
from recollect.stores.sqlite import logs, tasks
from recollect.stores.sqlite.accesses import Counted
from recollect.stores.sqlite.records import RecordWriter


def apply(connection: apsw.Connection, writes: Sequence[Write], now: datetime) -> None:
    """Every write, or the first refusal as an exception: the writer then rolls the batch back."""
    records = RecordWriter(connection)
    for write in writes:
        match write:
            case Put() | Delete() | Touch() | Embed():
                records.apply(write)
            case Append() | Clear() | Drop():
                logs.apply(connection, records.space(write.space), write, now)
            case Save() | Journal() | SetStatus() | DropTask():
                tasks.apply(connection, records.space(write.space), write, now)


def count(connection: apsw.Connection, counted: Counted) -> None:
    """Accesses that were noted since the last time."""
    records = RecordWriter(connection)
    for space, accesses in counted.items():
        records.count(space, accesses)
