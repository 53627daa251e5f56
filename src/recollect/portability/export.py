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
from recollect.tiers.indexing import find_all
from recollect.tiers.log_entries import read_all_entries
from recollect.tiers.working import WorkingMemory
from recollect.types import Progress, ProgressCallback, Scope, Space


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
    procedures = await find_all(source.stores.records("procedural"), Where(scope.space("procedural")))
    # The versions of a procedure follow each other, because they are imported in one batch.
    procedures.sort(key=lambda item: (item.key or "", item.metadata["number"], item.id))
    yield [build_item_line(item) for item in procedures]
    for space in await _list_sessions(source, "episodic"):
        entries = await read_all_entries(source.stores.log("episodic"), space)
        yield [build_entry_line("episodic", space.session, entry) for entry in entries]
    for space in await _list_sessions(source, "conversation"):
        about = await source.open_conversation(space.session).export()
        messages = about.pop("messages")
        # The summary comes first, so that a reader of the messages knows which of them it covers.
        contents = [{"about": about}, *({"message": message} for message in messages)]
        yield [{"tier": "conversation", "session": space.session, **content} for content in contents]
    if not source.working.is_empty:
        yield [{"tier": "working", "snapshot": source.working.snapshot()}]


async def _list_sessions(source: ExportSource, tier: Literal["conversation", "episodic"]) -> list[Space]:
    spaces = await source.stores.log(tier).logs(source.scope.space(tier))
    return sorted(spaces, key=lambda space: space.session)


async def _count_items(source: ExportSource) -> int:
    """Return the number of items; messages and episodes are counted as they are written."""
    spaces = {source.scope.space("semantic"), source.scope.space("quarantine"), source.scope.space("procedural")}
    stores = list_vector_stores(source.stores)
    counts = [count for store in stores for count in await store.spaces(source.scope.tenant)]
    return sum(count.items for count in counts if count.space in spaces)
