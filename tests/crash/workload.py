"""Writers that record their acknowledged writes and compare them with the store afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta

from recollect.clock import system_clock
from recollect.errors import RecollectError, StoreUnavailable
from recollect.stores.redis import RedisStore
from recollect.stores.writes import Append, Entry, Save
from recollect.testing.factories import ADA, make_note
from recollect.types import Scope

HOUR = timedelta(hours=1)


@dataclass
class Writer:
    """A writer with a log and a task of its own, and the acknowledgments it received."""

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
        """Append and save alternately without retries, and count the writes with an unknown outcome."""
        lease = await store.claim(self.tasks, self.name, self.name, HOUR)
        for number in range(times):
            if self.enough is not None and self.saved >= self.enough:
                return
            entry = Entry(id=f"{self.name}.{number}", kind="user", content="x" * 50, at=system_clock())
            try:
                await store.write(Append(space=self.log, entry=entry))
                self.appended.append(entry.id)
                # Without `expect`, so that a duplicate is visible: it increments the version twice.
                step = replace(make_note(f"step{number}", lease.fence), space=self.tasks, task=self.name)
                save = Save(space=self.tasks, task=self.name, state=f"[{number}]", fence=lease.fence, keep=2)
                await store.write(step, save)
                self.saved += 1
            except StoreUnavailable:
                self.doubtful += 1
            except RecollectError as error:
                self.refused.append(str(error))

    async def find_faults(self, store: RedisStore, *, may_lose: int = 0) -> list[str]:
        """Return the duplicated writes, and the lost ones beyond `may_lose` of each kind."""
        found = [f"{self.name}: {error}" for error in self.refused]
        present = [entry.id for entry in await store.read(self.log, limit=100_000)]
        kept = [id for id in self.appended if id in set(present)]
        lost, duplicated = len(self.appended) - len(kept), len(present) - len(set(present))
        if lost > may_lose or duplicated or [id for id in present if id in set(kept)] != kept:
            found.append(f"{self.name}: {lost} entries lost, {duplicated} duplicated")
        task = await store.task(self.tasks, self.name)
        version = 0 if task is None else task.version
        self.lost = lost + max(self.saved - version, 0)
        if not self.saved - may_lose <= version <= self.saved + self.doubtful:
            found.append(f"{self.name}: {self.saved} saves acknowledged, and version {version}")
        if len(await store.steps(self.tasks, self.name)) < self.saved - may_lose:
            found.append(f"{self.name}: steps lost")
        return found


async def run_all(writers: list[Writer], store: RedisStore, times: int) -> None:
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run(store, times))


async def wait_for_saves(writers: list[Writer]) -> None:
    """Wait until each writer has one more acknowledged save."""
    before = [writer.saved for writer in writers]
    while any(writer.saved == then for writer, then in zip(writers, before, strict=True)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def find_all_faults(writers: list[Writer], store: RedisStore) -> list[str]:
    return [fault for writer in writers for fault in await writer.find_faults(store)]
