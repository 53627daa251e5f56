"""Tasks on their way: each with its versions and its journal, whole, and in nobody's hands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from recollect.memory.migration.part import MOST_TOGETHER, Sum, Tell, elsewhere, plain, together
from recollect.runtime.failpoints import reach
from recollect.stores.base import Task, Tasks
from recollect.stores.ops import Restore
from recollect.values import Space

_EVER = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Work:
    """The tasks of one agent, expired ones too."""

    space: Space
    source: Tasks
    target: Tasks
    notes: list[str] = field(default_factory=list)

    async def held(self) -> int:
        return len(await _ids(self.source, self.space))

    async def check(self) -> None:
        for id in await _ids(self.target, self.space):
            if await _whole(self.source, self.space, id) != await _whole(self.target, self.space, id):
                raise elsewhere(self.space, f"the task {id!r}")

    async def copy(self, tell: Tell) -> int:
        there = set(await _ids(self.target, self.space))
        missing = [id for id in await _ids(self.source, self.space) if id not in there]
        tell(len(there))
        copied = 0
        # One by one where states are large: each is read when its turn comes.
        for start in range(0, len(missing), MOST_TOGETHER):
            found = [await _whole(self.source, self.space, id, self.notes) for id in missing[start:][:MOST_TOGETHER]]
            for batch in together([one for one in found if one is not None], _size):
                reach("migrate.before")
                await self.target.write(*batch)
                reach("migrate.after")
                copied += len(batch)
                tell(len(batch))
        return copied

    async def hashes(self, tell: Tell) -> tuple[Sum, Sum]:
        here, there = Sum(), Sum()
        for store, total in ((self.source, here), (self.target, there)):
            for id in await _ids(store, self.space):
                known = await _whole(store, self.space, id)
                if known is not None:
                    total.add(plain(known))
                if store is self.source:
                    tell(1)
        return here, there


async def _ids(store: Tasks, space: Space) -> list[str]:
    return sorted({task.id async for task in _listed(store, space)})


async def _listed(store: Tasks, space: Space) -> AsyncIterator[Task]:
    after: str | None = None
    while page := await store.tasks(space, limit=MOST_TOGETHER, after=after):
        for task in page:
            yield task
        after = page[-1].id
    last: Task | None = None
    while page := await store.expired(space, _EVER, limit=MOST_TOGETHER, after=last):
        for task in page:
            yield task
        last = page[-1]


async def _whole(store: Tasks, space: Space, id: str, notes: list[str] | None = None) -> Restore | None:
    """A task as it is made anew. Leases are promises between processes and a store, and do not move."""
    task = await store.task(space, id, hidden=True)
    if task is None:
        return None
    kept = await store.checkpoints(space, id, hidden=True)
    if notes is not None:
        if task.owner is not None:
            notes.append(f"task {id!r} of {space} was in the hands of {task.owner!r}; its lease was not moved")
        notes += [
            f"version {one.version} of task {id!r} of {space} is damaged and was left behind"
            for one in kept
            if not one.intact
        ]
    free = replace(task, owner=None, renewed_at=None, lease_ttl=None)
    whole = tuple(one for one in kept if one.intact)
    return Restore(space, free, whole, tuple(await store.steps(space, id, hidden=True)))


def _size(restore: Restore) -> int:
    states = sum(len(one.state) for one in restore.checkpoints)
    return states + sum(len(step.result or "") + len(step.error or "") for step in restore.steps)
