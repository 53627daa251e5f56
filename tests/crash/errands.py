"""Errands: writers that note what was acknowledged to them, and afterwards what is wrong with what is there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta

from recollect.clock import system_clock
from recollect.errors import RecollectError, StoreUnavailable
from recollect.stores.ops import Append, Entry, Save
from recollect.stores.redis import RedisStore
from recollect.testing.samples import ADA, note
from recollect.values import Scope

HOUR = timedelta(hours=1)


@dataclass
class Errand:
    """One writer's log and task, and what it was told about them."""

    name: str
    owner: Scope = ADA
    appended: list[str] = field(default_factory=list)
    saved: int = 0
    doubtful: int = 0
    lost: int = 0
    refused: list[str] = field(default_factory=list)
    enough: int | None = None

    def __post_init__(self) -> None:
        self.log = replace(self.owner, session=self.name).space("conversation")
        self.tasks = self.owner.space("checkpoints")

    async def run(self, store: RedisStore, times: int) -> None:
        """Append and save by turns, each once: what is in doubt is left in doubt, and told."""
        lease = await store.claim(self.tasks, self.name, self.name, HOUR)
        for number in range(times):
            if self.enough is not None and self.saved >= self.enough:
                return
            entry = Entry(id=f"{self.name}.{number}", kind="user", content="x" * 50, at=system_clock())
            try:
                await store.write(Append(space=self.log, entry=entry))
                self.appended.append(entry.id)
                # Without `expect`, so that done twice it would be seen: the version would have grown by two.
                step = replace(note(f"step{number}", lease.fence), space=self.tasks, task=self.name)
                save = Save(space=self.tasks, task=self.name, state=f"[{number}]", fence=lease.fence, keep=2)
                await store.write(step, save)
                self.saved += 1
            except StoreUnavailable:
                self.doubtful += 1
            except RecollectError as error:
                self.refused.append(str(error))

    async def faults(self, store: RedisStore, *, may_lose: int = 0) -> list[str]:
        """What was lost, beyond so many of each kind, and what was doubled."""
        found = [f"{self.name}: {said}" for said in self.refused]
        there = [entry.id for entry in await store.read(self.log, limit=100_000)]
        kept = [id for id in self.appended if id in set(there)]
        lost, doubled = len(self.appended) - len(kept), len(there) - len(set(there))
        if lost > may_lose or doubled or [id for id in there if id in set(kept)] != kept:
            found.append(f"{self.name}: {lost} entries lost, {doubled} doubled")
        task = await store.task(self.tasks, self.name)
        version = 0 if task is None else task.version
        self.lost = lost + max(self.saved - version, 0)
        if not self.saved - may_lose <= version <= self.saved + self.doubtful:
            found.append(f"{self.name}: {self.saved} saves acknowledged, and version {version}")
        if len(await store.steps(self.tasks, self.name)) < self.saved - may_lose:
            found.append(f"{self.name}: steps lost")
        return found


async def run_all(errands: list[Errand], store: RedisStore, times: int) -> None:
    async with asyncio.TaskGroup() as group:
        for errand in errands:
            group.create_task(errand.run(store, times))


async def saved_again(errands: list[Errand]) -> None:
    """Until each of them was told of one save more: however slow the machine, something happens to every one."""
    before = [errand.saved for errand in errands]
    while any(errand.saved == then for errand, then in zip(errands, before, strict=True)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def all_faults(errands: list[Errand], store: RedisStore) -> list[str]:
    return [fault for errand in errands for fault in await errand.faults(store)]
