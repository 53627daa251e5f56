"""Rules of tasks, leases and fences as pure functions, so that every backend applies the same ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from recollect.clock import to_utc
from recollect.errors import Conflict, FencedOut, LeaseHeld, NotFound
from recollect.stores.writes import DropTask, Journal, Lease, Restore, Save, SetStatus, Task
from recollect.types import Space


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Request for the lease of a task."""

    space: Space
    task: str
    owner: str
    ttl: timedelta
    plan_hash: str | None = None


def is_leased(task: Task, now: datetime) -> bool:
    """Return whether the task has a valid lease. A lease renewed in the future is expired: a clock ran ahead."""
    if task.owner is None or task.renewed_at is None or task.lease_ttl is None:
        return False
    return task.renewed_at <= now < task.renewed_at + task.lease_ttl


def is_expired(task: Task, now: datetime) -> bool:
    """Return whether the task is hidden: its time is over and it has no valid lease."""
    return task.expires_at is not None and task.expires_at <= now and not is_leased(task, now)


def is_expired_by(task: Task, moment: datetime, now: datetime) -> bool:
    """Return whether the task is expired and was already expired at `moment`."""
    return is_expired(task, now) and task.expires_at is not None and task.expires_at <= moment


def check_drop(task: Task | None, drop: DropTask, now: datetime) -> None:
    """Raise `Conflict` if the task of an expiry deletion is missing, leased or not expired."""
    if drop.expired_by is None:
        return
    if task is None:
        raise Conflict(f"task {drop.task!r} does not exist; there is nothing to delete")
    if not is_expired_by(task, to_utc(drop.expired_by), now):
        raise Conflict(f"task {drop.task!r} had not expired by {drop.expired_by}; keep it")


def restore_task(task: Task | None, restore: Restore) -> Task:
    """Return the task of another store without its lease; raise `Conflict` if the id is in use."""
    if task is not None:
        raise Conflict(f"task {task.id!r} exists already; delete it first, or keep it")
    return replace(restore.known, owner=None, renewed_at=None, lease_ttl=None)


def claim_task(task: Task | None, claim: LeaseRequest, fence: int, now: datetime) -> Task:
    """Return the task with the new owner. A plan hash of None keeps the stored one."""
    if task is None:
        task = Task(claim.task, now, now)
    elif is_leased(task, now) and task.owner != claim.owner:
        raise LeaseHeld(f"task {task.id!r} is held by {task.owner!r} {_format_lease_end(task)}; wait until then")
    return replace(
        _refresh_expiry(task, now),
        status="running" if task.status == "ready" else task.status,
        fence=fence,
        owner=claim.owner,
        renewed_at=now,
        lease_ttl=claim.ttl,
        plan_hash=claim.plan_hash if claim.plan_hash is not None else task.plan_hash,
    )


def renew_lease(task: Task | None, lease: Lease, ttl: timedelta, now: datetime) -> Task:
    task = _check_fence(task, lease.task, lease.fence)
    if task.owner != lease.owner:
        raise FencedOut(f"the lease of task {task.id!r} was released; claim it again")
    return replace(_refresh_expiry(task, now), renewed_at=now, lease_ttl=ttl)


def release_lease(task: Task | None, lease: Lease, now: datetime) -> Task | None:
    """Return the task without an owner; None if the lease is no longer valid."""
    if task is None or (task.fence, task.owner) != (lease.fence, lease.owner):
        return None
    status = "ready" if task.status == "running" else task.status
    return replace(_refresh_expiry(task, now), status=status, owner=None, renewed_at=None, lease_ttl=None)


def save_version(task: Task | None, save: Save, now: datetime) -> Task:
    """Return the task at its next version."""
    if save.fence is not None:
        task = _check_fence(task, save.task, save.fence)
    elif task is not None and is_leased(task, now):
        raise LeaseHeld(
            f"task {task.id!r} is held by {task.owner!r} {_format_lease_end(task)}; save with its lease, or wait"
        )
    version = task.version if task is not None else 0
    if save.expect is not None and save.expect != version:
        raise Conflict(f"task {save.task!r} is at version {version}, not {save.expect}; {_describe_remedy(task, now)}")
    task = task or Task(save.task, now, now)
    ttl = save.ttl if save.ttl is not None else task.ttl
    return replace(
        task,
        version=version + 1,
        status=save.status or task.status,
        ttl=ttl,
        updated_at=now,
        expires_at=_compute_expiry(ttl, now),
    )


def apply_note(task: Task | None, write: Journal | SetStatus, now: datetime) -> Task:
    """Return the task after a journal note or a change of its status."""
    if write.fence is not None:
        task = _check_fence(task, write.task, write.fence)
    elif task is None:
        raise NotFound(f"task {write.task!r} does not exist; `tasks` lists the existing ones")
    status = write.status if isinstance(write, SetStatus) else task.status
    return _refresh_expiry(task if status == task.status else replace(task, status=status), now)


def build_lease(space: Space, task: Task) -> Lease:
    assert task.owner is not None
    assert task.renewed_at is not None
    assert task.lease_ttl is not None
    return Lease(space, task.id, task.owner, task.fence, task.renewed_at + task.lease_ttl)


def _check_fence(task: Task | None, name: str, fence: int) -> Task:
    if task is None:
        raise FencedOut(f"task {name!r} was deleted, and its lease with fence {fence}; discard the result")
    if task.fence != fence:
        raise FencedOut(
            f"task {name!r} was taken over: its fence is {task.fence}, got {fence}; discard the result, claim it again"
        )
    return task


def _refresh_expiry(task: Task, now: datetime) -> Task:
    """Return the task with its expiry counted from now."""
    if task.updated_at == now:  # several writes of one batch
        return task
    return replace(task, updated_at=now, expires_at=_compute_expiry(task.ttl, now))


def _compute_expiry(ttl: timedelta | None, now: datetime) -> datetime | None:
    return None if ttl is None else now + ttl


def _describe_remedy(task: Task | None, now: datetime) -> str:
    if task is None or not is_expired(task, now):
        return "restore it again"
    return (
        f"it expired on {task.expires_at:%Y-%m-%d at %H:%M} UTC and is not deleted yet: continue from version "
        f"{task.version}, or delete it to start over"
    )


def _format_lease_end(task: Task) -> str:
    assert task.renewed_at is not None
    assert task.lease_ttl is not None
    return f"until {task.renewed_at + task.lease_ttl:%Y-%m-%d %H:%M:%S} UTC"
