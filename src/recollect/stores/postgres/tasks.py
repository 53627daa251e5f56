"""Writing tasks: the rows behind checkpoints, leases and the journal of steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores import leases
from recollect.stores.base import Lease, Task
from recollect.stores.damage import one_of, reads
from recollect.stores.leases import Claim
from recollect.stores.ops import DropTask, Journal, Restore, Save, SetStatus, TaskWrite
from recollect.stores.postgres.journey import Values
from recollect.stores.postgres.moving import restored
from recollect.stores.postgres.plan import Plan
from recollect.stores.postgres.rows import TASK, micros, moment
from recollect.stores.postgres.server import Work
from recollect.stores.postgres.spaces import numbered
from recollect.stores.postgres.text import given, handle, kept, maybe_given, maybe_kept
from recollect.stores.task import TASK_STATUSES
from recollect.values import Space

_MICROSECOND = timedelta(microseconds=1)

_HELD = f"""
    select {TASK}
    from recollect.tasks t
    where t.tenant = %(tenant)s and t.space = %(space)s and t.handle = %(task)s
"""  # noqa: S608 - a constant list of columns

_KEEP = """
    kept{n} as (
        insert into recollect.tasks (
            tenant, space, handle, id, status, version, fence, owner, renewed_at, lease_ttl, plan_hash, ttl,
            expires_at, created_at, updated_at
        )
        values (
            %(tenant{n})s, %(space{n})s, %(task{n})s, %(id{n})s, %(status{n})s, %(version{n})s, %(fence{n})s,
            %(owner{n})s::text, %(renewed_at{n})s::bigint, %(lease_ttl{n})s::bigint, %(plan_hash{n})s::text,
            %(ttl{n})s::bigint, %(expires_at{n})s::bigint, %(created_at{n})s, %(updated_at{n})s
        )
        on conflict (tenant, space, handle) do update
        set status = excluded.status, version = excluded.version, fence = excluded.fence, owner = excluded.owner,
            renewed_at = excluded.renewed_at, lease_ttl = excluded.lease_ttl, plan_hash = excluded.plan_hash,
            ttl = excluded.ttl, expires_at = excluded.expires_at, created_at = excluded.created_at,
            updated_at = excluded.updated_at
    )
"""

_FENCE = """
    update recollect.spaces
    set next_seq = next_seq + 1
    where tenant = %(tenant)s and id = %(space)s
    returning next_seq
"""

# The version that is added is not among those that are forgotten.
_SAVE = """
    saved{n} as (
        insert into recollect.checkpoints (tenant, space, task, version, fence, schema, state, sha256, at)
        values (
            %(tenant{n})s, %(space{n})s, %(task{n})s, %(version{n})s, %(fence{n})s, %(schema{n})s, %(state{n})s,
            %(sha256{n})s, %(at{n})s
        )
    ),
    forgotten{n} as (
        delete from recollect.checkpoints
        where tenant = %(tenant{n})s and space = %(space{n})s and task = %(task{n})s and version <= %(oldest{n})s
    )
"""

_NOTE = """
    noted{n} as (
        insert into recollect.steps (
            tenant, space, task, handle, key, status, attempts, fence, idempotency_key, input_sha, result, error, at
        )
        values (
            %(tenant{n})s, %(space{n})s, %(task{n})s, %(handle{n})s, %(key{n})s, %(status{n})s, %(attempts{n})s,
            %(fence{n})s, %(idempotency_key{n})s, %(input_sha{n})s::text, %(result{n})s::text, %(error{n})s::text,
            %(at{n})s
        )
        on conflict (tenant, space, task, handle) do update
        set status = excluded.status, attempts = excluded.attempts, fence = excluded.fence,
            idempotency_key = excluded.idempotency_key, input_sha = excluded.input_sha, result = excluded.result,
            error = excluded.error, at = excluded.at
    )
"""

_DROP = """
    unsaved{n} as (
        delete from recollect.checkpoints
        where tenant = %(tenant{n})s and space = %(space{n})s and task = %(task{n})s
    ),
    unnoted{n} as (
        delete from recollect.steps
        where tenant = %(tenant{n})s and space = %(space{n})s and task = %(task{n})s
    ),
    dropped{n} as (
        delete from recollect.tasks
        where tenant = %(tenant{n})s and space = %(space{n})s and handle = %(task{n})s
    )
"""


@dataclass(slots=True)
class Desk:
    """One task that a batch is about."""

    space: Space
    number: int
    name: str
    held: Task | None = None
    stored: Task | None = None

    @property
    def _named(self) -> Values:
        return {"tenant": kept(self.space.tenant), "space": self.number, "task": handle(self.name)}

    @classmethod
    def of(cls, space: Space, number: int, name: str, row: Sequence[Any] | None) -> Desk:
        held = None if row is None else task_of(row)
        return cls(space, number, name, held, held)

    def _add(self, plan: Plan, part: str, values: Values, *touches: str) -> None:
        keys = [(self.number, self.name, what) for what in touches]
        plan.add(self.space.tenant, part, self._named | values, keys)

    def apply(self, plan: Plan, write: TaskWrite, now: datetime) -> None:
        """Do as a write says, or refuse it."""
        match write:
            case DropTask():
                leases.check_drop(self.held, write, now)
                self._add(plan, _DROP, {}, "task", "saves", "steps")
                self.held = self.stored = None
            case Save():
                self.held = leases.saved(self.held, write, now)
                self._save(plan, self.held, write)
            case Journal():
                self.held = leases.noted(self.held, write, now)
                self._add(plan, _NOTE, _note(write, now), "steps")
            case Restore():
                self.held = leases.restored(self.held, write)
                for part, values, touched in restored(write):
                    self._add(plan, part, values, touched)
            case SetStatus():
                self.held = leases.noted(self.held, write, now)

    def plan(self, plan: Plan) -> None:
        if self.held is not None and self.held != self.stored:
            self._add(plan, _KEEP, _values(self.held), "task")

    def _save(self, plan: Plan, task: Task, save: Save) -> None:
        state = save.state.encode()
        checksum = hashlib.sha256(state).digest() if save.sha256 is None else bytes.fromhex(save.sha256)
        values = {
            "version": task.version,
            "fence": task.fence,
            "schema": save.schema,
            "state": state,
            "sha256": checksum,
            "at": to_micros(task.updated_at),
            "oldest": task.version - save.keep,
        }
        self._add(plan, _SAVE, values, "saves")


async def desk(work: Work, space: Space, task: str) -> Desk:
    """A task as it stands; its space gets a number if it has none."""
    number = await numbered(work, space)
    row = await work.row(_HELD, {"tenant": kept(space.tenant), "space": number, "task": handle(task)})
    return Desk.of(space, number, task, row)


async def claim(work: Work, wish: Claim) -> Lease:
    opened = await desk(work, wish.space, wish.task)
    # Decided before the fence is drawn, so that those who are refused do not wait for each other at the space's row.
    leases.claimed(opened.held, wish, 0, work.now)
    # One sequence for the whole space: a fence is never given twice, not even after its task was dropped.
    row = await work.row(_FENCE, {"tenant": kept(wish.space.tenant), "space": opened.number})
    assert row is not None
    opened.held = leases.claimed(opened.held, wish, row[0], work.now)
    return await _kept(work, opened)


async def renew(work: Work, lease: Lease, ttl: timedelta) -> Lease:
    opened = await desk(work, lease.space, lease.task)
    opened.held = leases.renewed(opened.held, lease, ttl, work.now)
    return await _kept(work, opened)


async def release(work: Work, lease: Lease) -> None:
    opened = await desk(work, lease.space, lease.task)
    task = leases.released(opened.held, lease, work.now)
    if task is not None:
        opened.held = task
        plan = Plan()
        opened.plan(plan)
        await plan.run(work)


async def _kept(work: Work, opened: Desk) -> Lease:
    assert opened.held is not None
    plan = Plan()
    opened.plan(plan)
    await plan.run(work)
    return leases.lease_of(opened.space, opened.held)


@reads("the row of a task")
def task_of(row: Sequence[Any]) -> Task:
    return Task(
        id=given(row[0]),
        status=one_of("status", row[1], TASK_STATUSES),
        version=row[2],
        fence=row[3],
        owner=maybe_given(row[4]),
        renewed_at=moment(row[5]),
        lease_ttl=_duration(row[6]),
        plan_hash=maybe_given(row[7]),
        ttl=_duration(row[8]),
        expires_at=moment(row[9]),
        created_at=from_micros(row[10]),
        updated_at=from_micros(row[11]),
    )


def _values(task: Task) -> Values:
    return {
        "id": kept(task.id),
        "status": task.status,
        "version": task.version,
        "fence": task.fence,
        "owner": maybe_kept(task.owner),
        "renewed_at": micros(task.renewed_at),
        "lease_ttl": _length(task.lease_ttl),
        "plan_hash": maybe_kept(task.plan_hash),
        "ttl": _length(task.ttl),
        "expires_at": micros(task.expires_at),
        "created_at": to_micros(task.created_at),
        "updated_at": to_micros(task.updated_at),
    }


def _note(note: Journal, now: datetime) -> Values:
    return {
        "handle": handle(note.step),
        "key": kept(note.step),
        "status": note.status,
        "attempts": note.attempts,
        "fence": note.fence,
        "idempotency_key": kept(note.idempotency_key),
        "input_sha": maybe_kept(note.input_sha),
        "result": maybe_kept(note.result),
        "error": maybe_kept(note.error),
        "at": to_micros(now),
    }


def _duration(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(microseconds=value)


def _length(ttl: timedelta | None) -> int | None:
    return None if ttl is None else ttl // _MICROSECOND
