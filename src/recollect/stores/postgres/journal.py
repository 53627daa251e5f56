"""Reading tasks: what is there, what has expired, and what a task's versions and steps say."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores import leases
from recollect.stores.base import Checkpoint, Step, Task
from recollect.stores.damage import one_of, reads
from recollect.stores.ops import TaskStatus
from recollect.stores.postgres.journey import Values
from recollect.stores.postgres.rows import SPACE, TASK, micros, named, space_of
from recollect.stores.postgres.server import Work
from recollect.stores.postgres.tasks import task_of
from recollect.stores.postgres.text import given, handle, kept, maybe_given
from recollect.stores.task import STEP_STATUSES
from recollect.values import Space

_BEFORE_ALL = -(1 << 63)
_ALL = 1 << 31

_TASK = f"""
    select {TASK}
    from recollect.tasks t
    where t.tenant = %(tenant)s and t.space = {SPACE} and t.handle = %(task)s
"""  # noqa: S608 - constant clauses

_LEASED = "t.owner is not null and t.renewed_at <= %(now)s and t.renewed_at + t.lease_ttl > %(now)s"

_LISTED = f"""
    select {TASK}
    from recollect.tasks t
    where t.tenant = %(tenant)s and t.space = {SPACE} and t.id > %(after)s
        and (%(status)s::text is null or t.status = %(status)s)
        and (t.expires_at is null or t.expires_at > %(now)s or ({_LEASED}))
    order by t.id
    limit %(limit)s
"""  # noqa: S608 - constant clauses

_EXPIRED = f"""
    select {TASK}
    from recollect.tasks t
    where t.tenant = %(tenant)s and t.space = {SPACE} and t.expires_at <= %(before)s
        and (t.expires_at, t.id) > (%(last)s::bigint, %(after)s)
        and not ({_LEASED})
    order by t.expires_at, t.id
    limit %(limit)s
"""  # noqa: S608 - constant clauses

_SPACES = """
    select s.tenant, s.tier, s.owner, s.agent, s.session
    from recollect.spaces s
    where s.tenant = %(tenant)s
        and exists (select 1 from recollect.tasks t where t.tenant = %(tenant)s and t.space = s.id)
"""

_VERSIONS = f"""
    select version, fence, schema, state, sha256, at
    from recollect.checkpoints
    where tenant = %(tenant)s and space = {SPACE} and task = %(task)s
        and (%(version)s::bigint is null or version = %(version)s)
    order by version desc
    limit %(limit)s
"""  # noqa: S608 - constant clauses

_STEPS = f"""
    select key, status, attempts, fence, idempotency_key, input_sha, result, error, at
    from recollect.steps
    where tenant = %(tenant)s and space = {SPACE} and task = %(task)s
    order by first
"""  # noqa: S608 - constant clauses


@dataclass(frozen=True, slots=True)
class Page:
    """Which tasks to list."""

    space: Space
    status: TaskStatus | None
    limit: int
    after: str | None


async def task(work: Work, space: Space, id: str, *, hidden: bool) -> Task | None:
    row = await work.row(_TASK, _of(space, id))
    found = None if row is None else task_of(row)
    return None if found is None or (not hidden and leases.expired(found, work.now)) else found


async def listed(work: Work, page: Page) -> list[Task]:
    values = {
        **named(page.space),
        "now": to_micros(work.now),
        "status": page.status,
        "after": kept(page.after or ""),
        "limit": page.limit,
    }
    return [task_of(row) for row in await work.rows(_LISTED, values)]


async def expired(work: Work, space: Space, before: datetime, limit: int, after: Task | None) -> list[Task]:
    now = to_micros(work.now)
    values = {
        **named(space),
        "now": now,
        "before": min(to_micros(before), now),
        "last": _BEFORE_ALL if after is None else micros(after.expires_at),
        "after": "" if after is None else kept(after.id),
        "limit": limit,
    }
    return [task_of(row) for row in await work.rows(_EXPIRED, values)]


async def spaces(work: Work, tenant: str) -> list[Space]:
    return sorted((space_of(row) for row in await work.rows(_SPACES, {"tenant": kept(tenant)})), key=str)


async def checkpoint(work: Work, space: Space, id: str, version: int | None, *, hidden: bool) -> Checkpoint | None:
    found = await _versions(work, space, id, {"version": version, "limit": 1}, hidden=hidden)
    return found[0] if found else None


async def checkpoints(work: Work, space: Space, id: str, *, hidden: bool) -> list[Checkpoint]:
    return await _versions(work, space, id, {"version": None, "limit": _ALL}, hidden=hidden)


async def steps(work: Work, space: Space, id: str, *, hidden: bool) -> list[Step]:
    if await task(work, space, id, hidden=hidden) is None:
        return []
    return [_step(row) for row in await work.rows(_STEPS, _of(space, id))]


async def _versions(work: Work, space: Space, id: str, which: Values, *, hidden: bool) -> list[Checkpoint]:
    if await task(work, space, id, hidden=hidden) is None:
        return []
    return [_checkpoint(row) for row in await work.rows(_VERSIONS, _of(space, id) | which)]


def _of(space: Space, id: str) -> Values:
    return {**named(space), "task": handle(id)}


def intact(state: bytes, checksum: bytes) -> bool:
    return hashlib.sha256(state).digest() == checksum


@reads("the row of a checkpoint")
def _checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    version, fence, schema, state, checksum, at = row
    text = bytes(state).decode("utf-8", "replace")
    return Checkpoint(version, fence, schema, text, from_micros(at), intact(state, checksum))


@reads("the note about a step")
def _step(row: tuple[Any, ...]) -> Step:
    return Step(
        key=given(row[0]),
        status=one_of("status", row[1], STEP_STATUSES),
        attempts=row[2],
        fence=row[3],
        idempotency_key=given(row[4]),
        input_sha=maybe_given(row[5]),
        result=maybe_given(row[6]),
        error=maybe_given(row[7]),
        at=from_micros(row[8]),
    )
