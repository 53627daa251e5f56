"""Selection of the rows that an erasure deletes: whole spaces, plus owned and derived rows in shared spaces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from recollect.durable.state_codec import decode_document
from recollect.erasure.dependents import FactSources, build_fact_writes, build_procedure_writes
from recollect.erasure.subject import ErasureSubject
from recollect.errors import SchemaTooNew, StoreCorrupt
from recollect.stores.base import Log, Records, Store, Tasks
from recollect.stores.erasure import ErasureRecord, ErasureSelection, ErasureStore
from recollect.stores.filters import Where
from recollect.stores.writes import Delete, DropTask, Put, Write
from recollect.tiers import lifecycle_notes
from recollect.tiers.log_entries import read_all_entries
from recollect.tiers.procedural import hash_author
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
            match self._subject.find_coverage(space):
                case "all":
                    whole.append(space)
                case "some":
                    writes += await self._select_shared_rows(store, space)
                case _:
                    continue
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
        items = [item async for item in iter_items(store, space)]
        match space.tier:
            case "semantic":
                writes += build_fact_writes(
                    space, items, self._subject.owns, await self._find_fact_sources(store, space, items)
                )
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
            async for item in iter_items(records, notes):
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


async def iter_items(store: Records, space: Space) -> AsyncIterator[MemoryItem]:
    """Yield every item of a space, including hidden ones."""
    after: MemoryItem | None = None
    while page := await store.find(Where(space), limit=_PAGE_SIZE, after=after):
        for item in page:
            yield item
        after = page[-1]


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
            scopes.append(Scope(space.tenant, author.user, space.agent, author.session))
    return scopes


async def find_subject(store: ErasureStore, erasure: ErasureRecord) -> ErasureSubject | None:
    """Return the subject with the hash of an erasure, by trying all names; None if the store has no data of it."""
    salt = await store.salt()
    spaces = await store.list_traced_spaces()
    for names in spaces:
        if subject := _match_subject(erasure, names, salt):
            return subject
    shared = [space for space in spaces if not all(getattr(space, part) for part in erasure.parts)]
    for scope in await _list_authors(store, shared):
        if subject := _match_subject(erasure, scope, salt):
            return subject
    return None


def _match_subject(erasure: ErasureRecord, names: Scope | Space, salt: bytes) -> ErasureSubject | None:
    subject = ErasureSubject.from_scope(erasure.parts, names)
    return subject if subject is not None and subject.digest(salt) == erasure.subject else None


async def _list_authors(store: ErasureStore, spaces: Sequence[Space]) -> set[Scope]:
    """Return the scopes named by the items and tasks of shared spaces."""
    authors: set[Scope] = set()
    for space in spaces:
        if isinstance(store, Tasks):
            async for task in iter_task_ids(store, space):
                authors.update(await find_task_authors(store, space, task))
        if isinstance(store, Records):
            async for item in iter_items(store, space):
                authors.add(item.scope)
                if item.turn is not None:
                    authors.add(replace(item.scope, session=item.turn.session or None))
    return authors
