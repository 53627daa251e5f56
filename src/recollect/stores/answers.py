"""What became of a write, for stores that have to look: the entries that logs hold of it, the version of a state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from recollect.errors import Conflict
from recollect.stores.ops import Append, Entry, Save, Write
from recollect.stores.task import Task
from recollect.values import Space

_TRIES = 16


class _Log(Protocol):
    async def write(self, *writes: Write) -> None: ...

    async def entries(self, space: Space, *ids: str) -> list[Entry]: ...


class _Tasks(Protocol):
    async def write(self, *writes: Write) -> None: ...

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None: ...


async def appended(log: _Log, appends: Sequence[Append]) -> list[Entry | None]:
    """Write entries, and read what the logs hold of each."""
    await log.write(*appends)
    return await held(log, appends)


async def held(log: _Log, appends: Sequence[Append]) -> list[Entry | None]:
    """What the logs hold of each of some entries, by its id."""
    ids: dict[Space, list[str]] = {}
    for one in appends:
        ids.setdefault(one.space, []).append(one.entry.id)
    try:
        async with asyncio.TaskGroup() as group:
            reading = {space: group.create_task(log.entries(space, *some)) for space, some in ids.items()}
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    found = {(space, entry.id): entry for space, read in reading.items() for entry in read.result()}
    return [found.get((one.space, one.entry.id)) for one in appends]


async def saved(tasks: _Tasks, save: Save) -> int:
    """Write a state that is to follow the version that is there, and so know its own."""
    if save.expect is not None:
        await tasks.write(save)
        return save.expect + 1
    for _ in range(_TRIES):
        task = await tasks.task(save.space, save.task, hidden=True)
        seen = 0 if task is None else task.version
        try:
            await tasks.write(replace(save, expect=seen))
        except Conflict as error:
            if type(error) is not Conflict:
                raise
            continue
        return seen + 1
    await tasks.write(save)
    task = await tasks.task(save.space, save.task, hidden=True)
    return 0 if task is None else task.version
