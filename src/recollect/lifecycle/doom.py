"""Which rows of a store an erasure takes: whole spaces, and of those that others share what is theirs or follows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from recollect.errors import SchemaTooNew, StoreCorrupt
from recollect.lifecycle import marks
from recollect.lifecycle.derived import Grounds, facts_without, procedures_without
from recollect.lifecycle.subject import Subject
from recollect.runtime.codec import decode
from recollect.stores.base import Log, Records, Store, Tasks
from recollect.stores.erasing import Doomed, Erasing
from recollect.stores.ops import Delete, DropTask, Put, Write
from recollect.stores.where import Where
from recollect.tiers.outcomes import author_of
from recollect.values import MemoryItem, Scope, Space, content_id

_PAGE = 500
_LATER_THAN_ALL = datetime(9000, 1, 1, tzinfo=UTC)


class Doom:
    """Looks a subject up in stores, and says what of each store has to go."""

    def __init__(self, subject: Subject, stores: Sequence[Erasing]) -> None:
        self._subject = subject
        self._stores = stores

    async def of(self, store: Erasing) -> Doomed:
        """What is left to delete here; falsy when nothing is."""
        whole: list[Space] = []
        writes: list[Write] = []
        for space in await store.holdings():
            match self._subject.reach(space):
                case "all":
                    whole.append(space)
                case "some":
                    writes += await self._shared(store, space)
                case _:
                    continue
        return Doomed(tuple(whole), tuple(writes))

    async def _shared(self, store: Store, space: Space) -> list[Write]:
        """Of a space that is not theirs alone."""
        writes: list[Write] = []
        if isinstance(store, Tasks) and space.tier == "checkpoints":
            writes += await self._tasks(store, space)
        if not isinstance(store, Records):
            return writes
        items = [item async for item in items_of(store, space)]
        match space.tier:
            case "semantic":
                writes += facts_without(space, items, self._subject.owns, await self._known(store, space, items))
            case "procedural":
                writes += procedures_without(space, items, self._subject.owns, self._authors())
            case "lifecycle":
                writes += await self._notes(store, space, items)
            case _:
                writes += [Delete(space, item.id, expect=item.version) for item in items if self._subject.owns(item)]
        return writes

    async def _tasks(self, store: Tasks, space: Space) -> list[Write]:
        """Tasks of which a version was written for the subject; an agent's tasks are its users' by that alone."""
        return [DropTask(space, id) async for id in tasks_of(store, space) if await self._is_theirs(store, space, id)]

    async def _is_theirs(self, store: Tasks, space: Space, task: str) -> bool:
        return any(self._subject.covers(scope) for scope in await authors_of(store, space, task))

    def _authors(self) -> frozenset[str]:
        subject = self._subject
        return frozenset() if subject.user is None else frozenset({author_of(subject.user, subject.session)})

    async def _known(self, records: Records, space: Space, items: Iterable[MemoryItem]) -> Grounds:
        """Which entries go, and which of the others' a fact was made of."""
        gone: set[str] = set()
        logs: list[tuple[Log, Space]] = []
        for store in self._stores:
            if not isinstance(store, Log):
                continue
            for log in await store.holdings():
                if log.tier not in ("conversation", "episodic") or log.user != space.user:
                    continue
                if self._subject.reach(log) == "all":
                    gone.update([id async for id in _entry_ids(store, log)])
                elif log.tenant == space.tenant:
                    logs.append((store, log))
        wanted = {id for item in items for id in item.derived_from} - gone
        elsewhere: dict[str, Space] = {}
        for held, log in logs if wanted else ():
            elsewhere |= {entry.id: log for entry in await held.entries(log, *wanted)}
        async for said in self._said(records, space):
            elsewhere |= {id: log for id, log in said.items() if id in wanted and self._subject.reach(log) != "all"}
            gone.update(id for id, log in said.items() if self._subject.reach(log) == "all")
        return Grounds(frozenset(gone), elsewhere)

    async def _said(self, records: Records, facts: Space) -> AsyncIterator[dict[str, Space]]:
        """Where things that were said several times were said, as the lifecycle has noted it."""
        for count in await records.spaces(facts.tenant):
            notes = count.space
            if notes.tier != "lifecycle" or notes.user != facts.user:
                continue
            async for item in items_of(records, notes):
                yield {
                    entry: replace(notes, tier="conversation", session=session)
                    for session, _, entry in item.metadata.get("said", ())
                }

    async def _notes(self, store: Records, space: Space, items: Sequence[MemoryItem]) -> list[Write]:
        """The lifecycle's notes without those on a session that goes, or on facts that go with it.

        Another session may have said what such a fact says, and was not learned from because it was known: all are
        read once more, as if for the first time, and what is kept already is not kept twice.
        """
        session = self._subject.session
        facts = Space(space.tenant, "semantic", user=space.user)
        doomed = await self._shared(store, facts)
        erased = {write.id for write in doomed if isinstance(write, Delete)}
        texts = {content_id(facts, item.content) for item in await store.get(facts, *erased)}
        on_them = {marks.kept(id) for id in (*erased, *texts)}
        writes: list[Write] = []
        for item in items:
            left = _note_without(item.metadata, session, erased)
            of_session = session is not None and item.id.endswith(f":{session}")
            is_read = bool(erased) and item.id.startswith(marks.LEARNED_FROM)
            if item.id in on_them or of_session or is_read or (left != item.metadata and not any(left.values())):
                writes.append(Delete(space, item.id, expect=item.version))
            elif left != item.metadata:
                writes.append(Put(item=replace(item, metadata=left), expect=item.version))
        return writes


def _note_without(told: Mapping[str, Any], session: str | None, erased: set[str]) -> Mapping[str, Any]:
    left = dict(told)
    if "said" in left:
        left["said"] = [one for one in left["said"] if one[0] != session]
        if not left["said"]:
            left.pop("kept", None)
    if "items" in left and isinstance(left["items"], list | tuple):
        left["items"] = [id for id in left["items"] if id not in erased]
    return left if left != dict(told) else told


async def items_of(store: Records, space: Space) -> AsyncIterator[MemoryItem]:
    """Every item of a space, whatever has become of it."""
    after: MemoryItem | None = None
    while page := await store.find(Where(space), limit=_PAGE, after=after):
        for item in page:
            yield item
        after = page[-1]


async def tasks_of(store: Tasks, space: Space) -> AsyncIterator[str]:
    """The ids of all tasks, of those that have expired too."""
    after = None
    while page := await store.tasks(space, limit=_PAGE, after=after):
        for task in page:
            yield task.id
        after = page[-1].id
    last = None
    while page := await store.expired(space, _LATER_THAN_ALL, limit=_PAGE, after=last):
        for task in page:
            yield task.id
        last = page[-1]


async def authors_of(store: Tasks, space: Space, task: str) -> list[Scope]:
    """For whom the versions of a task were written, as far as they say."""
    scopes = []
    for version in await store.checkpoints(space, task, hidden=True):
        try:
            by = decode(version.schema, version.state).by
        except (StoreCorrupt, SchemaTooNew):  # another version may say it
            continue
        if by is not None:
            scopes.append(Scope(space.tenant, by.user, space.agent, by.session))
    return scopes


async def _entry_ids(store: Log, space: Space) -> AsyncIterator[str]:
    after = 0
    while page := await store.read(space, after=after, limit=1000, hidden=True):
        for entry in page:
            yield entry.id
        after = page[-1].seq
