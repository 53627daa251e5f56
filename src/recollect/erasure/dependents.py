"""Writes that remove erased data from derived facts and procedures: delete, derive again or leave. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from recollect.stores.writes import Delete, Put, Write
from recollect.tiers.contradiction import ENDED_BY
from recollect.tiers.facts import get_valid_from
from recollect.tiers.procedural import procedure_from_item, update_procedure_item
from recollect.types import MemoryItem, Scope, Space


@dataclass(frozen=True, slots=True)
class FactSources:
    """The log entries that facts were made of."""

    erased_entries: frozenset[str]
    """The ids of entries to be erased."""
    surviving_logs: Mapping[str, Space]
    """The other entries by id, also expired ones, each with its log."""


def build_fact_writes(
    space: Space, items: Sequence[MemoryItem], is_owned: Callable[[MemoryItem], bool], sources: FactSources
) -> list[Write]:
    """Return writes after which the space is as if the owned facts had never been stated.

    A fact that another user or session stated, too, stays as theirs. A fact derived only from erased ones is deleted.
    A fact that an erased one had ended holds again, or ends where the next fact began.
    """
    by_id = {item.id: item for item in items}
    owned = {item.id for item in items if is_owned(item)}
    surviving = {id: found for id in owned if (found := _find_surviving_sources(by_id[id], by_id, owned, sources))}
    erased = owned - surviving.keys()
    while derived := {
        item.id
        for item in items
        if item.id not in erased and item.id not in owned and _depends_only_on(item, by_id, erased, sources)
    }:
        erased |= derived
    writes: list[Write] = []
    for item in items:
        if item.id in erased:
            writes.append(Delete(space, item.id, expect=item.version))
            continue
        updated = unlink_item(item, by_id, erased, sources.erased_entries)
        if item.id in surviving:
            updated = _reassign_owner(updated, surviving[item.id], sources)
        if updated != item:
            writes.append(Put(item=updated, expect=item.version))
    return writes


def build_procedure_writes(
    space: Space, items: Sequence[MemoryItem], is_owned: Callable[[MemoryItem], bool], author: str | None
) -> list[Write]:
    """Return writes that delete the owned versions of procedures, and versions restored from them.

    If the current version is deleted, the newest remaining version becomes current. Notes on outcomes by `author` are
    removed; the outcomes stay counted.
    """
    writes: list[Write] = []
    by_key: dict[str | None, list[MemoryItem]] = {}
    for item in items:
        by_key.setdefault(item.key, []).append(item)
    for versions in by_key.values():
        versions.sort(key=lambda item: procedure_from_item(item).version)
        by_id = {item.id: item for item in versions}
        erased: set[str] = set()
        erased_versions: set[int] = set()
        for item in versions:
            procedure = procedure_from_item(item)
            if is_owned(item) or procedure.restored_from in erased_versions:
                erased.add(item.id)
                erased_versions.add(procedure.version)
        newest = next((item for item in reversed(versions) if item.id not in erased), None)
        needs_current = any(procedure_from_item(by_id[id]).current for id in erased)
        for item in versions:
            if item.id in erased:
                writes.append(Delete(space, item.id, expect=item.version))
                continue
            updated = _relink_successor(item, by_id, erased)
            if needs_current and item is newest:
                current = replace(procedure_from_item(updated), standing="current")
                updated = replace(update_procedure_item(updated, current), valid_to=None)
            updated = _remove_notes(updated, author)
            if updated != item:
                writes.append(Put(item=updated, expect=item.version))
    return writes


def _remove_notes(item: MemoryItem, author: str | None) -> MemoryItem:
    procedure = procedure_from_item(item)
    notes = tuple(note for note in procedure.outcomes.notes if author not in note.author_hashes)
    if notes == procedure.outcomes.notes:
        return item
    return update_procedure_item(item, replace(procedure, outcomes=replace(procedure.outcomes, notes=notes)))


def _find_surviving_sources(
    item: MemoryItem, by_id: Mapping[str, MemoryItem], owned: set[str], sources: FactSources
) -> tuple[str, ...]:
    """Return the sources of an item that stay: entries of others, and facts of others that it was derived from."""
    return tuple(
        id
        for id in item.derived_from
        if id in sources.surviving_logs or (id in by_id and id not in owned and by_id[id].superseded_by != item.id)
    )


def _depends_only_on(item: MemoryItem, by_id: Mapping[str, MemoryItem], erased: set[str], sources: FactSources) -> bool:
    """Return True if an item was derived from erased data only. Items merged into it are no source of its content."""
    origins = [id for id in item.derived_from if not (id in by_id and by_id[id].superseded_by == item.id)]
    return bool(origins) and all(id in erased or id in sources.erased_entries for id in origins)


def unlink_item(
    item: MemoryItem, by_id: Mapping[str, MemoryItem], erased: set[str], erased_entries: frozenset[str] = frozenset()
) -> MemoryItem:
    """Return a remaining item without its erased sources, ended by its next surviving successor."""
    origins = tuple(id for id in item.derived_from if id not in erased and id not in erased_entries)
    updated = item if origins == item.derived_from else replace(item, derived_from=origins)
    return _relink_successor(updated, by_id, erased)


def _relink_successor(item: MemoryItem, by_id: Mapping[str, MemoryItem], erased: set[str]) -> MemoryItem:
    """Return the item, ended by its next surviving successor if the one that ended it is erased."""
    successor_id = item.superseded_by
    if successor_id not in erased:
        return item
    seen: set[str] = set()
    while successor_id in erased and successor_id not in seen:
        seen.add(successor_id)
        successor_id = by_id[successor_id].superseded_by if successor_id in by_id else None
    metadata = {name: value for name, value in item.metadata.items() if name != ENDED_BY}
    if successor_id is None or successor_id in erased or successor_id not in by_id:
        return replace(item, superseded_by=None, valid_to=None, metadata=MappingProxyType(metadata))
    if ENDED_BY in item.metadata:
        metadata[ENDED_BY] = successor_id
    ends = get_valid_from(by_id[successor_id])
    ends = ends if item.valid_from is None else max(ends, item.valid_from)
    return replace(item, superseded_by=successor_id, valid_to=ends, metadata=MappingProxyType(metadata))


def _reassign_owner(item: MemoryItem, source_ids: tuple[str, ...], sources: FactSources) -> MemoryItem:
    """Return the item as that of the user or session that stated the same."""
    logs = [sources.surviving_logs[id] for id in source_ids if id in sources.surviving_logs]
    agent, session = (logs[0].agent, logs[0].session or None) if logs else (item.scope.agent, None)
    metadata = {name: value for name, value in item.metadata.items() if name != "session"}
    if session is not None and "session" in item.metadata:
        metadata["session"] = session
    kind, _, location = item.source.partition(":")
    source = item.source
    if location == item.scope.session:
        source = f"{kind}:{session}" if session else kind
    scope = Scope(item.scope.tenant, item.scope.user, agent, session)
    return replace(item, scope=scope, source=source, derived_from=source_ids, metadata=MappingProxyType(metadata))
