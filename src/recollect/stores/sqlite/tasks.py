"""Tasks: the rows behind checkpoints, leases and the journal of steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import apsw

from recollect.clock import from_micros, to_micros
from recollect.stores import leases
from recollect.stores.base import Checkpoint, Lease, Step, Task
from recollect.stores.leases import Claim
from recollect.stores.ops import DropTask, Journal, Save, SetStatus, TaskStatus, TaskWrite
from recollect.stores.sqlite.records import RecordWriter
from recollect.stores.sqlite.rows import micros, moment, space_id
from recollect.values import Space

_MICROSECOND = timedelta(microseconds=1)

_TASK = """
    select id, status, version, fence, owner, renewed_at, lease_ttl, plan_hash, ttl, expires_at, created_at, updated_at
    from tasks
    where space = ? and id = ?
"""

_LIVE = """
    (
        expires_at is null or expires_at > ?1
        or (owner is not null and renewed_at <= ?1 and renewed_at + lease_ttl > ?1)
    )
"""

_LISTED = f"""
    select id, status, version, fence, owner, renewed_at, lease_ttl, plan_hash, ttl, expires_at, created_at, updated_at
    from tasks
    where space = ?2 and id > ?3 and {_LIVE}
    order by id
    limit ?4
"""  # noqa: S608 - a constant clause

_LISTED_OF_STATUS = f"""
    select id, status, version, fence, owner, renewed_at, lease_ttl, plan_hash, ttl, expires_at, created_at, updated_at
    from tasks indexed by tasks_status
    where space = ?2 and id > ?3 and status = ?5 and {_LIVE}
    order by id
    limit ?4
"""  # noqa: S608 - a constant clause

_KEEP = """
    insert or replace into tasks (
        space, id, status, version, fence, owner, renewed_at, lease_ttl, plan_hash, ttl, expires_at, created_at,
        updated_at
    )
    values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

_ALIVE = """
    update tasks
    set version = ?, expires_at = ?, updated_at = ?
    where space = ? and id = ?
"""

_CHECKPOINT = """
    insert into checkpoints (space, task, version, fence, schema, state, sha256, at)
    values (?, ?, ?, ?, ?, ?, ?, ?)
"""

_VERSIONS = """
    select version, fence, schema, cast(state as blob), sha256, at
    from checkpoints
    where space = ? and task = ?
    order by version desc
    limit ?
"""

_VERSION = """
    select version, fence, schema, cast(state as blob), sha256, at
    from checkpoints
    where space = ? and task = ? and version = ?
"""

_NOTE = """
    insert into steps (
        space, task, key, status, attempts, fence, idempotency_key, input_sha, result, error, first_at, at
    )
    values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?11)
    on conflict (space, task, key) do update
    set status = excluded.status, attempts = excluded.attempts, fence = excluded.fence,
        idempotency_key = excluded.idempotency_key, input_sha = excluded.input_sha, result = excluded.result,
        error = excluded.error, at = excluded.at
"""

# By rowid and not by time: the order in which they were first noted, whatever the clock did meanwhile.
_STEPS = """
    select key, status, attempts, fence, idempotency_key, input_sha, result, error, at
    from steps
    where space = ? and task = ?
    order by rowid
"""


@dataclass(frozen=True, slots=True)
class Page:
    """Which tasks to list."""

    space: Space
    status: TaskStatus | None
    limit: int
    after: str | None


def apply(connection: apsw.Connection, space: int, writes: Sequence[TaskWrite], now: datetime) -> None:
    """Writes to one task, in their order. Its row is read once and written once: a step of an agent makes three."""
    name = writes[0].task
    held = stored = _current(connection, space, name, now)
    for write in writes:
        match write:
            case DropTask():
                _drop(connection, space, name)
                held = stored = None
            case Save():
                held = leases.saved(held, write, now)
                _save(connection, space, held, write)
            case Journal():
                held = leases.noted(held, write, now)
                _note(connection, space, write, now)
            case SetStatus():
                held = leases.noted(held, write, now)
    if held is not None:
        _keep(connection, space, held, stored)


def claim(connection: apsw.Connection, wish: Claim, now: datetime) -> Lease:
    space = RecordWriter(connection).space(wish.space)
    held = _current(connection, space, wish.task, now)
    # One sequence for the whole space: a fence is never given twice, not even after its task was dropped.
    fence = connection.execute(
        "update spaces set next_seq = next_seq + 1 where id = ? returning next_seq", (space,)
    ).get
    task = leases.claimed(held, wish, fence, now)
    _keep(connection, space, task)
    return leases.lease_of(wish.space, task)


def renew(connection: apsw.Connection, lease: Lease, ttl: timedelta, now: datetime) -> Lease:
    space = RecordWriter(connection).space(lease.space)
    task = leases.renewed(_current(connection, space, lease.task, now), lease, ttl, now)
    _keep(connection, space, task)
    return leases.lease_of(lease.space, task)


def release(connection: apsw.Connection, lease: Lease, now: datetime) -> None:
    space = RecordWriter(connection).space(lease.space)
    task = leases.released(_current(connection, space, lease.task, now), lease, now)
    if task is not None:
        _keep(connection, space, task)


def task(connection: apsw.Connection, space: Space, id: str, now: datetime) -> Task | None:
    number = space_id(connection, space)
    found = None if number is None else _row(connection, number, id)
    return None if found is None or leases.expired(found, now) else found


def listed(connection: apsw.Connection, page: Page, now: datetime) -> list[Task]:
    values = (to_micros(now), space_id(connection, page.space), page.after or "", page.limit)
    if page.status is None:
        rows = connection.execute(_LISTED, values)
    else:
        rows = connection.execute(_LISTED_OF_STATUS, (*values, page.status))
    return [_task(row) for row in rows]


def checkpoint(
    connection: apsw.Connection, space: Space, id: str, version: int | None, now: datetime
) -> Checkpoint | None:
    if task(connection, space, id, now) is None:
        return None
    number = space_id(connection, space)
    if version is None:
        row = connection.execute(_VERSIONS, (number, id, 1)).fetchone()
    else:
        row = connection.execute(_VERSION, (number, id, version)).fetchone()
    return None if row is None else _checkpoint(row)


def checkpoints(connection: apsw.Connection, space: Space, id: str, now: datetime) -> list[Checkpoint]:
    if task(connection, space, id, now) is None:
        return []
    return [_checkpoint(row) for row in connection.execute(_VERSIONS, (space_id(connection, space), id, -1))]


def steps(connection: apsw.Connection, space: Space, id: str, now: datetime) -> list[Step]:
    if task(connection, space, id, now) is None:
        return []
    rows = connection.execute(_STEPS, (space_id(connection, space), id))
    return [_step(row) for row in rows]


def _current(connection: apsw.Connection, space: int, id: str, now: datetime) -> Task | None:
    """The task to change. What has expired is dropped here: nobody may build on it, nor find it again."""
    found = _row(connection, space, id)
    if found is not None and leases.expired(found, now):
        _drop(connection, space, id)
        return None
    return found


def _row(connection: apsw.Connection, space: int, id: str) -> Task | None:
    row = connection.execute(_TASK, (space, id)).fetchone()
    return None if row is None else _task(row)


def _task(row: tuple[Any, ...]) -> Task:
    return Task(
        id=row[0],
        status=row[1],
        version=row[2],
        fence=row[3],
        owner=row[4],
        renewed_at=moment(row[5]),
        lease_ttl=_duration(row[6]),
        plan_hash=row[7],
        ttl=_duration(row[8]),
        expires_at=moment(row[9]),
        created_at=from_micros(row[10]),
        updated_at=from_micros(row[11]),
    )


def _keep(connection: apsw.Connection, space: int, task: Task, stored: Task | None = None) -> None:
    later = stored and replace(stored, version=task.version, expires_at=task.expires_at, updated_at=task.updated_at)
    if later == task:
        # Nothing that an index is made of has changed, so that fewer pages have to be written.
        values = (task.version, micros(task.expires_at), to_micros(task.updated_at), space, task.id)
        connection.execute(_ALIVE, values)
        return
    connection.execute(
        _KEEP,
        (
            space,
            task.id,
            task.status,
            task.version,
            task.fence,
            task.owner,
            micros(task.renewed_at),
            _length(task.lease_ttl),
            task.plan_hash,
            _length(task.ttl),
            micros(task.expires_at),
            to_micros(task.created_at),
            to_micros(task.updated_at),
        ),
    )


def _save(connection: apsw.Connection, space: int, task: Task, save: Save) -> None:
    digest = hashlib.sha256(save.state.encode()).digest()
    at = to_micros(task.updated_at)
    values = (space, task.id, task.version, task.fence, save.schema, save.state, digest, at)
    connection.execute(_CHECKPOINT, values)
    connection.execute(
        "delete from checkpoints where space = ? and task = ? and version <= ?",
        (space, task.id, task.version - save.keep),
    )


def _note(connection: apsw.Connection, space: int, note: Journal, now: datetime) -> None:
    connection.execute(
        _NOTE,
        (
            space,
            note.task,
            note.step,
            note.status,
            note.attempts,
            note.fence,
            note.idempotency_key,
            note.input_sha,
            note.result,
            note.error,
            to_micros(now),
        ),
    )


def _drop(connection: apsw.Connection, space: int, id: str) -> None:
    connection.execute("delete from checkpoints where space = ? and task = ?", (space, id))
    connection.execute("delete from steps where space = ? and task = ?", (space, id))
    connection.execute("delete from tasks where space = ? and id = ?", (space, id))


def _checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    version, fence, schema, state, digest, at = row
    # Read as bytes: damage may have left some that are no text at all, and that is told, not raised.
    intact = hashlib.sha256(state).digest() == digest
    return Checkpoint(version, fence, schema, state.decode("utf-8", "replace"), from_micros(at), intact)


def _step(row: tuple[Any, ...]) -> Step:
    return Step(
        key=row[0],
        status=row[1],
        attempts=row[2],
        fence=row[3],
        idempotency_key=row[4],
        input_sha=row[5],
        result=row[6],
        error=row[7],
        at=from_micros(row[8]),
    )


def _duration(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(microseconds=value)


def _length(ttl: timedelta | None) -> int | None:
    return None if ttl is None else ttl // _MICROSECOND
