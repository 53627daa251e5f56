"""Tasks as rows: their leases, checkpoints and steps."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores import leases
from recollect.stores.base import Tasks
from recollect.stores.codec import decode_choice, detects_corruption
from recollect.stores.leases import LeaseRequest
from recollect.stores.postgres.connections import Rows, SqlParams, SqlStatement
from recollect.stores.postgres.row_codec import (
    SPACE_ID_SQL,
    build_handle,
    build_handle_range,
    build_space_handle,
    build_space_params,
    decode_timestamp,
    encode_json,
    encode_timestamp,
    encode_value,
    escape_text,
    unescape_text,
)
from recollect.stores.postgres.transactions import (
    FIND_SPACES,
    NOW_MICROS_SQL,
    PostgresServer,
    PostgresTransaction,
    StatementPlan,
    build_task_locks,
    create_space_numbers,
)
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

_MIN_BIGINT = -(1 << 63)

_TASK_COLUMN_TYPES = {
    "id": "text", "status": "text", "version": "bigint", "fence": "bigint", "owner": "text", "renewed_at": "bigint",
    "lease_ttl": "bigint", "plan_hash": "text", "ttl": "bigint", "expires_at": "bigint", "created_at": "bigint",
    "updated_at": "bigint",
}  # fmt: skip
_STEP_COLUMN_TYPES = {
    "handle": "text", "key": "text", "status": "text", "attempts": "bigint", "fence": "bigint",
    "idempotency_key": "text", "input_sha": "text", "result": "text", "error": "text", "at": "bigint",
}  # fmt: skip
_STEP_FIELDS = tuple(field.name for field in fields(Step))
TASK_COLUMNS = ", ".join(f"t.{name}" for name in _TASK_COLUMN_TYPES)

# Reads.

_FROM_TASKS = f"""
    select {TASK_COLUMNS}
    from recollect.tasks t
    where t.tenant = %(tenant)s and t.space = {SPACE_ID_SQL}
"""  # noqa: S608 - constant clauses

# As in `leases`.
_IS_LEASED = (
    f"(t.owner is not null and t.renewed_at <= {NOW_MICROS_SQL} and t.renewed_at + t.lease_ttl > {NOW_MICROS_SQL})"
)
_IS_VISIBLE = f"(t.expires_at is null or t.expires_at > {NOW_MICROS_SQL} or {_IS_LEASED})"

_GET_TASK = f"{_FROM_TASKS} and t.handle = %(task)s and (%(hidden)s or {_IS_VISIBLE})"
_LIST_TASKS = f"""
    {_FROM_TASKS} and t.handle >= %(start)s and (%(end)s::text is null or t.handle < %(end)s)
        and starts_with(t.id, %(prefix)s) and t.id > %(after)s
        and (%(status)s::text is null or t.status = %(status)s)
        and {_IS_VISIBLE}
    order by t.id
    limit %(limit)s
"""
_FIND_EXPIRED = f"""
    {_FROM_TASKS} and t.expires_at <= least(%(before)s, {NOW_MICROS_SQL})
        and (t.expires_at, t.id) > (%(last)s::bigint, %(after)s)
        and not {_IS_LEASED}
    order by t.expires_at, t.id
    limit %(limit)s
"""
_OF_TASK = f"tenant = %(tenant)s and space = {SPACE_ID_SQL} and task = %(task)s and exists ({_GET_TASK})"
_GET_CHECKPOINTS = f"""
    select version, fence, schema, state, sha256, at
    from recollect.checkpoints
    where {_OF_TASK} and (%(version)s::bigint is null or version = %(version)s)
    order by version desc
    limit %(limit)s
"""  # noqa: S608 - constant clauses

_GET_STEPS = f"""
    select {", ".join(_STEP_FIELDS)}
    from recollect.steps
    where {_OF_TASK}
    order by first
"""  # noqa: S608 - constant clauses

# Leases.

# One sequence per space: a fence is never reused, not even after its task was dropped.
_INCREMENT_FENCE = """
    update recollect.spaces
    set next_seq = next_seq + 1
    where tenant = %(tenant)s and id = %(space)s
    returning next_seq
"""


class PostgresTasks(Tasks):
    """The `Tasks` protocol without `save`."""

    _server: PostgresServer

    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        check_claim(task, owner, ttl)
        request = LeaseRequest(space, task, owner, ttl, plan_hash)
        async with self._change_task(space, task) as (work, batch):
            # Raise a refusal before the fence is drawn, so that refused callers do not wait for the row of the space.
            leases.claim_task(batch.task, request, 0, work.now)
            values: SqlParams = {"tenant": escape_text(space.tenant), "space": batch.space_number}
            [fence] = await work.fetch_one(_INCREMENT_FENCE, values)
            claimed = batch.task = leases.claim_task(batch.task, request, fence, work.now)
        return leases.build_lease(space, claimed)

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        check_ttl(ttl)
        async with self._change_task(lease.space, lease.task) as (work, batch):
            renewed = batch.task = leases.renew_lease(batch.task, lease, ttl, work.now)
        return leases.build_lease(lease.space, renewed)

    async def release(self, lease: Lease) -> None:
        async with self._change_task(lease.space, lease.task) as (work, batch):
            batch.task = leases.release_lease(batch.task, lease, work.now) or batch.task

    @asynccontextmanager
    async def _change_task(
        self, space: Space, task: str
    ) -> AsyncIterator[tuple[PostgresTransaction, PostgresTaskBatch]]:
        """Yield a transaction with the lock of a task, and the task, which is written at the end if it changed."""
        handle, params = build_space_handle(space), build_space_params(space)
        first = (
            SqlStatement(FIND_SPACES, {**params, "handles": [handle]}),
            SqlStatement(_GET_TASK, {**params, "task": build_handle(task), "hidden": True, "now": None}),
        )
        async with self._server.begin_write(space.tenant, build_task_locks(space, task), first) as work:
            spaces, tasks = work.first_results
            number = spaces[0][1] if spaces else None
            if number is None:
                number = (await create_space_numbers(work, space.tenant, {handle: space}))[handle].id
            batch = PostgresTaskBatch(space, number, task, tasks[0] if tasks else None)
            yield work, batch
            plan = StatementPlan()
            batch.add_to_plan(plan)
            await work.commit(plan.build_statements(work))

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        rows = await self._read(space, _GET_TASK, task=build_handle(task), hidden=hidden)
        return _decode_task(rows[0]) if rows else None

    async def tasks(
        self,
        space: Space,
        *,
        status: TaskStatus | None = None,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> list[Task]:
        start, end = build_handle_range(prefix)
        values = {
            "start": start,
            "end": end,
            "prefix": escape_text(prefix),
            "after": escape_text(after or ""),
            "status": status,
            "limit": validate_limit(limit),
        }
        return list(map(_decode_task, await self._read(space, _LIST_TASKS, **values)))

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        values = {
            "before": to_micros(before),
            "last": _MIN_BIGINT if after is None else encode_timestamp(after.expires_at),
            "after": "" if after is None else escape_text(after.id),
            "limit": validate_limit(limit),
        }
        return list(map(_decode_task, await self._read(space, _FIND_EXPIRED, **values)))

    async def checkpoints(
        self, space: Space, task: str, *, version: int | None = None, limit: int = ALL_VERSIONS, hidden: bool = False
    ) -> list[Checkpoint]:
        of_task = {"task": build_handle(task), "hidden": hidden}
        rows = await self._read(space, _GET_CHECKPOINTS, **of_task, version=version, limit=validate_limit(limit))
        return list(map(_decode_checkpoint, rows))

    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        rows = await self._read(space, _GET_STEPS, task=build_handle(task), hidden=hidden)
        return list(map(_decode_step, rows))

    async def _read(self, space: Space, statement: str, **values: Any) -> Rows:
        values = {**build_space_params(space), "now": self._server.now_micros, **values}
        return await self._server.read(space.tenant, statement, values)


# Writes.

_UPSERT_TASK = f"""
    insert into recollect.tasks (tenant, space, handle, {", ".join(_TASK_COLUMN_TYPES)})
    values (
        %(tenant)s, %(space)s, %(task)s,
        {", ".join(f"%({name})s::{type}" for name, type in _TASK_COLUMN_TYPES.items())}
    )
    on conflict (tenant, space, handle) do update
    set {", ".join(f"{name} = excluded.{name}" for name in _TASK_COLUMN_TYPES)}
"""  # noqa: S608 - a constant list of columns

_INSERT_CHECKPOINT = """
    insert into recollect.checkpoints (tenant, space, task, version, fence, schema, state, sha256, at)
    values (
        %(tenant)s, %(space)s, %(task)s, %(version)s, %(fence)s, %(schema)s, %(state)s, %(sha256)s, %(at)s
    )
"""
_DELETE_CHECKPOINTS = """
    delete from recollect.checkpoints
    where tenant = %(tenant)s and space = %(space)s and task = %(task)s and version <= %(oldest)s
"""

_UPSERT_STEPS = f"""
    insert into recollect.steps (tenant, space, task, {", ".join(_STEP_COLUMN_TYPES)})
    select %(tenant)s, %(space)s, %(task)s, new.*
    from json_to_recordset(%(steps)s::json) as new ({", ".join(map(" ".join, _STEP_COLUMN_TYPES.items()))})
    on conflict (tenant, space, task, handle) do update
    set {", ".join(f"{name} = excluded.{name}" for name in _STEP_COLUMN_TYPES)}
"""  # noqa: S608 - a constant list of columns

_DELETE_TASK = tuple(
    f"delete from recollect.{table} where tenant = %(tenant)s and space = %(space)s and {column} = %(task)s"  # noqa: S608
    for table, column in (("checkpoints", "task"), ("steps", "task"), ("tasks", "handle"))
)

_RESTORE_FENCE = """
    update recollect.spaces
    set next_seq = greatest(next_seq, %(fence)s)
    where tenant = %(tenant)s and id = %(space)s
"""


class PostgresTaskBatch:
    """The writes of a batch to one task."""

    def __init__(self, space: Space, space_number: int, name: str, row: Sequence[Any] | None) -> None:
        self.space = space
        self.space_number = space_number
        self.name = name
        self.task = self._stored_task = None if row is None else _decode_task(row)

    def apply(self, plan: StatementPlan, write: TaskWrite, now: datetime) -> None:
        """Apply a write. Raise the error of `leases` if its fence or expectation is not met."""
        match write:
            case DropTask():
                leases.check_drop(self.task, write, now)
                for statement in _DELETE_TASK:
                    self._add(plan, statement, {})
                self.task = self._stored_task = None
            case Save():
                self.task = leases.save_version(self.task, write, now)
                task = self.task
                saved = Checkpoint(task.version, task.fence, write.schema, write.state, task.updated_at, intact=True)
                self._add_checkpoint(plan, saved, write.sha256)
                if write.keep is not None:
                    self._add(plan, _DELETE_CHECKPOINTS, {"oldest": task.version - write.keep})
            case Journal():
                self.task = leases.apply_note(self.task, write, now)
                self._add_steps(plan, [_encode_step(write, write.step, now)])
            case Restore():
                self.task = leases.restore_task(self.task, write)
                self._restore(plan, write)
            case SetStatus():
                self.task = leases.apply_note(self.task, write, now)

    def add_to_plan(self, plan: StatementPlan) -> None:
        """Add the statement for the task's row if it changed."""
        if self.task is not None and self.task != self._stored_task:
            values = {name: encode_value(getattr(self.task, name)) for name in _TASK_COLUMN_TYPES}
            self._add(plan, _UPSERT_TASK, values)

    def _add_checkpoint(self, plan: StatementPlan, saved: Checkpoint, sha256: str | None = None) -> None:
        state = saved.state.encode()
        values = {
            "version": saved.version,
            "fence": saved.fence,
            "schema": saved.schema,
            "state": state,
            "sha256": hashlib.sha256(state).digest() if sha256 is None else bytes.fromhex(sha256),
            "at": to_micros(saved.at),
        }
        self._add(plan, _INSERT_CHECKPOINT, values)

    def _add_steps(self, plan: StatementPlan, rows: list[SqlParams]) -> None:
        self._add(plan, _UPSERT_STEPS, {"steps": encode_json(rows)})

    def _restore(self, plan: StatementPlan, restore: Restore) -> None:
        """Add the checkpoints and steps of a task from another store."""
        for checkpoint in restore.checkpoints:
            self._add_checkpoint(plan, checkpoint)
        if restore.steps:
            self._add_steps(plan, [_encode_step(step, step.key, step.at) for step in restore.steps])
        self._add(plan, _RESTORE_FENCE, {"fence": restore.highest_fence})

    def _add(self, plan: StatementPlan, statement: str, values: SqlParams) -> None:
        plan.add(self.space.tenant, statement, {"space": self.space_number, "task": build_handle(self.name), **values})


# Rows.


@detects_corruption("the row of a task")
def _decode_task(row: Sequence[Any]) -> Task:
    values = _decode_row(_TASK_COLUMN_TYPES, row)
    decode_choice("status", values["status"], TASK_STATUSES)
    times = {name: decode_timestamp(values[name]) for name in ("renewed_at", "expires_at", "created_at", "updated_at")}
    durations = {
        name: None if values[name] is None else timedelta(microseconds=values[name]) for name in ("lease_ttl", "ttl")
    }
    return Task(**values | times | durations)


def _decode_row(columns: Iterable[str], row: Sequence[Any]) -> dict[str, Any]:
    values = (unescape_text(value) if isinstance(value, str) else value for value in row)
    return dict(zip(columns, values, strict=True))


@detects_corruption("the row of a checkpoint")
def _decode_checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    version, fence, schema, state, checksum, at = row
    text = bytes(state).decode("utf-8", "replace")
    return Checkpoint(version, fence, schema, text, from_micros(at), is_intact(state, checksum))


def is_intact(state: bytes, checksum: bytes) -> bool:
    """Return whether a checkpoint's state has its checksum."""
    return hashlib.sha256(state).digest() == checksum


def _encode_step(step: Journal | Step, key: str, at: datetime) -> SqlParams:
    values = {name: encode_value(getattr(step, name)) for name in _STEP_FIELDS if name not in ("key", "at")}
    return {"handle": build_handle(key), "key": escape_text(key), "at": to_micros(at), **values}


@detects_corruption("the note about a step")
def _decode_step(row: tuple[Any, ...]) -> Step:
    values = _decode_row(_STEP_FIELDS, row)
    decode_choice("status", values["status"], STEP_STATUSES)
    return Step(**values | {"at": from_micros(values["at"])})
