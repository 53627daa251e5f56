"""Export of a scope to JSON lines: every tier, page by page, in a stable order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from recollect.engine import list_vector_stores
from recollect.portability.jsonl import EXPORT_FORMAT, build_entry_line, build_item_line, is_portable
from recollect.portability.safe_file import EXPORT_MARK, ExportFile
from recollect.stores.factory import TierStores
from recollect.stores.filters import Where
from recollect.stores.overlay import iter_pages
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.working import WorkingMemory
from recollect.types import Progress, ProgressCallback, Scope, Space

_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The file, and the number of lines by tier."""

    path: Path
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ExportSource:
    """The scope that is exported, and its tiers."""

    scope: Scope
    stores: TierStores
    working: WorkingMemory
    open_conversation: Callable[[str], ConversationMemory]
    """Opens the conversation of a session by name."""


async def export_scope(
    source: ExportSource, path: Path, *, overwrite: bool, progress: ProgressCallback | None
) -> ExportReport:
    """Write the scope to a new file, which appears complete or not at all."""
    total = await _count_items(source)
    file = await asyncio.to_thread(ExportFile, path, overwrite=overwrite)
    counts: Counter[str] = Counter()
    try:
        scope = source.scope
        header = {
            EXPORT_MARK: EXPORT_FORMAT,
            "scope": {"tenant": scope.tenant, "user": scope.user, "agent": scope.agent},
        }
        await asyncio.to_thread(file.write, [header])
        async for lines in _iterate_lines(source):
            await asyncio.to_thread(file.write, lines)
            counts.update(line["tier"] for line in lines)
            if progress is not None:
                progress(Progress("export", counts.total(), max(total, counts.total())))
        await asyncio.to_thread(file.write, [{"end": counts.total()}])
        await asyncio.to_thread(file.finish)
    finally:
        await asyncio.to_thread(file.abandon)
    return ExportReport(path, dict(counts))


async def _iterate_lines(source: ExportSource) -> AsyncIterator[list[dict[str, Any]]]:
    records, scope = source.stores.records("semantic"), source.scope
    for space in (scope.space("semantic"), scope.space("quarantine"), replace(scope, session=None).space("lifecycle")):
        async for page in iter_pages(records, Where(space)):
            yield [build_item_line(item) for item in page if space.tier != "lifecycle" or is_portable(item)]
    async for lines in _iterate_procedures(source):
        yield lines
    log = source.stores.log("episodic")
    for space in await _list_sessions(source, "episodic"):
        after = 0
        while entries := await log.read(space, after=after, limit=_PAGE_SIZE):
            yield [build_entry_line("episodic", space.session, entry) for entry in entries]
            after = entries[-1].seq
    async for lines in _iterate_conversations(source):
        yield lines
    if not source.working.is_empty:
        yield [{"tier": "working", "snapshot": source.working.snapshot()}]


async def _iterate_procedures(source: ExportSource) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield all versions of a procedure together, because they are imported in one batch."""
    store, space = source.stores.records("procedural"), source.scope.space("procedural")
    keys: set[str] = set()
    async for page in iter_pages(store, Where(space)):
        keys.update(item.key for item in page if item.key is not None)
    for key in sorted(keys):
        versions = [item async for page in iter_pages(store, Where(space, key=key)) for item in page]
        yield [build_item_line(item) for item in sorted(versions, key=lambda item: (item.metadata["number"], item.id))]


async def _iterate_conversations(source: ExportSource) -> AsyncIterator[list[dict[str, Any]]]:
    for space in await _list_sessions(source, "conversation"):
        exported = await source.open_conversation(space.session).export()
        common = {"tier": "conversation", "session": space.session}
        # The summary comes first, so that a reader of the messages knows which of them it covers.
        yield [{**common, "about": {name: value for name, value in exported.items() if name != "messages"}}]
        messages = exported["messages"]
        for at in range(0, len(messages), _PAGE_SIZE):
            yield [{**common, "message": message} for message in messages[at : at + _PAGE_SIZE]]


async def _list_sessions(source: ExportSource, tier: Literal["conversation", "episodic"]) -> list[Space]:
    spaces = await source.stores.log(tier).logs(source.scope.space(tier))
    return sorted(spaces, key=lambda space: space.session)


async def _count_items(source: ExportSource) -> int:
    """Return the number of items; messages and episodes are counted as they are written."""
    spaces = {source.scope.space("semantic"), source.scope.space("quarantine"), source.scope.space("procedural")}
    stores = list_vector_stores(source.stores)
    counts = [count for store in stores for count in await store.spaces(source.scope.tenant)]
    return sum(count.items for count in counts if count.space in spaces)
