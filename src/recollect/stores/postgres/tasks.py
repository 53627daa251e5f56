"""Tasks as rows: their leases, checkpoints and steps."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores import leases, writes
from recollect.stores.base import Tasks
from recollect.stores.codec import decode_choice, decode_optional_duration, detects_corruption
from recollect.stores.leases import LeaseRequest
from recollect.stores.postgres import codec, transactions
from recollect.stores.postgres.connections import SqlStatement
from recollect.stores.postgres.transactions import PostgresServer, PostgresTransaction, SpaceBatch, StoredRows
from recollect.stores.validation import ALL_VERSIONS, check_claim, check_ttl, validate_limit
from recollect.stores.writes import Checkpoint, Lease, Step, Task, TaskStatus, TaskWrite
from recollect.types import Space

_MIN_BIGINT = -(1 << 63)

_TASK_FIELDS = tuple(field.name for field in fields(Task))
_STEP_FIELDS = tuple(field.name for field in fields(Step))
_TASK_COLUMNS = ", ".join(f"t.{name}" for name in _TASK_FIELDS)

# Reads.

_FROM_TASKS = f"""
    select {_TASK_COLUMNS} from recollect.tasks t
    where t.tenant = %(tenant)s and t.space = {codec.SPACE_ID_SQL}
"""  # noqa: S608 - constant clauses

# As in `leases`.
_NOW = codec.NOW_MICROS_SQL
_IS_LEASED = f"(t.owner is not null and t.renewed_at <= {_NOW} and t.renewed_at + t.lease_ttl > {_NOW})"
_IS_VISIBLE = f"(t.expires_at is null or t.expires_at > {_NOW} or {_IS_LEASED})"

_GET_TASK = f"{_FROM_TASKS} and t.handle = %(task)s and (%(hidden)s or {_IS_VISIBLE})"
_LIST_TASKS = f"""
    {_FROM_TASKS} and t.handle >= %(start)s and (%(end)s::text is null or t.handle < %(end)s)
        and starts_with(t.id, %(prefix)s) and t.id > %(after)s
        and (%(status)s::text is null or t.status = %(status)s) and {_IS_VISIBLE}
    order by t.id limit %(limit)s
"""
_FIND_EXPIRED = f"""
    {_FROM_TASKS} and t.expires_at <= least(%(before)s, {codec.NOW_MICROS_SQL})
        and (t.expires_at, t.id) > (%(last)s::bigint, %(after)s) and not {_IS_LEASED}
    order by t.expires_at, t.id limit %(limit)s
"""
_OF_TASK = f"tenant = %(tenant)s and space = {codec.SPACE_ID_SQL} and task = %(task)s and exists ({_GET_TASK})"
_GET_CHECKPOINTS = f"""
    select version, fence, schema, state, sha256, at from recollect.checkpoints
    where {_OF_TASK} and (%(version)s::bigint is null or version = %(version)s)
    order by version desc limit %(limit)s
"""  # noqa: S608 - constant clauses
_GET_STEPS = f"select {', '.join(_STEP_FIELDS)} from recollect.steps where {_OF_TASK} order by first"  # noqa: S608

SELECT_TASKS = codec.SELECT_NAMED_SQL.format(table="tasks", columns=_TASK_COLUMNS)

# Leases.

# One sequence per space: a fence is never reused, not even after its task was dropped.
_RAISE_FENCE = """
    update recollect.spaces set next_seq = greatest(next_seq + %(more)s, %(least)s)
    where tenant = %(tenant)s and id = %(space)s returning next_seq
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
            leases.claim_task(batch.tasks.get(task), request, 0, work.now)
            values = {"tenant": codec.escape_text(space.tenant), "space": batch.number, "more": 1, "least": 0}
            [[fence]] = await work.fetch_rows(_RAISE_FENCE, values)
            claimed = batch.tasks[task] = leases.claim_task(batch.tasks.get(task), request, fence, work.now)
        return leases.build_lease(space, claimed)

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        check_ttl(ttl)
        async with self._change_task(lease.space, lease.task) as (work, batch):
            renewed = leases.renew_lease(batch.tasks.get(lease.task), lease, ttl, work.now)
            batch.tasks[lease.task] = renewed
        return leases.build_lease(lease.space, renewed)

    async def release(self, lease: Lease) -> None:
        async with self._change_task(lease.space, lease.task) as (work, batch):
            if released := leases.release_lease(batch.tasks.get(lease.task), lease, work.now):
                batch.tasks[lease.task] = released

    @asynccontextmanager
    async def _change_task(
        self, space: Space, task: str
    ) -> AsyncIterator[tuple[PostgresTransaction, PostgresTaskBatch]]:
        """Yield a transaction with the lock of a task, and the task, which is written at the end if it changed."""
        handle = codec.build_space_handle(space)
        values = {"tenant": codec.escape_text(space.tenant), "spaces": [handle], "names": [codec.build_handle(task)]}
        locks, first = transactions.build_task_locks(space, task), SqlStatement(SELECT_TASKS, values)
        async with self._server.begin_write(space.tenant, locks, first) as work:
            [[(_, id, next_seq, name, *row)]] = work.first_results
            number = (id, next_seq)
            if id is None:
                number = (await transactions.add_spaces(work, {handle: space}))[handle]
            plan = transactions.StatementPlan(work.now)
            batch = PostgresTaskBatch(plan, space, number, {} if name is None else {name: row})
            yield work, batch
            batch.add_to_plan()
            await work.commit(plan)

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        rows = await self._server.read_space(space, _GET_TASK, task=codec.build_handle(task), hidden=hidden)
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
        start, end = codec.build_handle_range(prefix)
        values = {"start": start, "end": end, "status": status, "limit": validate_limit(limit)}
        values |= {"prefix": codec.escape_text(prefix), "after": codec.escape_text(after or "")}
        return list(map(_decode_task, await self._server.read_space(space, _LIST_TASKS, **values)))

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        values = {
            "before": to_micros(before),
            "last": _MIN_BIGINT if after is None else codec.encode_value(after.expires_at),
            "after": "" if after is None else codec.escape_text(after.id),
            "limit": validate_limit(limit),
        }
        return list(map(_decode_task, await self._server.read_space(space, _FIND_EXPIRED, **values)))

    async def checkpoints(
        self, space: Space, task: str, *, version: int | None = None, limit: int = ALL_VERSIONS, hidden: bool = False
    ) -> list[Checkpoint]:
        values = {
            "task": codec.build_handle(task),
            "hidden": hidden,
            "version": version,
            "limit": validate_limit(limit),
        }
        return list(map(_decode_checkpoint, await self._server.read_space(space, _GET_CHECKPOINTS, **values)))

    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        rows = await self._server.read_space(space, _GET_STEPS, task=codec.build_handle(task), hidden=hidden)
        return list(map(_decode_step, rows))


# Writes.

_UPSERT_TASK = f"""
    insert into recollect.tasks (tenant, space, handle, {", ".join(_TASK_FIELDS)})
    values (%(tenant)s, %(space)s, %(task)s, {", ".join(f"%({name})s" for name in _TASK_FIELDS)})
    on conflict (tenant, space, handle) do update
    set {", ".join(f"{name} = excluded.{name}" for name in _TASK_FIELDS)}
"""  # noqa: S608 - a constant list of columns

_INSERT_CHECKPOINT = """
    insert into recollect.checkpoints (tenant, space, task, version, fence, schema, state, sha256, at)
    values (%(tenant)s, %(space)s, %(task)s, %(version)s, %(fence)s, %(schema)s, %(state)s, %(sha256)s, %(at)s)
"""
_DELETE_CHECKPOINTS = (
    f"delete from recollect.checkpoints where {codec.OF_SPACE_SQL} and task = %(task)s and version <= %(oldest)s"  # noqa: S608
)

_UPSERT_STEPS = f"""
    insert into recollect.steps (tenant, space, task, handle, {", ".join(_STEP_FIELDS)})
    select %(tenant)s, %(space)s, %(task)s, new.handle, {", ".join(f"new.{name}" for name in _STEP_FIELDS)}
    from json_populate_recordset(null::recollect.steps, %(steps)s::json) as new
    on conflict (tenant, space, task, handle) do update
    set {", ".join(f"{name} = excluded.{name}" for name in _STEP_FIELDS)}
"""  # noqa: S608 - a constant list of columns

_DELETE_TASK = tuple(
    f"delete from recollect.{table} where {codec.OF_SPACE_SQL} and {column} = %(task)s"  # noqa: S608
    for table, column in (("checkpoints", "task"), ("steps", "task"), ("tasks", "handle"))
)


class PostgresTaskBatch(SpaceBatch):
    """The writes of a batch to the tasks of one space."""

    def _load(self, rows: StoredRows) -> None:
        self._stored = {task.id: task for task in map(_decode_task, rows.values())}
        self.tasks = dict(self._stored)

    def apply(self, write: TaskWrite) -> None:
        name, now, task = write.task, self._plan.now, self.tasks.get(write.task)
        match write:
            case writes.DropTask():
                leases.check_drop(task, write, now)
                for statement in _DELETE_TASK:
                    self._add_for(name, statement)
                self._stored.pop(name, None)
                self.tasks.pop(name, None)
            case writes.Save():
                task = self.tasks[name] = leases.save_version(task, write, now)
                saved = Checkpoint(task.version, task.fence, write.schema, write.state, task.updated_at, intact=True)
                self._add_checkpoint(name, saved, write.sha256)
                if write.keep is not None:
                    self._add_for(name, _DELETE_CHECKPOINTS, oldest=task.version - write.keep)
            case writes.Journal():
                self.tasks[name] = leases.apply_note(task, write, now)
                self._add_steps(name, [write.build_step(now)])
            case writes.Restore():
                self.tasks[name] = leases.restore_task(task, write)
                for checkpoint in write.checkpoints:
                    self._add_checkpoint(name, checkpoint)
                if write.steps:
                    self._add_steps(name, write.steps)
                self._add(_RAISE_FENCE, more=0, least=write.highest_fence)
            case writes.SetStatus():
                self.tasks[name] = leases.apply_note(task, write, now)

    def add_to_plan(self) -> None:
        for name, task in self.tasks.items():
            if task != self._stored.get(name):
                self._add_for(name, _UPSERT_TASK, **codec.encode_fields(task, _TASK_FIELDS))

    def _add_checkpoint(self, task: str, saved: Checkpoint, sha256: str | None = None) -> None:
        state = saved.state.encode()
        checksum = hashlib.sha256(state).digest() if sha256 is None else bytes.fromhex(sha256)
        values = codec.encode_fields(saved, ("version", "fence", "schema", "at"))
        self._add_for(task, _INSERT_CHECKPOINT, state=state, sha256=checksum, **values)

    def _add_steps(self, task: str, steps: Iterable[Step]) -> None:
        rows = [{"handle": codec.build_handle(step.key), **codec.encode_fields(step, _STEP_FIELDS)} for step in steps]
        self._add_for(task, _UPSERT_STEPS, steps=codec.encode_json(rows))

    def _add_for(self, task: str, statement: str, **values: Any) -> None:
        self._add(statement, task=codec.build_handle(task), **values)


# Rows.


@detects_corruption("the row of a task")
def _decode_task(row: Sequence[Any]) -> Task:
    values = _decode_row(_TASK_FIELDS, row)
    decode_choice("status", values["status"], writes.TASK_STATUSES)
    times = {
        name: codec.decode_timestamp(values[name]) for name in ("renewed_at", "expires_at", "created_at", "updated_at")
    }
    durations = {name: decode_optional_duration(name, values[name]) for name in ("lease_ttl", "ttl")}
    return Task(**values | times | durations)


def _decode_row(fields: Iterable[str], row: Sequence[Any]) -> dict[str, Any]:
    values = (codec.unescape_text(value) if isinstance(value, str) else value for value in row)
    return dict(zip(fields, values, strict=True))


@detects_corruption("the row of a checkpoint")
def _decode_checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    version, fence, schema, state, checksum, at = row
    text = bytes(state).decode("utf-8", "replace")
    return Checkpoint(version, fence, schema, text, from_micros(at), is_intact(state, checksum))


def is_intact(state: bytes, checksum: bytes) -> bool:
    """Return whether a checkpoint's state has its checksum."""
    return hashlib.sha256(state).digest() == checksum


@detects_corruption("the note about a step")
def _decode_step(row: tuple[Any, ...]) -> Step:
    values = _decode_row(_STEP_FIELDS, row)
    decode_choice("status", values["status"], writes.STEP_STATUSES)
    return Step(**values | {"at": from_micros(values["at"])})
