"""Tasks in dictionaries: the rules of leases and fences over the simplest storage there is."""

from __future__ import annotations

from datetime import datetime, timedelta

from recollect.stores import leases
from recollect.stores.base import Checkpoint, Lease, Step, Task
from recollect.stores.in_memory.undo import Undo
from recollect.stores.leases import Claim
from recollect.stores.ops import DropTask, Journal, Restore, Save, SetStatus, TaskStatus, TaskWrite
from recollect.values import Space

Name = tuple[Space, str]

_HIGHEST = "highest"


class TaskTable:
    """All tasks, with their versions and steps."""

    def __init__(self) -> None:
        self._tasks: dict[Name, Task] = {}
        self._versions: dict[Name, tuple[Checkpoint, ...]] = {}
        self._steps: dict[Name, tuple[Step, ...]] = {}
        self._fences: dict[Space, int] = {}
        self._past_fences: dict[str, int] = {}
        """The highest that was given in a space which is gone: it is not given again."""

    def apply(self, write: TaskWrite, now: datetime, undo: Undo) -> None:
        name = (write.space, write.task)
        held = self._tasks.get(name)
        match write:
            case DropTask():
                leases.check_drop(held, write, now)
                self._drop(name, undo)
            case Save():
                task = leases.saved(held, write, now)
                undo.set(self._tasks, name, task)
                self._save(name, task, write, undo)
            case Journal():
                undo.set(self._tasks, name, leases.noted(held, write, now))
                self._note(name, write, now, undo)
            case Restore():
                self._restore(name, leases.restored(held, write), write, undo)
            case SetStatus():
                undo.set(self._tasks, name, leases.noted(held, write, now))

    def claim(self, wish: Claim, now: datetime, undo: Undo) -> Lease:
        name = (wish.space, wish.task)
        held = self._tasks.get(name)
        # One sequence for the whole space: a fence is never given twice, not even after its task was dropped.
        fence = self._fences.get(wish.space, self._past_fences.get(_HIGHEST, 0)) + 1
        task = leases.claimed(held, wish, fence, now)
        undo.set(self._fences, wish.space, fence)
        undo.set(self._tasks, name, task)
        return leases.lease_of(wish.space, task)

    def renew(self, lease: Lease, ttl: timedelta, now: datetime, undo: Undo) -> Lease:
        name = (lease.space, lease.task)
        task = leases.renewed(self._tasks.get(name), lease, ttl, now)
        undo.set(self._tasks, name, task)
        return leases.lease_of(lease.space, task)

    def release(self, lease: Lease, now: datetime, undo: Undo) -> None:
        name = (lease.space, lease.task)
        task = leases.released(self._tasks.get(name), lease, now)
        if task is not None:
            undo.set(self._tasks, name, task)

    def task(self, name: Name, now: datetime | None) -> Task | None:
        """The task; without a moment, however long ago it expired."""
        task = self._tasks.get(name)
        return None if task is None or (now is not None and leases.expired(task, now)) else task

    def listed(
        self, space: Space, status: TaskStatus | None, limit: int, after: str | None, now: datetime
    ) -> list[Task]:
        found = [
            task
            for (owner, id), task in self._tasks.items()
            if owner == space and id > (after or "") and status in (None, task.status) and not leases.expired(task, now)
        ]
        return sorted(found, key=lambda task: task.id)[:limit]

    def expired(self, space: Space, before: datetime, limit: int, after: Task | None, now: datetime) -> list[Task]:
        found = [
            task
            for (owner, _), task in self._tasks.items()
            if owner == space and leases.expired_by(task, before, now) and (after is None or _end(task) > _end(after))
        ]
        return sorted(found, key=_end)[:limit]

    def spaces(self, tenant: str) -> list[Space]:
        return sorted({space for space, _ in self._tasks if space.tenant == tenant}, key=str)

    def held(self) -> list[Space]:
        return list(dict.fromkeys((*self._fences, *(space for space, _ in self._tasks))))

    def wipe(self, space: Space, undo: Undo) -> int:
        """Every task of a space; how many that was."""
        names = [name for name in self._tasks if name[0] == space]
        for name in names:
            self._drop(name, undo)
        highest = max(self._past_fences.get(_HIGHEST, 0), self._fences.get(space, 0))
        undo.set(self._past_fences, _HIGHEST, highest)
        undo.drop(self._fences, space)
        return len(names)

    def checkpoints(self, name: Name, now: datetime | None) -> list[Checkpoint]:
        if self.task(name, now) is None:
            return []
        return list(reversed(self._versions.get(name, ())))

    def steps(self, name: Name, now: datetime | None) -> list[Step]:
        return [] if self.task(name, now) is None else list(self._steps.get(name, ()))

    def tenants(self) -> set[str]:
        return {space.tenant for space, _ in self._tasks}

    def _restore(self, name: Name, task: Task, restore: Restore, undo: Undo) -> None:
        undo.set(self._tasks, name, task)
        undo.set(self._versions, name, tuple(sorted(restore.checkpoints, key=lambda one: one.version)))
        undo.set(self._steps, name, restore.steps)
        undo.set(self._fences, name[0], max(self._fences.get(name[0], 0), restore.highest_fence))

    def _save(self, name: Name, task: Task, save: Save, undo: Undo) -> None:
        new = Checkpoint(task.version, task.fence, save.schema, save.state, task.updated_at, intact=True)
        kept = [old for old in self._versions.get(name, ()) if old.version > task.version - save.keep]
        undo.set(self._versions, name, (*kept, new))

    def _note(self, name: Name, note: Journal, now: datetime, undo: Undo) -> None:
        new = Step(
            key=note.step,
            status=note.status,
            attempts=note.attempts,
            fence=note.fence,
            idempotency_key=note.idempotency_key,
            input_sha=note.input_sha,
            result=note.result,
            error=note.error,
            at=now,
        )
        steps = {step.key: step for step in self._steps.get(name, ())}
        steps[note.step] = new
        undo.set(self._steps, name, tuple(steps.values()))

    def _drop(self, name: Name, undo: Undo) -> None:
        undo.drop(self._tasks, name)
        undo.drop(self._versions, name)
        undo.drop(self._steps, name)


def _end(task: Task) -> tuple[datetime, str]:
    assert task.expires_at is not None
    return task.expires_at, task.id
