"""Deletion of everything that came from one source, and of everything derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recollect.erasure.selection import build_procedure_writes, unlink_item
from recollect.stores.base import Log
from recollect.stores.factory import TierStores
from recollect.stores.filters import Where
from recollect.stores.writes import Delete, Drop, Entry, Put, Write
from recollect.tiers.conversation import covered_seq
from recollect.tiers.indexing import find_all
from recollect.tiers.log_entries import read_all_entries
from recollect.tiers.messages import ROLES
from recollect.types import MemoryItem, Scope, Space, get_site, get_turn_space, make_content_id
from recollect.validation import check_text

_BATCH_SIZE = 500

# Metadata keys that name the source of an entry.
_SOURCE_KEYS = ("source", "tool", "name", "url")


@dataclass(frozen=True, slots=True)
class SourceForgotten:
    """The ids of deleted facts, versions of procedures and log entries, and of facts that are current again."""

    source: str
    items: tuple[str, ...] = ()
    procedures: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.items or self.procedures or self.entries)


async def forget_source(stores: TierStores, scope: Scope, source: str) -> SourceForgotten:
    """Delete what came from `source` (a URL, a host or a tool name) in all sessions of the scope's user and agent.

    Log entries are deleted first, then what was derived from them; after an interruption, run it again.
    """
    check_text("source", source)
    entry_ids: list[str] = []
    records = stores.records("semantic")
    for tier in ("conversation", "episodic"):
        for space, ids in (await _delete_entries(stores.log(tier), scope.space(tier), source)).items():
            entry_ids += ids
            if tier == "conversation":
                await records.write(*(Delete(get_turn_space(scope), make_content_id(space, id)) for id in ids))
    facts = await find_all(records, Where(scope.space("semantic")))
    quarantined = await find_all(records, Where(scope.space("quarantine")))
    deleted = _find_derived_ids([*facts, *quarantined], source, set(entry_ids))
    by_id = {item.id: item for item in facts}
    unlinked = [(item, unlink_item(item, by_id, deleted)) for item in facts if item.id not in deleted]
    restored = [new for item, new in unlinked if new != item]
    # Puts first: after an interruption, the deleted items still lead to those that they had superseded.
    writes: list[Write] = [Put(item=item, expect=item.version) for item in restored]
    writes += [Delete(item.scope.space(item.tier), item.id) for item in (*facts, *quarantined) if item.id in deleted]
    for at in range(0, len(writes), _BATCH_SIZE):
        await records.write(*writes[at : at + _BATCH_SIZE])
    procedures, space = stores.records("procedural"), scope.space("procedural")
    versions = await find_all(procedures, Where(space))
    version_writes = build_procedure_writes(space, versions, lambda item: _is_from_source(item.source, source), None)
    if version_writes:
        await procedures.write(*version_writes)
    version_ids = sorted(write.id for write in version_writes if isinstance(write, Delete))
    current = [item.id for item in restored if item.superseded_by is None and item.valid_to is None]
    return SourceForgotten(source, tuple(sorted(deleted)), tuple(version_ids), tuple(entry_ids), tuple(current))


def _is_from_source(name: str | None, source: str) -> bool:
    return name is not None and source in (name, name.rstrip("/"), name.partition("#")[0], get_site(name))


def _find_derived_ids(items: list[MemoryItem], source: str, entry_ids: set[str]) -> set[str]:
    """Return the ids of items from the source, and of items derived from these or from the deleted entries."""
    deleted = {item.id for item in items if _is_from_source(item.source, source)}
    by_id = {item.id: item for item in items}
    while derived := {
        item.id for item in items if item.id not in deleted and _is_derived(item, deleted | entry_ids, by_id)
    }:
        deleted |= derived
    return deleted


def _is_derived(item: MemoryItem, lost: set[str], by_id: Mapping[str, MemoryItem]) -> bool:
    """Return True if a parent is lost, unless that parent was merged into the item because it said the same."""
    twins = (item.id, *item.derived_from)
    return any(id in lost and not (id in by_id and by_id[id].superseded_by in twins) for id in item.derived_from)


async def _delete_entries(log: Log, owner: Space, source: str) -> dict[Space, list[str]]:
    """Delete log entries from the source, and summaries of them; return their ids by log."""
    deleted: dict[Space, list[str]] = {}
    for space in await log.logs(owner):
        entries = await read_all_entries(log, space)
        found = [entry for entry in entries if _is_entry_from_source(space, entry, source)]
        if not found:
            continue
        first = found[0].seq
        if space.tier == "conversation":
            found += [entry for entry in entries if entry.kind not in ROLES and covered_seq(entry) >= first]
        await log.write(Drop(space, tuple(entry.seq for entry in found)))
        deleted[space] = [entry.id for entry in found]
    return deleted


def _is_entry_from_source(space: Space, entry: Entry, source: str) -> bool:
    metadata = entry.metadata.get("given") if space.tier == "episodic" else entry.metadata
    if not isinstance(metadata, Mapping):
        return False
    return any(isinstance(metadata.get(key), str) and _is_from_source(metadata[key], source) for key in _SOURCE_KEYS)
