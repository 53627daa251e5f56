"""Selection of the rows that an erasure deletes: whole spaces, plus owned and derived rows in shared spaces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from recollect.durable.state_codec import decode_document
from recollect.erasure.subject import ErasureSubject
from recollect.errors import SchemaTooNew, StoreCorrupt
from recollect.stores.base import Log, Records, Store, Tasks
from recollect.stores.erasure import ErasureRecord, ErasureSelection, ErasureStore
from recollect.stores.filters import Where
from recollect.stores.writes import Delete, DropTask, Put, Write
from recollect.tiers import lifecycle_notes
from recollect.tiers.contradiction import ENDED_BY
from recollect.tiers.facts import get_valid_from
from recollect.tiers.indexing import find_all
from recollect.tiers.log_entries import read_all_entries
from recollect.tiers.procedural import hash_author, procedure_from_item, update_procedure_item
from recollect.types import MemoryItem, Scope, Space, make_content_id

_PAGE_SIZE = 500
_FAR_FUTURE = datetime(9000, 1, 1, tzinfo=UTC)


class ErasureSelector:
    """Selects the rows of one subject; it reads all stores to find what facts were made of."""

    def __init__(self, subject: ErasureSubject, stores: Sequence[ErasureStore]) -> None:
        self._subject = subject
        self._stores = stores

    async def select_rows(self, store: ErasureStore) -> ErasureSelection:
        """Return what is left to delete in a store; falsy if nothing is."""
        whole: list[Space] = []
        writes: list[Write] = []
        for space in await store.list_traced_spaces():
            coverage = self._subject.find_coverage(space)
            if coverage == "all":
                whole.append(space)
            elif coverage == "some":
                writes += await self._select_shared_rows(store, space)
        return ErasureSelection(tuple(whole), tuple(writes))

    async def _select_shared_rows(self, store: Store, space: Space) -> list[Write]:
        writes: list[Write] = []
        if isinstance(store, Tasks) and space.tier == "checkpoints":
            async for task_id in iter_task_ids(store, space):
                authors = await find_task_authors(store, space, task_id)
                if any(self._subject.covers(scope) for scope in authors):
                    writes.append(DropTask(space, task_id))
        if not isinstance(store, Records):
            return writes
        items = await find_all(store, Where(space))
        match space.tier:
            case "semantic":
                sources = await self._find_fact_sources(store, space, items)
                writes += build_fact_writes(space, items, self._subject.owns, sources)
            case "procedural":
                subject = self._subject
                author = None if subject.user is None else hash_author(subject.user, subject.session)
                writes += build_procedure_writes(space, items, subject.owns, author)
            case "lifecycle":
                writes += await self._select_notes(store, space, items)
            case _:
                writes += [Delete(space, item.id, expect=item.version) for item in items if self._subject.owns(item)]
        return writes

    async def _find_fact_sources(self, records: Records, space: Space, items: Iterable[MemoryItem]) -> FactSources:
        """Return the log entries to be erased, and the logs of the other entries that the facts were made of."""
        erased: set[str] = set()
        logs: list[tuple[Log, Space]] = []
        async for store, log in self._iter_logs(space.user):
            if self._subject.find_coverage(log) == "all":
                erased.update(entry.id for entry in await read_all_entries(store, log, hidden=True))
            elif log.tenant == space.tenant:
                logs.append((store, log))
        wanted = {id for item in items for id in item.derived_from} - erased
        surviving: dict[str, Space] = {}
        for log_store, log in logs if wanted else ():
            surviving |= {entry.id: log for entry in await log_store.entries(log, *wanted)}
        async for id, log in self._iter_repetitions(records, space):
            if self._subject.find_coverage(log) == "all":
                erased.add(id)
            elif id in wanted:
                surviving[id] = log
        return FactSources(frozenset(erased), surviving)

    async def _iter_logs(self, user: str) -> AsyncIterator[tuple[Log, Space]]:
        for store in self._stores:
            if isinstance(store, Log):
                for space in await store.list_traced_spaces():
                    if space.tier in ("conversation", "episodic") and space.user == user:
                        yield store, space

    async def _iter_repetitions(self, records: Records, facts: Space) -> AsyncIterator[tuple[str, Space]]:
        """Yield the entries of repeated statements with their logs, from the notes of the lifecycle."""
        for count in await records.spaces(facts.tenant):
            notes = count.space
            if notes.tier != "lifecycle" or notes.user != facts.user:
                continue
            for item in await find_all(records, Where(notes)):
                for session, _, entry_id in item.metadata.get("said", ()):
                    yield entry_id, replace(notes, tier="conversation", session=session)

    async def _select_notes(self, store: Records, space: Space, items: Sequence[MemoryItem]) -> list[Write]:
        """Return writes that remove the notes on an erased session, and on facts that are erased with it.

        Another session may repeat an erased fact, and was skipped since the fact was known. The notes on log positions
        are therefore deleted as well: all logs are read again, and known facts are not added twice.
        """
        session = self._subject.session
        facts = Space(space.tenant, "semantic", user=space.user)
        erased = {write.id for write in await self._select_shared_rows(store, facts) if isinstance(write, Delete)}
        texts = {make_content_id(facts, item.content) for item in await store.get(facts, *erased)}
        fact_notes = {lifecycle_notes.name_promoted_fact(id) for id in (*erased, *texts)}
        writes: list[Write] = []
        for item in items:
            values = _strip_note(item.metadata, session, erased)
            is_of_session = session is not None and item.id.endswith(f":{session}")
            is_position = bool(erased) and item.id.startswith(lifecycle_notes.LOG_POSITION_PREFIXES)
            is_empty = values != item.metadata and not any(values.values())
            if item.id in fact_notes or is_of_session or is_position or is_empty:
                writes.append(Delete(space, item.id, expect=item.version))
            elif values != item.metadata:
                writes.append(Put(item=replace(item, metadata=values), expect=item.version))
        return writes


def _strip_note(values: Mapping[str, Any], session: str | None, erased: set[str]) -> Mapping[str, Any]:
    """Return the values without occurrences in the session and without erased items."""
    stripped = dict(values)
    if "said" in stripped:
        stripped["said"] = [occurrence for occurrence in stripped["said"] if occurrence[0] != session]
        if not stripped["said"]:
            stripped.pop("kept", None)
    if "items" in stripped and isinstance(stripped["items"], list | tuple):
        stripped["items"] = [id for id in stripped["items"] if id not in erased]
    return stripped if stripped != dict(values) else values


async def iter_task_ids(store: Tasks, space: Space) -> AsyncIterator[str]:
    """Yield the ids of all tasks, including expired ones."""
    after = None
    while page := await store.tasks(space, limit=_PAGE_SIZE, after=after):
        for task in page:
            yield task.id
        after = page[-1].id
    last = None
    while page := await store.expired(space, _FAR_FUTURE, limit=_PAGE_SIZE, after=last):
        for task in page:
            yield task.id
        last = page[-1]


async def find_task_authors(store: Tasks, space: Space, task: str) -> list[Scope]:
    """Return the scopes for which the versions of a task were written, as far as they are readable."""
    scopes = []
    for version in await store.checkpoints(space, task, hidden=True):
        try:
            author = decode_document(version.schema, version.state).author
        except (StoreCorrupt, SchemaTooNew):
            continue
        if author is not None:
            user, session = author
            scopes.append(Scope(space.tenant, user, space.agent, session))
    return scopes


async def find_subject(store: ErasureStore, erasure: ErasureRecord) -> ErasureSubject | None:
    """Return the subject with the hash of an erasure, by trying all names; None if the store has no data of it."""
    salt, spaces = await store.salt(), await store.list_traced_spaces()
    for space in spaces:
        if subject := ErasureSubject.match(erasure, space, salt):
            return subject
    shared = [space for space in spaces if not all(getattr(space, part) for part in erasure.parts)]
    for scope in await _list_authors(store, shared):
        if subject := ErasureSubject.match(erasure, scope, salt):
            return subject
    return None


async def _list_authors(store: ErasureStore, spaces: Sequence[Space]) -> set[Scope]:
    """Return the scopes named by the items and tasks of shared spaces."""
    authors: set[Scope] = set()
    for space in spaces:
        if isinstance(store, Tasks):
            async for task in iter_task_ids(store, space):
                authors.update(await find_task_authors(store, space, task))
        if isinstance(store, Records):
            for item in await find_all(store, Where(space)):
                authors.add(item.scope)
                if item.turn is not None:
                    authors.add(replace(item.scope, session=item.turn.session or None))
    return authors


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
