"""Deletion of single entries, or of everything from one source, with everything derived from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recollect.erasure.selection import build_procedure_writes, unlink_item
from recollect.stores.factory import TierStores
from recollect.stores.filters import Where
from recollect.stores.writes import Delete, Drop, Entry, Put, Write
from recollect.tiers.conversation import covered_seq
from recollect.tiers.indexing import find_all
from recollect.tiers.log_entries import read_all_entries
from recollect.tiers.messages import ROLES
from recollect.types import MemoryItem, Scope, Space, Tier, get_site, get_turn_space, make_content_id
from recollect.validation import check_text

_BATCH_SIZE = 500
_LOG_TIERS: tuple[Tier, ...] = ("conversation", "episodic")

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
    for tier in _LOG_TIERS:
        log = stores.log(tier)
        for space in await log.logs(scope.space(tier)):
            found = [
                entry for entry in await read_all_entries(log, space) if _is_entry_from_source(space, entry, source)
            ]
            entry_ids += await _delete_entries(stores, space, found)
    deleted, restored = await _delete_facts(stores, scope, lambda item: _is_from_source(item.source, source), entry_ids)
    version_ids = await _delete_procedures(stores, scope, lambda item: _is_from_source(item.source, source))
    current = [item.id for item in restored if item.superseded_by is None and item.valid_to is None]
    return SourceForgotten(source, tuple(sorted(deleted)), tuple(version_ids), tuple(entry_ids), tuple(current))


async def forget_entry(stores: TierStores, scope: Scope, id: str) -> bool:
    """Delete a message or an episode by its id, with the other entry of its turn, and what was derived from them.

    Return False if no session of the scope's user and agent has an entry with this id.
    """
    entry_ids: list[str] = []
    for tier in _LOG_TIERS:
        log = stores.log(tier)
        for space in await log.logs(scope.space(tier), hidden=True):
            entry_ids += await _delete_entries(stores, space, await log.entries(space, id))
    if entry_ids:
        await _delete_facts(stores, scope, lambda _: False, entry_ids)
    return bool(entry_ids)


async def forget_procedure_version(stores: TierStores, scope: Scope, id: str) -> bool:
    """Delete a version of a procedure by its id; return False if there is none."""
    return bool(await _delete_procedures(stores, scope, lambda item: item.id == id))


async def _delete_entries(stores: TierStores, space: Space, entries: Sequence[Entry]) -> list[str]:
    """Delete entries of a log, the summaries that cover them, and their items in the turn index; return their ids."""
    if not entries:
        return []
    log, deleted = stores.log(space.tier), list(entries)
    if space.tier == "conversation":
        first = min(entry.seq for entry in entries)
        every = await read_all_entries(log, space)
        deleted += [entry for entry in every if entry.kind not in ROLES and covered_seq(entry) >= first]
    await log.write(Drop(space, tuple(entry.seq for entry in deleted)))
    ids = [entry.id for entry in deleted]
    if space.tier == "conversation":
        turns = get_turn_space(Scope(space.tenant, space.user, space.agent))
        await stores.records("semantic").write(*(Delete(turns, make_content_id(space, id)) for id in ids))
    return ids


async def _delete_facts(
    stores: TierStores, scope: Scope, is_deleted: Callable[[MemoryItem], bool], entry_ids: Sequence[str]
) -> tuple[set[str], list[MemoryItem]]:
    """Delete facts, and those that were derived from them or from deleted entries; return also the restored ones."""
    records = stores.records("semantic")
    facts = await find_all(records, Where(scope.space("semantic")))
    quarantined = await find_all(records, Where(scope.space("quarantine")))
    deleted = _find_derived_ids([*facts, *quarantined], is_deleted, set(entry_ids))
    by_id = {item.id: item for item in facts}
    unlinked = [(item, unlink_item(item, by_id, deleted)) for item in facts if item.id not in deleted]
    restored = [new for item, new in unlinked if new != item]
    # Puts first: after an interruption, the deleted items still lead to those that they had superseded.
    writes: list[Write] = [Put(item=item, expect=item.version) for item in restored]
    writes += [Delete(item.scope.space(item.tier), item.id) for item in (*facts, *quarantined) if item.id in deleted]
    for at in range(0, len(writes), _BATCH_SIZE):
        await records.write(*writes[at : at + _BATCH_SIZE])
    return deleted, restored


async def _delete_procedures(stores: TierStores, scope: Scope, is_deleted: Callable[[MemoryItem], bool]) -> list[str]:
    procedures, space = stores.records("procedural"), scope.space("procedural")
    writes = build_procedure_writes(space, await find_all(procedures, Where(space)), is_deleted, None)
    if writes:
        await procedures.write(*writes)
    return sorted(write.id for write in writes if isinstance(write, Delete))


def _is_from_source(name: str | None, source: str) -> bool:
    return name is not None and source in (name, name.rstrip("/"), name.partition("#")[0], get_site(name))


def _find_derived_ids(
    items: list[MemoryItem], is_deleted: Callable[[MemoryItem], bool], entry_ids: set[str]
) -> set[str]:
    """Return the ids of deleted items, and of items derived from these or from the deleted entries."""
    deleted = {item.id for item in items if is_deleted(item)}
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


def _is_entry_from_source(space: Space, entry: Entry, source: str) -> bool:
    metadata = entry.metadata.get("given") if space.tier == "episodic" else entry.metadata
    if not isinstance(metadata, Mapping):
        return False
    return any(isinstance(metadata.get(key), str) and _is_from_source(metadata[key], source) for key in _SOURCE_KEYS)
