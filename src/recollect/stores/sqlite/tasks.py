"""Tasks, their checkpoints, their leases and the journal of their steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import apsw

from recollect.clock import from_micros, to_micros
from recollect.stores import leases
from recollect.stores.base import Tasks
from recollect.stores.codec import decode_choice, detects_corruption
from recollect.stores.filters import find_prefix_range
from recollect.stores.leases import LeaseRequest
from recollect.stores.sqlite.records import SqliteRecordWriter, find_space_id, from_optional_micros, to_optional_micros
from recollect.stores.sqlite.threads import SqliteStoreBase, run_in_reader, run_in_writer
from recollect.stores.validation import ALL_VERSIONS, check_claim, check_ttl, validate_limit
from recollect.stores.writes import (
    STEP_STATUSES,
    TASK_STATUSES,
    Checkpoint,
    DropTask,
    Journal,
    Lease,
    Restore,
    Save,
    SetStatus,
    Step,
    Task,
    TaskStatus,
    TaskWrite,
)
from recollect.types import Space

_BEFORE_ALL_MOMENTS = -(1 << 63)
# SQLite sorts every blob after every text.
_AFTER_ALL_TEXTS = b""

# SQLite overwrites a row of the same size in place, and of a long row only the pages that differ. A step that adds a
# line to a state of 100 kB then writes 1 page, not 13 new ones and 13 to blank. So a state that does not fit into a
# page is padded, by at most an eighth of its size, with a character that JSON does not contain.
_PADDING = "\0"
_MAX_UNPADDED_BYTES = 8000

_TASK_FIELDS = tuple(field.name for field in fields(Task))
_TASK_COLUMNS = ", ".join(_TASK_FIELDS)
# All fields but those that `_UPDATE_TASK_VERSION` writes.
_get_constant_fields = attrgetter(
    *(name for name in _TASK_FIELDS if name not in ("version", "expires_at", "updated_at"))
)
_NOTE_FIELDS = ("status", "attempts", "fence", "idempotency_key", "input_sha", "result", "error")
_get_note_fields = attrgetter(*_NOTE_FIELDS)
_LEASED_CONDITION = "owner is not null and renewed_at <= ?1 and renewed_at + lease_ttl > ?1"
_LIVE_CONDITION = f"(expires_at is null or expires_at > ?1 or ({_LEASED_CONDITION}))"

_SELECT_TASK = f"select {_TASK_COLUMNS} from tasks where space = ? and id = ?"  # noqa: S608
_SELECT_TASKS = f"""
    select {_TASK_COLUMNS} from tasks
    where space = ?2 and id >= ?3 and id < ?4 and {_LIVE_CONDITION}
    order by id limit ?5"""  # noqa: S608
_SELECT_TASKS_OF_STATUS = f"""
    select {_TASK_COLUMNS} from tasks indexed by tasks_status
    where space = ?2 and id >= ?3 and id < ?4 and status = ?6 and {_LIVE_CONDITION}
    order by id limit ?5"""  # noqa: S608
# By the index of expiry times, so that live tasks cost nothing.
_SELECT_EXPIRED_TASKS = f"""
    select {_TASK_COLUMNS} from tasks indexed by tasks_expiry
    where space = ?2 and expires_at <= ?3 and (expires_at, id) > (?4, ?5) and not ({_LEASED_CONDITION})
    order by expires_at, id limit ?6"""  # noqa: S608

_REPLACE_TASK = f"""
    insert or replace into tasks (space, {_TASK_COLUMNS})
    values (?, {", ".join("?" * len(_TASK_FIELDS))})"""  # noqa: S608
_UPDATE_TASK_VERSION = "update tasks set version = ?, expires_at = ?, updated_at = ? where space = ? and id = ?"

_INSERT_CHECKPOINT = """
    insert into checkpoints (space, task, version, fence, schema, state, sha256, at)
    values (?, ?, ?, ?, ?, ?, ?, ?)"""
# Reuses the row of the oldest version, unless more versions are stored than are to be kept.
_OVERWRITE_OLDEST_CHECKPOINT = """
    update checkpoints
    set version = ?3, fence = ?4, schema = ?5, state = ?6, sha256 = ?7, at = ?8
    where space = ?1 and task = ?2 and version = ?9
        and not exists (select 1 from checkpoints where space = ?1 and task = ?2 and version < ?9)"""
_SELECT_CHECKPOINTS = """
    select version, fence, schema, cast(state as blob), sha256, at from checkpoints
    where space = ?1 and task = ?2 and (?3 is null or version = ?3)
    order by version desc limit ?4"""

_UPSERT_STEP = f"""
    insert into steps (space, task, key, first_at, at, {", ".join(_NOTE_FIELDS)})
    values (?1, ?2, ?3, ?4, ?4, {", ".join("?" * len(_NOTE_FIELDS))})
    on conflict (space, task, key) do update
    set {", ".join(f"{name} = excluded.{name}" for name in _NOTE_FIELDS)}, at = excluded.at"""  # noqa: S608
# By rowid, which is the order of the steps' first notes even if the clock has jumped.
_SELECT_STEPS = f"""
    select key, {", ".join(_NOTE_FIELDS)}, at from steps
    where space = ? and task = ?
    order by rowid"""  # noqa: S608


class SqliteTasks(SqliteStoreBase, Tasks):
    """The task methods of a store."""

    # Leases are written at the time when the writer has the file, not at the time of the call. Another process may
    # claim the task in between, and a lease from the future counts as expired.

    @run_in_writer()
    def claim(
        self,
        connection: apsw.Connection,
        space: Space,
        task: str,
        owner: str,
        ttl: timedelta,
        *,
        plan_hash: str | None = None,
    ) -> Lease:
        check_claim(task, owner, ttl)
        return claim_task(connection, LeaseRequest(space, task, owner, ttl, plan_hash), self._clock())

    @run_in_writer(durable=False)
    def renew(self, connection: apsw.Connection, lease: Lease, ttl: timedelta) -> Lease:
        check_ttl(ttl)
        space = SqliteRecordWriter(connection).get_or_create_space(lease.space)
        task = leases.renew_lease(_load_task_row(connection, space, lease.task), lease, ttl, self._clock())
        _save_task(connection, space, task)
        return leases.build_lease(lease.space, task)

    @run_in_writer()
    def release(self, connection: apsw.Connection, lease: Lease) -> None:
        space = SqliteRecordWriter(connection).get_or_create_space(lease.space)
        task = leases.release_lease(_load_task_row(connection, space, lease.task), lease, self._clock())
        if task is not None:
            _save_task(connection, space, task)

    async def save(self, save: Save) -> int:
        task = await self._submit_writes(
            [save], lambda connection, _: self._load_task(connection, save.space, save.task, hidden=True)
        )
        assert task is not None
        return task.version

    @run_in_reader
    def task(self, connection: apsw.Connection, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        return self._load_task(connection, space, task, hidden=hidden)

    def _load_task(self, connection: apsw.Connection, space: Space, task: str, *, hidden: bool) -> Task | None:
        found = _load_task_row(connection, find_space_id(connection, space), task)
        return None if found is None or (not hidden and leases.is_expired(found, self._clock())) else found

    @run_in_reader
    def tasks(
        self,
        connection: apsw.Connection,
        space: Space,
        *,
        status: TaskStatus | None = None,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> list[Task]:
        first, end = find_prefix_range(prefix, after)
        ids = first, _AFTER_ALL_TEXTS if end is None else end
        values = (to_micros(self._clock()), find_space_id(connection, space), *ids, validate_limit(limit))
        if status is None:
            rows = connection.execute(_SELECT_TASKS, values)
        else:
            rows = connection.execute(_SELECT_TASKS_OF_STATUS, (*values, status))
        return [_decode_task(row) for row in rows]

    @run_in_reader
    def expired(
        self,
        connection: apsw.Connection,
        space: Space,
        before: datetime,
        *,
        limit: int = 100,
        after: Task | None = None,
    ) -> list[Task]:
        now = to_micros(self._clock())
        last = (_BEFORE_ALL_MOMENTS, "") if after is None else (to_optional_micros(after.expires_at), after.id)
        values = (now, find_space_id(connection, space), min(to_micros(before), now), *last, validate_limit(limit))
        return [_decode_task(row) for row in connection.execute(_SELECT_EXPIRED_TASKS, values)]

    @run_in_reader
    def checkpoints(
        self,
        connection: apsw.Connection,
        space: Space,
        task: str,
        *,
        version: int | None = None,
        limit: int = ALL_VERSIONS,
        hidden: bool = False,
    ) -> list[Checkpoint]:
        if self._load_task(connection, space, task, hidden=hidden) is None:
            return []
        values = (find_space_id(connection, space), task, version, validate_limit(limit))
        return [_decode_checkpoint(row) for row in connection.execute(_SELECT_CHECKPOINTS, values)]

    @run_in_reader
    def steps(self, connection: apsw.Connection, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        if self._load_task(connection, space, task, hidden=hidden) is None:
            return []
        rows = connection.execute(_SELECT_STEPS, (find_space_id(connection, space), task))
        return [_decode_step(row) for row in rows]


def claim_task(connection: apsw.Connection, request: LeaseRequest, now: datetime) -> Lease:
    """Store a lease with a new fence. Raises `LeaseHeld` if another owner has a valid one."""
    space = SqliteRecordWriter(connection).get_or_create_space(request.space)
    current = _load_task_row(connection, space, request.task)
    # Fences are numbered per space, so a fence is never reused, even after its task was dropped.
    fence = connection.execute(
        "update spaces set next_seq = next_seq + 1 where id = ? returning next_seq", (space,)
    ).get
    task = leases.claim_task(current, request, fence, now)
    _save_task(connection, space, task)
    return leases.build_lease(request.space, task)


def apply_task_writes(connection: apsw.Connection, space: int, writes: Sequence[TaskWrite], now: datetime) -> None:
    """Apply writes to one task in order. Its row is read once and written once: a step makes three writes."""
    name, at = writes[0].task, to_micros(now)
    task = stored = _load_task_row(connection, space, name)
    for write in writes:
        match write:
            case DropTask():
                leases.check_drop(task, write, now)
                _drop_task(connection, space, name)
                task = stored = None
            case Save():
                task = leases.save_version(task, write, now)
                _save_checkpoint(connection, space, task, write, at)
            case Journal():
                task = leases.apply_note(task, write, now)
                _save_step(connection, space, name, write.step, write, at)
            case Restore():
                task = leases.restore_task(task, write)
                _restore_task(connection, space, write)
            case SetStatus():
                task = leases.apply_note(task, write, now)
    if task is not None:
        _save_task(connection, space, task, stored)


def pad_state(state: str) -> str:
    """Return a task's state with the padding that is stored."""
    size = len(state) if state.isascii() else len(state.encode())
    if size <= _MAX_UNPADDED_BYTES:
        return state
    grain = 1 << (size.bit_length() - 4)
    return state + _PADDING * (-size % grain)


def hash_state(state: str) -> bytes:
    """Return the checksum of a state without its padding."""
    return hashlib.sha256(state.encode()).digest()


def decode_state(stored: bytes, checksum: bytes) -> tuple[str, bool]:
    """Return the state without its padding, and whether it is intact. Damaged bytes may not be valid UTF-8."""
    state = stored.rstrip(_PADDING.encode()) if len(stored) > _MAX_UNPADDED_BYTES else stored
    return state.decode("utf-8", "replace"), hashlib.sha256(state).digest() == checksum


def _load_task_row(connection: apsw.Connection, space: int, id: str) -> Task | None:
    row = connection.execute(_SELECT_TASK, (space, id)).fetchone()
    return None if row is None else _decode_task(row)


@detects_corruption("the row of a task")
def _decode_task(row: tuple[Any, ...]) -> Task:
    id, created_at, updated_at, status, version, fence, owner, renewed_at, lease_ttl, plan_hash, ttl, expires_at = row
    return Task(
        id,
        from_micros(created_at),
        from_micros(updated_at),
        decode_choice("status", status, TASK_STATUSES),
        version,
        fence,
        owner,
        from_optional_micros(renewed_at),
        None if lease_ttl is None else timedelta(microseconds=lease_ttl),
        plan_hash,
        None if ttl is None else timedelta(microseconds=ttl),
        from_optional_micros(expires_at),
    )


def _save_task(connection: apsw.Connection, space: int, task: Task, stored: Task | None = None) -> None:
    if stored is not None and _get_constant_fields(stored) == _get_constant_fields(task):
        # Only one indexed column has changed, so fewer pages are written.
        values = (task.version, to_optional_micros(task.expires_at), to_micros(task.updated_at), space, task.id)
        connection.execute(_UPDATE_TASK_VERSION, values)
        return
    connection.execute(_REPLACE_TASK, (space, *(_encode_value(getattr(task, name)) for name in _TASK_FIELDS)))


def _encode_value(value: Any) -> Any:
    """Return a field of a task as it is stored: times and durations in microseconds."""
    if isinstance(value, datetime):
        return to_micros(value)
    return value // timedelta(microseconds=1) if isinstance(value, timedelta) else value


def _save_checkpoint(connection: apsw.Connection, space: int, task: Task, save: Save, at: int) -> None:
    """Store a version of the state, and delete the versions that are no longer kept."""
    checksum = hash_state(save.state) if save.sha256 is None else bytes.fromhex(save.sha256)
    values = (space, task.id, task.version, task.fence, save.schema, pad_state(save.state), checksum, at)
    oldest = 0 if save.keep is None else task.version - save.keep
    if oldest > 0:
        connection.execute(_OVERWRITE_OLDEST_CHECKPOINT, (*values, oldest))
        if connection.changes():
            return
    connection.execute(_INSERT_CHECKPOINT, values)
    connection.execute(
        "delete from checkpoints where space = ? and task = ? and version <= ?", (space, task.id, oldest)
    )


def _save_step(connection: apsw.Connection, space: int, task: str, key: str, note: Journal | Step, at: int) -> None:
    connection.execute(_UPSERT_STEP, (space, task, key, at, *_get_note_fields(note)))


def _restore_task(connection: apsw.Connection, space: int, restore: Restore) -> None:
    """Store the versions and the journal of a task from another store."""
    for checkpoint in sorted(restore.checkpoints, key=lambda checkpoint: checkpoint.version):
        state = pad_state(checkpoint.state), hash_state(checkpoint.state)
        values = (checkpoint.version, checkpoint.fence, checkpoint.schema, *state, to_micros(checkpoint.at))
        connection.execute(_INSERT_CHECKPOINT, (space, restore.task, *values))
    for step in restore.steps:
        _save_step(connection, space, restore.task, step.key, step, to_micros(step.at))
    connection.execute("update spaces set next_seq = max(next_seq, ?) where id = ?", (restore.highest_fence, space))


def _drop_task(connection: apsw.Connection, space: int, id: str) -> None:
    connection.execute("delete from checkpoints where space = ? and task = ?", (space, id))
    connection.execute("delete from steps where space = ? and task = ?", (space, id))
    connection.execute("delete from tasks where space = ? and id = ?", (space, id))


@detects_corruption("the row of a checkpoint")
def _decode_checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    version, fence, schema, stored, checksum, at = row
    state, intact = decode_state(stored, checksum)
    return Checkpoint(version, fence, schema, state, from_micros(at), intact)


@detects_corruption("the note about a step")
def _decode_step(row: tuple[Any, ...]) -> Step:
    note: dict[str, Any] = dict(zip(_NOTE_FIELDS, row[1:-1], strict=True))
    note["status"] = decode_choice("status", note["status"], STEP_STATUSES)
    return Step(key=row[0], at=from_micros(row[-1]), **note)
