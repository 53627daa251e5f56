"""Tasks: the rows behind checkpoints, leases and the journal of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import apsw

from recollect.clock import from_micros, to_micros
from recollect.stores import leases
from recollect.stores.base import Checkpoint, Lease, Step, Task
from recollect.stores.damage import one_of, reads
from recollect.stores.leases import Claim
from recollect.stores.ops import DropTask, Journal, Restore, Save, SetStatus, TaskStatus, TaskWrite
from recollect.stores.sqlite import states
from recollect.stores.sqlite.records import RecordWriter
from recollect.stores.sqlite.rows import micros, moment, space_id
from recollect.stores.task import STEP_STATUSES, TASK_STATUSES
from recollect.values import Space

_MICROSECOND = timedelta(microseconds=1)
_BEFORE_ALL = -(1 << 63)

_TASK = """
    select id, status, version, fence, owner, renewed_at, lease_ttl, plan_hash, ttl, expires_at, created_at, updated_at
    from tasks
    where space = ? and id = ?
"""

_LEASED = "owner is not null and renewed_at <= ?1 and renewed_at + lease_ttl > ?1"

_LIVE = f"(expires_at is null or expires_at > ?1 or ({_LEASED}))"

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

# By the index of what expires, so that the many that are alive cost nothing.
_EXPIRED = f"""
    select id, status, version, fence, owner, renewed_at, lease_ttl, plan_hash, ttl, expires_at, created_at, updated_at
    from tasks indexed by tasks_expiry
    where space = ?2 and expires_at <= ?3 and (expires_at, id) > (?4, ?5) and not ({_LEASED})
    order by expires_at, id
    limit ?6
"""  # noqa: S608 - a constant clause

_SPACES = """
    select tenant, tier, user, agent, session
    from spaces
    where tenant = ? and exists (select 1 from tasks where space = spaces.id)
"""

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

# The oldest version makes room for the newest in its own row, unless there are more of them than are to be kept.
_CHECKPOINT_OVER = """
    update checkpoints
    set version = ?3, fence = ?4, schema = ?5, state = ?6, sha256 = ?7, at = ?8
    where space = ?1 and task = ?2 and version = ?9
        and not exists (select 1 from checkpoints where space = ?1 and task = ?2 and version < ?9)
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
    held = stored = _row(connection, space, name)
    for write in writes:
        match write:
            case DropTask():
                leases.check_drop(held, write, now)
                _drop(connection, space, name)
                held = stored = None
            case Save():
                held = leases.saved(held, write, now)
                keep_state(connection, (space, name, held.version, held.fence), write, to_micros(now))
            case Journal():
                held = leases.noted(held, write, now)
                keep_note(connection, space, write, to_micros(now))
            case Restore():
                held = leases.restored(held, write)
                _restore(connection, space, write)
            case SetStatus():
                held = leases.noted(held, write, now)
    if held is not None:
        _keep(connection, space, held, stored)


def claim(connection: apsw.Connection, wish: Claim, now: datetime) -> Lease:
    space = RecordWriter(connection).space(wish.space)
    held = _row(connection, space, wish.task)
    # One sequence for the whole space: a fence is never given twice, not even after its task was dropped.
    fence = connection.execute(
        "update spaces set next_seq = next_seq + 1 where id = ? returning next_seq", (space,)
    ).get
    task = leases.claimed(held, wish, fence, now)
    _keep(connection, space, task)
    return leases.lease_of(wish.space, task)


def renew(connection: apsw.Connection, lease: Lease, ttl: timedelta, now: datetime) -> Lease:
    space = RecordWriter(connection).space(lease.space)
    task = leases.renewed(_row(connection, space, lease.task), lease, ttl, now)
    _keep(connection, space, task)
    return leases.lease_of(lease.space, task)


def release(connection: apsw.Connection, lease: Lease, now: datetime) -> None:
    space = RecordWriter(connection).space(lease.space)
    task = leases.released(_row(connection, space, lease.task), lease, now)
    if task is not None:
        _keep(connection, space, task)


def task(connection: apsw.Connection, space: Space, id: str, now: datetime | None) -> Task | None:
    """The task; without a moment, however long ago it expired."""
    number = space_id(connection, space)
    found = None if number is None else _row(connection, number, id)
    return None if found is None or (now is not None and leases.expired(found, now)) else found


def listed(connection: apsw.Connection, page: Page, now: datetime) -> list[Task]:
    values = (to_micros(now), space_id(connection, page.space), page.after or "", page.limit)
    if page.status is None:
        rows = connection.execute(_LISTED, values)
    else:
        rows = connection.execute(_LISTED_OF_STATUS, (*values, page.status))
    return [_task(row) for row in rows]


def expired(
    connection: apsw.Connection, space: Space, before: datetime, limit: int, after: Task | None, now: datetime
) -> list[Task]:
    last = (_BEFORE_ALL, "") if after is None else (micros(after.expires_at), after.id)
    values = (to_micros(now), space_id(connection, space), min(to_micros(before), to_micros(now)), *last, limit)
    return [_task(row) for row in connection.execute(_EXPIRED, values)]


def spaces(connection: apsw.Connection, tenant: str) -> list[Space]:
    return sorted((Space(*row) for row in connection.execute(_SPACES, (tenant,))), key=str)


def checkpoint(
    connection: apsw.Connection, space: Space, id: str, version: int | None, now: datetime | None
) -> Checkpoint | None:
    if task(connection, space, id, now) is None:
        return None
    number = space_id(connection, space)
    if version is None:
        row = connection.execute(_VERSIONS, (number, id, 1)).fetchone()
    else:
        row = connection.execute(_VERSION, (number, id, version)).fetchone()
    return None if row is None else _checkpoint(row)


def checkpoints(connection: apsw.Connection, space: Space, id: str, now: datetime | None) -> list[Checkpoint]:
    if task(connection, space, id, now) is None:
        return []
    return [_checkpoint(row) for row in connection.execute(_VERSIONS, (space_id(connection, space), id, -1))]


def steps(connection: apsw.Connection, space: Space, id: str, now: datetime | None) -> list[Step]:
    if task(connection, space, id, now) is None:
        return []
    rows = connection.execute(_STEPS, (space_id(connection, space), id))
    return [_step(row) for row in rows]


def _row(connection: apsw.Connection, space: int, id: str) -> Task | None:
    row = connection.execute(_TASK, (space, id)).fetchone()
    return None if row is None else _task(row)


@reads("the row of a task")
def _task(row: tuple[Any, ...]) -> Task:
    return Task(
        id=row[0],
        status=one_of("status", row[1], TASK_STATUSES),
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
            length(task.lease_ttl),
            task.plan_hash,
            length(task.ttl),
            micros(task.expires_at),
            to_micros(task.created_at),
            to_micros(task.updated_at),
        ),
    )


def keep_state(connection: apsw.Connection, place: tuple[int, str, int, int], save: Save, at: int) -> None:
    """The state of a place, which is space, task, version and fence."""
    space, task, version, _ = place
    checksum = states.digest(save.state) if save.sha256 is None else bytes.fromhex(save.sha256)
    values = (*place, save.schema, states.kept(save.state), checksum, at)
    oldest = version - save.keep
    if oldest > 0:
        connection.execute(_CHECKPOINT_OVER, (*values, oldest))
        if connection.changes():
            return
    connection.execute(_CHECKPOINT, values)
    connection.execute("delete from checkpoints where space = ? and task = ? and version <= ?", (space, task, oldest))


def keep_note(connection: apsw.Connection, space: int, note: Journal, at: int) -> None:
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
            at,
        ),
    )


def _restore(connection: apsw.Connection, space: int, restore: Restore) -> None:
    for one in sorted(restore.checkpoints, key=lambda one: one.version):
        values = (one.schema, states.kept(one.state), states.digest(one.state), to_micros(one.at))
        connection.execute(_CHECKPOINT, (space, restore.task, one.version, one.fence, *values))
    for step in restore.steps:
        note = Journal(
            space=restore.space,
            task=restore.task,
            step=step.key,
            status=step.status,
            fence=step.fence,
            attempts=step.attempts,
            idempotency_key=step.idempotency_key,
            input_sha=step.input_sha,
            result=step.result,
            error=step.error,
        )
        keep_note(connection, space, note, to_micros(step.at))
    connection.execute("update spaces set next_seq = max(next_seq, ?) where id = ?", (restore.highest_fence, space))


def _drop(connection: apsw.Connection, space: int, id: str) -> None:
    connection.execute("delete from checkpoints where space = ? and task = ?", (space, id))
    connection.execute("delete from steps where space = ? and task = ?", (space, id))
    connection.execute("delete from tasks where space = ? and id = ?", (space, id))


@reads("the row of a checkpoint")
def _checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    version, fence, schema, stored, checksum, at = row
    state, intact = states.read(stored, checksum)
    return Checkpoint(version, fence, schema, state, from_micros(at), intact)


@reads("the note about a step")
def _step(row: tuple[Any, ...]) -> Step:
    return Step(
        key=row[0],
        status=one_of("status", row[1], STEP_STATUSES),
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


def length(ttl: timedelta | None) -> int | None:
    return None if ttl is None else ttl // _MICROSECOND
