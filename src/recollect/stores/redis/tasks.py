"""Tasks as they are read: rows in a table for each space, in the order of their names and of their ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from recollect.stores import leases
from recollect.stores.base import Checkpoint, Step, Task
from recollect.stores.ops import TaskStatus
from recollect.stores.redis import keys
from recollect.stores.redis.server import Server
from recollect.stores.redis.values import checkpoint_of, end_of, moment, step_of, task_from
from recollect.values import Space

_PAGE = 200
_ALL = b"*"


@dataclass(frozen=True, slots=True)
class Page:
    """Which tasks to list."""

    space: Space
    status: TaskStatus | None
    limit: int
    after: str | None


class TaskTable:
    """What is asked of tasks. Without a moment nothing is hidden."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def task(self, name: keys.TaskName, now: datetime | None) -> Task | None:
        row = await self._server.command("HGET", keys.table(name[0]), keys.raw(name[1]))
        return _seen(name, row, now)

    async def listed(self, page: Page, now: datetime) -> list[Task]:
        found: list[Task] = []
        start = b"-" if not page.after else b"(" + keys.raw(page.after)
        if not page.limit:
            return []
        async for names in self._pages(keys.names(page.space), start, b"+"):
            for task in await self._rows(page.space, names):
                if page.status in (None, task.status) and not leases.expired(task, now):
                    found.append(task)
                    if len(found) == page.limit:
                        return found
        return found

    async def expired(
        self, space: Space, before: datetime, limit: int, after: Task | None, now: datetime
    ) -> list[Task]:
        found: list[Task] = []
        start = b"-" if after is None else b"(" + end_of(after) + keys.raw(after.id)
        # Ends are `MOMENT:name`, and no name begins with what comes after a colon and belongs to the same moment.
        stop = b"(" + moment(before) + b";"
        if not limit:
            return []
        async for ends in self._pages(keys.ends(space), start, stop):
            names = [end.partition(b":")[2] for end in ends]
            for task in await self._rows(space, names):
                if leases.expired_by(task, before, now):
                    found.append(task)
                    if len(found) == limit:
                        return found
        return found

    async def checkpoint(self, name: keys.TaskName, version: int | None, now: datetime | None) -> Checkpoint | None:
        wanted = b"" if version is None else b"%d" % version
        kept = await self._versions(name, wanted, now)
        return kept[0] if kept else None

    async def checkpoints(self, name: keys.TaskName, now: datetime | None) -> list[Checkpoint]:
        kept = await self._versions(name, _ALL, now)
        return sorted(kept, key=lambda one: one.version, reverse=True)

    async def steps(self, name: keys.TaskName, now: datetime | None) -> list[Step]:
        where = (keys.table(name[0]), keys.of_task(b"steps", name), keys.of_task(b"course", name))
        row, *notes = await self._server.script("task", where, (keys.raw(name[1]), b"")) or [None]
        if _seen(name, row, now) is None:
            return []
        return [step_of(key, note) for key, note in zip(notes[::2], notes[1::2], strict=True)]

    async def damaged(self) -> list[str]:
        """The versions whose checksum does not fit, a sentence each."""
        found = []
        for key in await self._server.names(keys.ROOT + b"*:versions:*"):
            told = await self._server.command("HGETALL", key)
            versions = told.items() if isinstance(told, dict) else zip(told[::2], told[1::2], strict=True)
            task = key.partition(b"}:versions:")[2].decode("utf-8", "replace")
            found += [
                f"version {int(version)} of task {task!r} is damaged; an older one is used in its place"
                for version, value in versions
                if not checkpoint_of(version, value).intact
            ]
        return found

    async def _versions(self, name: keys.TaskName, wanted: bytes, now: datetime | None) -> list[Checkpoint]:
        where = (keys.table(name[0]), keys.of_task(b"versions", name))
        row, *kept = await self._server.script("task", where, (keys.raw(name[1]), wanted)) or [None]
        if _seen(name, row, now) is None:
            return []
        return [checkpoint_of(version, state) for version, state in zip(kept[::2], kept[1::2], strict=True)]

    async def _pages(self, key: bytes, start: bytes, stop: bytes) -> AsyncIterator[list[bytes]]:
        while True:
            page = await self._server.command("ZRANGEBYLEX", key, start, stop, "LIMIT", 0, _PAGE)
            if page:
                yield page
            if len(page) < _PAGE:
                return
            start = b"(" + page[-1]

    async def _rows(self, space: Space, names: list[bytes]) -> list[Task]:
        rows = await self._server.command("HMGET", keys.table(space), *names)
        tasks = (task_from(name.decode(), row or b"") for name, row in zip(names, rows, strict=True))
        return [task for task in tasks if task is not None]


def _seen(name: keys.TaskName, row: bytes | None, now: datetime | None) -> Task | None:
    task = task_from(name[1], row or b"")
    return None if task is None or (now is not None and leases.expired(task, now)) else task
