"""A step of an agent: its task goes on by one version, if it is where its holder left it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import apsw

from recollect.clock import to_micros
from recollect.stores.ops import Journal, Save, TaskWrite
from recollect.stores.sqlite import tasks
from recollect.stores.sqlite.rows import parts_of

# What `leases.saved` and `leases.noted` decide of a task that is read, decided by the statement that changes it.
_ADVANCE = """
    update tasks
    set version = version + 1, ttl = coalesce(?1, ttl), expires_at = ?2 + coalesce(?1, ttl), updated_at = ?2
    where space = (select id from spaces where tenant = ?6 and tier = ?7 and user = ?8 and agent = ?9 and session = ?10)
        and id = ?3 and fence = ?4 and version = ?5
    returning space
"""


def advanced(connection: apsw.Connection, writes: Sequence[TaskWrite], now: datetime) -> bool:
    """Whether this was such a step, which is then written; if it was not, nothing is, and others know why."""
    first = writes[0]
    if not isinstance(first, Save) or first.fence is None or first.expect is None or first.status is not None:
        return False
    notes = [write for write in writes[1:] if isinstance(write, Journal) and write.fence == first.fence]
    if len(notes) != len(writes) - 1:
        return False
    at = to_micros(now)
    place = (first.task, first.fence, first.expect, *parts_of(first.space))
    space = connection.execute(_ADVANCE, (tasks.length(first.ttl), at, *place)).get
    if space is None:
        return False
    tasks.keep_state(connection, (space, first.task, first.expect + 1, first.fence), first, at)
    for note in notes:
        tasks.keep_note(connection, space, note, at)
    return True
