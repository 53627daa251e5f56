"""The rules of tasks, leases and fences, decided from a task alone so that every backend decides alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from recollect.clock import aware
from recollect.errors import Conflict, FencedOut, LeaseHeld, NotFound
from recollect.stores.base import Lease, Task
from recollect.stores.ops import DropTask, Journal, Restore, Save, SetStatus
from recollect.values import Space


@dataclass(frozen=True, slots=True)
class Claim:
    """The wish to work on a task."""

    space: Space
    task: str
    owner: str
    ttl: timedelta
    plan_hash: str | None = None


def leased(task: Task, now: datetime) -> bool:
    """Whether somebody holds the task. A clock that ran ahead must not block it: the future counts as expired."""
    if task.owner is None or task.renewed_at is None or task.lease_ttl is None:
        return False
    return task.renewed_at <= now < task.renewed_at + task.lease_ttl


def expired(task: Task, now: datetime) -> bool:
    """Whether a task is hidden. It is there for whoever goes on with it: a clock that runs fast must cost nothing."""
    return task.expires_at is not None and task.expires_at <= now and not leased(task, now)


def expired_by(task: Task, moment: datetime, now: datetime) -> bool:
    """Whether a task's time was up at an earlier moment, and nothing has happened to it since."""
    return expired(task, now) and task.expires_at is not None and task.expires_at <= moment


def check_drop(task: Task | None, drop: DropTask, now: datetime) -> None:
    """Refuse to drop for its age what is not that old, or what somebody works on."""
    if drop.expired_by is None:
        return
    if task is None:
        raise Conflict(f"task {drop.task!r} is gone already; there is nothing left to drop")
    if not expired_by(task, aware(drop.expired_by), now):
        raise Conflict(f"task {drop.task!r} has not expired, or not for long enough; leave it")


def restored(task: Task | None, restore: Restore) -> Task:
    """The task that another store knew, in nobody's hands."""
    if task is not None:
        raise Conflict(f"there is a task {task.id!r} here already; drop it first, or leave it")
    return replace(restore.known, owner=None, renewed_at=None, lease_ttl=None)


def claimed(task: Task | None, claim: Claim, fence: int, now: datetime) -> Task:
    """The task in its new owner's hands. A plan hash replaces the one before; None keeps it."""
    if task is None:
        task = _new(claim.task, now)
    elif leased(task, now) and task.owner != claim.owner:
        raise LeaseHeld(f"task {task.id!r} is held by {task.owner!r} {_until(task)}; wait, or let it finish")
    return replace(
        _alive(task, now),
        status="running" if task.status == "ready" else task.status,
        fence=fence,
        owner=claim.owner,
        renewed_at=now,
        lease_ttl=claim.ttl,
        plan_hash=claim.plan_hash if claim.plan_hash is not None else task.plan_hash,
    )


def renewed(task: Task | None, lease: Lease, ttl: timedelta, now: datetime) -> Task:
    task = _of_holder(task, lease.task, lease.fence)
    if task.owner != lease.owner:
        raise FencedOut(f"the lease of task {task.id!r} was given back; claim it again")
    return replace(_alive(task, now), renewed_at=now, lease_ttl=ttl)


def released(task: Task | None, lease: Lease, now: datetime) -> Task | None:
    """The task in nobody's hands; None when the lease is no longer the holder's to give."""
    if task is None or (task.fence, task.owner) != (lease.fence, lease.owner):
        return None
    status = "ready" if task.status == "running" else task.status
    return replace(_alive(task, now), status=status, owner=None, renewed_at=None, lease_ttl=None)


def saved(task: Task | None, save: Save, now: datetime) -> Task:
    """The task at its next version."""
    if save.fence is not None:
        task = _of_holder(task, save.task, save.fence)
    elif task is not None and leased(task, now):
        raise LeaseHeld(
            f"task {task.id!r} is held by {task.owner!r} {_until(task)}; save through its lease, or wait until then"
        )
    seen = task.version if task is not None else 0
    if save.expect is not None and save.expect != seen:
        raise Conflict(f"task {save.task!r} is at version {seen}, not {save.expect}; {_way_out(task, now)}")
    task = task or _new(save.task, now)
    ttl = save.ttl if save.ttl is not None else task.ttl
    return replace(
        task,
        version=seen + 1,
        status=save.status or task.status,
        ttl=ttl,
        updated_at=now,
        expires_at=_end(ttl, now),
    )


def noted(task: Task | None, write: Journal | SetStatus, now: datetime) -> Task:
    """The task after a note in its journal or a change of its status."""
    if write.fence is not None:
        task = _of_holder(task, write.task, write.fence)
    elif task is None:
        raise NotFound(f"there is no task {write.task!r}; `tasks` lists those there are")
    status = write.status if isinstance(write, SetStatus) else task.status
    return _alive(task if status == task.status else replace(task, status=status), now)


def lease_of(space: Space, task: Task) -> Lease:
    assert task.owner is not None
    assert task.renewed_at is not None
    assert task.lease_ttl is not None
    return Lease(space, task.id, task.owner, task.fence, task.renewed_at + task.lease_ttl)


def _of_holder(task: Task | None, name: str, fence: int) -> Task:
    if task is None:
        raise FencedOut(f"task {name!r} is gone, and with it the lease of fence {fence}; discard the result")
    if task.fence != fence:
        raise FencedOut(
            f"task {name!r} was taken over (fence {task.fence}, yours is {fence}); discard the result, claim it again"
        )
    return task


def _new(name: str, now: datetime) -> Task:
    return Task(
        id=name,
        status="ready",
        version=0,
        fence=0,
        owner=None,
        renewed_at=None,
        lease_ttl=None,
        plan_hash=None,
        ttl=None,
        expires_at=None,
        created_at=now,
        updated_at=now,
    )


def _alive(task: Task, now: datetime) -> Task:
    """Every sign of life puts a task's end off again."""
    if task.updated_at == now:  # several writes in one batch are one sign of life
        return task
    return replace(task, updated_at=now, expires_at=_end(task.ttl, now))


def _end(ttl: timedelta | None, now: datetime) -> datetime | None:
    return None if ttl is None else now + ttl


def _way_out(task: Task | None, now: datetime) -> str:
    if task is None or not expired(task, now):
        return "restore it again"
    return (
        f"it expired on {task.expires_at:%Y-%m-%d at %H:%M} UTC and is kept for a while: go on from version "
        f"{task.version}, or delete it to begin anew"
    )


def _until(task: Task) -> str:
    assert task.renewed_at is not None
    assert task.lease_ttl is not None
    return f"until {task.renewed_at + task.lease_ttl:%Y-%m-%d %H:%M:%S} UTC"
