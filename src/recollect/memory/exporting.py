"""A scope as JSON lines: every tier of it, page by page, in an order that depends on nothing but what is kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recollect.memory.export_file import MARK, NewFile
from recollect.memory.export_lines import FORMAT, entry_line, is_portable, item_line
from recollect.stores.base import Records
from recollect.stores.connect import Stores
from recollect.stores.where import Where
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.working import WorkingMemory
from recollect.values import MemoryItem, Scope, Space

Progress = Callable[[int, int], None]
"""Called with the lines so far and how many there will be, as far as that is known."""

_PAGE = 500


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written: the lines of each tier."""

    path: Path
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Exported:
    """Whose memory is exported, and where it is."""

    scope: Scope
    stores: Stores
    working: WorkingMemory
    conversation: Callable[[str], ConversationMemory]
    """The conversation of a session, by its name."""


async def export(memory: Exported, path: Path, *, overwrite: bool, progress: Progress | None) -> ExportReport:
    """Write it to a new file; whatever goes wrong, there is the whole file or none."""
    total = await _expected(memory)
    file = await asyncio.to_thread(NewFile, path, overwrite=overwrite)
    counted: Counter[str] = Counter()
    try:
        scope = memory.scope
        header = {MARK: FORMAT, "scope": {"tenant": scope.tenant, "user": scope.user, "agent": scope.agent}}
        await asyncio.to_thread(file.write, [header])
        async for lines in _pages(memory):
            await asyncio.to_thread(file.write, lines)
            counted.update(line["tier"] for line in lines)
            if progress is not None:
                progress(counted.total(), max(total, counted.total()))
        await asyncio.to_thread(file.write, [{"end": counted.total()}])
        await asyncio.to_thread(file.finish)
    finally:
        await asyncio.to_thread(file.abandon)
    return ExportReport(path, dict(counted))


async def _pages(memory: Exported) -> AsyncIterator[list[dict[str, Any]]]:
    semantic = memory.stores.records("semantic")
    async for page in _items(semantic, Where(memory.scope.space("semantic"))):
        yield [item_line(item) for item in page]
    async for page in _items(semantic, Where(memory.scope.space("quarantine"))):
        yield [item_line(item) for item in page]
    async for page in _items(semantic, Where(replace(memory.scope, session=None).space("lifecycle"))):
        yield [item_line(item) for item in page if is_portable(item)]
    async for lines in _procedures(memory):
        yield lines
    async for lines in _episodes(memory):
        yield lines
    async for lines in _conversations(memory):
        yield lines
    if not is_blank(memory.working):
        yield [{"tier": "working", "snapshot": memory.working.snapshot()}]


async def _items(store: Records, where: Where) -> AsyncIterator[list[MemoryItem]]:
    last: MemoryItem | None = None
    while page := await store.find(where, limit=_PAGE, after=last):
        yield page
        last = page[-1]


async def _procedures(memory: Exported) -> AsyncIterator[list[dict[str, Any]]]:
    """All versions of a procedure together, since they come back together or not at all."""
    store, space = memory.stores.records("procedural"), memory.scope.space("procedural")
    keys: set[str] = set()
    async for page in _items(store, Where(space)):
        keys.update(item.key for item in page if item.key is not None)
    for key in sorted(keys):
        versions = [item async for page in _items(store, Where(space, key=key)) for item in page]
        yield [item_line(item) for item in sorted(versions, key=lambda item: (item.metadata["number"], item.id))]


async def _episodes(memory: Exported) -> AsyncIterator[list[dict[str, Any]]]:
    log = memory.stores.log("episodic")
    for space in await _sessions(memory, "episodic"):
        after = 0
        while page := await log.read(space, after=after, limit=_PAGE):
            yield [entry_line("episodic", space.session, entry) for entry in page]
            after = page[-1].seq


async def _conversations(memory: Exported) -> AsyncIterator[list[dict[str, Any]]]:
    for space in await _sessions(memory, "conversation"):
        told = await memory.conversation(space.session).export()
        named = {"tier": "conversation", "session": space.session}
        # The summary first: whoever reads the messages then knows already how far it reaches.
        yield [{**named, "about": {name: value for name, value in told.items() if name != "messages"}}]
        messages = told["messages"]
        for at in range(0, len(messages), _PAGE):
            yield [{**named, "message": message} for message in messages[at : at + _PAGE]]


async def _sessions(memory: Exported, tier: Any) -> list[Space]:
    spaces = await memory.stores.log(tier).logs(memory.scope.space(tier))
    return sorted(spaces, key=lambda space: space.session)


async def _expected(memory: Exported) -> int:
    """How many items there are; messages and episodes are counted when they come."""
    wanted = {memory.scope.space("semantic"), memory.scope.space("quarantine"), memory.scope.space("procedural")}
    both = (memory.stores.records("semantic"), memory.stores.records("procedural"))
    stores = {id(store): store for store in both}.values()
    counts = [count for store in stores for count in await store.spaces(memory.scope.tenant)]
    return sum(count.items for count in counts if count.space in wanted)


def is_blank(working: WorkingMemory) -> bool:
    """Whether there is nothing in mind."""
    held = (working.task, working.subgoals, working.results, working.scratchpad, working.variables)
    return not any(held) and not working.items and not working.summaries
