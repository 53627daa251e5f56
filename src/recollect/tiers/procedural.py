"""How things are done: procedures by name, in versions, with a record of how each has worked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import TypeVar
from weakref import WeakValueDictionary

from recollect.clock import Clock
from recollect.errors import Conflict, NotFound
from recollect.guard.policy import Policy
from recollect.inference.base import Embedding
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.ops import Model, Put
from recollect.stores.question import Question
from recollect.stores.where import Condition, Where
from recollect.tiers.entries import checked_id
from recollect.tiers.indexing import index_terms
from recollect.tiers.one_model import under_one_model
from recollect.tiers.outcomes import SuccessRate, author_of, rank
from recollect.tiers.patience import pause
from recollect.tiers.procedure import Procedure, changed, item_of, procedure_of, version_id
from recollect.tiers.procedure_input import (
    checked_body,
    checked_description,
    checked_key,
    checked_note,
    checked_prefix,
    checked_seconds,
    checked_share,
    checked_success,
    checked_tag,
    checked_tags,
    checked_trust,
    checked_version,
)
from recollect.tiers.semantic import Searcher, checked_count, checked_query, embedded
from recollect.values import Hit, MemoryItem, Scope, Space

T = TypeVar("T")

# Whoever is refused has lost to another's write, so this many others at once would have to win in turn.
_TRIES = 1000
_PAGE = 500

_NEWEST = Condition("standing", "ne", "superseded")
_CURRENT = Condition("standing", "eq", "current")


class ProceduralMemory:
    """Procedures of one agent. Made by `AgentMemory`, which gives it its store, embedder and search.

    Each version is an item of its own. One of a key's versions is the newest; it is current, or retired with its key.
    """

    def __init__(
        self,
        store: Records,
        embedding: Embedding,
        search: Searcher,
        *,
        scope: Scope,
        settings: Settings,
        clock: Clock,
        act: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._act = act
        self._store = store
        self._embedding = embedding
        self._search = search
        self._scope = scope
        self._settings = settings
        self._clock = clock
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def space(self) -> Space:
        return self._scope.space("procedural")

    async def save(
        self,
        key: str,
        body: str,
        *,
        description: str = "",
        tags: Iterable[str] = (),
        source: str = "user",
        trust: float | None = None,
    ) -> Procedure:
        """Keep a procedure: as a new version when the body changed, else with what is new in description and tags.

        An empty description or no tags leave those it has. A retired procedure that is saved is in use again.
        What is trusted less than the agent itself (by its `source`, or as `trust` says) is refused.
        """
        policy = Policy.of(self._settings)
        given = Procedure(
            id="",
            key=checked_key(key),
            version=1,
            body=policy.text("body", checked_body(body, self._settings.max_content)).value,
            description=policy.text("description", checked_description(description)).value,
            tags=checked_tags(tags),
            source=source,
            trust=checked_trust(source, trust),
            created_at=self._clock(),
        )
        return await self._until_written(key, lambda: self._save(given))

    async def get(self, key: str, version: int | None = None) -> Procedure | None:
        """The newest version, retired or not, or the one asked for; None when there is none."""
        key = checked_key(key)
        if version is None:
            newest = await self._newest(key)
            return procedure_of(newest) if newest else None
        found = await self._store.get(self.space, version_id(self.space, key, checked_version(version)))
        return procedure_of(found[0]) if found else None

    async def record_outcome(
        self,
        key: str,
        success: bool,
        *,
        note: str | None = None,
        seconds: float | None = None,
        id: str | None = None,
    ) -> Procedure:
        """Count a trial of the newest version. None is lost, however many are recorded at once.

        A trial with an `id` that was counted lately is the same trial, and not counted again.

        Notes stay with the outcome and out of search: they often quote what a tool said.
        """
        key = checked_key(key)
        success = checked_success(success)
        note = None if note is None else Policy.of(self._settings).text("note", checked_note(note) or "").value or None
        seconds = checked_seconds(seconds)
        id = self._act() if id is None else checked_id(id)
        scope = self._scope
        by = tuple(author_of(scope.user, session) for session in dict.fromkeys((None, scope.session)))

        async def count() -> Procedure:
            item = await self._known(key)
            known = procedure_of(item)
            outcomes = known.outcomes.after(success, self._clock(), seconds=seconds, note=note, id=id, by=by)
            if outcomes == known.outcomes:
                return known
            counted = replace(known, outcomes=outcomes)
            await self._store.write(Put(item=changed(item, counted), expect=item.version))
            return counted

        # `expect` is what keeps the count right. Taking turns spares those of this process from refusing each other.
        async with self._turns.setdefault(key, asyncio.Lock()):
            return await self._until_written(key, count)

    async def success_rate(self, key: str) -> SuccessRate:
        """How often the newest version has worked, with Wilson's 95 % bounds."""
        return procedure_of(await self._known(checked_key(key))).success_rate

    async def best(self, tag: str | None = None, prefix: str | None = None, n: int = 3) -> list[Procedure]:
        """The procedures most sure to work, best first: by the lower bound of their success rate.

        Retired ones are left out and demoted ones come last. Untried ones come after all that have worked more often
        than not, and before those that have only failed.
        """
        n = checked_count(n)
        found = await self.all(tag=tag, prefix=prefix)
        # Sorted by key before, so that equals come in the same order every time.
        return sorted(found, key=lambda one: rank(one.outcomes), reverse=True)[:n]

    async def all(self, *, tag: str | None = None, prefix: str | None = None, retired: bool = False) -> list[Procedure]:
        """The newest versions, by key, of all procedures with a tag and whose key begins with a prefix."""
        tag = None if tag is None else checked_tag(tag)
        prefix = "" if prefix is None else checked_prefix(prefix)
        conditions = [_NEWEST if retired else _CURRENT]
        if prefix:
            conditions.append(Condition("key", "prefix", prefix))
        if tag is not None:
            conditions.append(Condition("tags", "has", tag))
        items = await self._every(Where(self.space, conditions=tuple(conditions)))
        return sorted((procedure_of(item) for item in items), key=lambda one: one.key)

    async def keys(self, prefix: str | None = None) -> list[str]:
        """The names of all procedures in use."""
        return [one.key for one in await self.all(prefix=prefix)]

    async def search(self, query: str, n: int = 5, *, min_relevance: float | None = None) -> list[Hit]:
        """The procedures in use that a query means, best first; `get(hit.item.key)` has the rest of each."""
        now = self._clock()
        question = Question(
            text=checked_query(query),
            where=Where(self.space, live_at=now),
            n=checked_count(n),
            min_relevance=self._settings.min_relevance if min_relevance is None else checked_share(min_relevance),
            now=now,
            asked_at=now,
        )
        hits = await under_one_model(self._embedding, lambda _: self._search(question))
        # Times tell old versions from new; where another's clock runs ahead, what the item itself says decides.
        return [hit for hit in hits if procedure_of(hit.item).current]

    async def history(self, key: str) -> list[Procedure]:
        """Every version of a procedure, newest first."""
        items = await self._every(Where(self.space, key=checked_key(key)))
        return sorted((procedure_of(item) for item in items), key=lambda one: one.version, reverse=True)

    async def retire(self, key: str) -> bool:
        """Take a procedure out of use, its history kept; False when there is none in use."""
        key = checked_key(key)

        async def end() -> bool:
            item = await self._newest(key)
            if item is None or not procedure_of(item).current:
                return False
            ended = changed(item, replace(procedure_of(item), standing="retired"))
            await self._store.write(Put(item=replace(ended, valid_to=self._clock()), expect=item.version))
            return True

        return await self._until_written(key, end)

    async def rollback(self, key: str, version: int) -> Procedure:
        """Make an older version current again: as a new one that says whose it is and goes on with its outcomes."""
        key = checked_key(key)
        version = checked_version(version)
        return await self._until_written(key, lambda: self._rollback(key, version))

    async def _save(self, given: Procedure) -> Procedure:
        item = await self._newest(given.key)
        if item is None:
            number = await self._next_number(given.key)
            if number > 1 and await self._newest(given.key) is not None:
                # Somebody saved the first version between our two looks: as it is, theirs would never be ended.
                raise Conflict(f"the procedure {given.key!r} was saved by somebody else just now")
            return await self._add(given, number, None)
        known = procedure_of(item)
        merged = replace(given, description=given.description or known.description, tags=given.tags or known.tags)
        if merged.body != known.body:
            return await self._add(merged, known.version + 1, item)
        # Who wrote the body stays its source; words of somebody less trusted make the whole as little trusted.
        renewed = replace(known, description=merged.description, tags=merged.tags, standing="current")
        if renewed == known:
            return known
        renewed = replace(renewed, trust=min(known.trust, given.trust))
        await self._write(replace(changed(item, renewed), valid_to=None), expect=item.version)
        return renewed

    async def _rollback(self, key: str, version: int) -> Procedure:
        newest = await self._known(key)
        found = await self._store.get(self.space, version_id(self.space, key, version))
        if not found:
            numbers = [str(one.version) for one in await self.history(key)]
            raise NotFound(f"{key!r} has no version {version}; there are {', '.join(numbers[:20])}")
        known, old = procedure_of(newest), procedure_of(found[0])
        if old.id == known.id and known.current:
            return known
        checked_trust(old.source, old.trust)
        restored = replace(old, created_at=self._clock(), standing="current", restored_from=version)
        return await self._add(restored, known.version + 1, newest)

    async def _add(self, procedure: Procedure, number: int, newest: MemoryItem | None) -> Procedure:
        """A new version, and in the same transaction the end of the one before."""
        added = replace(procedure, id=version_id(self.space, procedure.key, number), version=number)
        ended = [] if newest is None else [_superseded(newest, added)]
        await self._write(item_of(added, self._scope), *ended, expect=0)
        return added

    async def _write(self, item: MemoryItem, *others: Put, expect: int) -> None:
        """Write an item with its words and vectors, and others with it."""

        async def under(model: Model) -> None:
            vectors = (await embedded(self._embedding, [item]))[0]
            put = Put(item=item, vectors=vectors, terms=index_terms(item), model=model, expect=expect)
            await self._store.write(put, *others)

        await under_one_model(self._embedding, under)

    async def _until_written(self, key: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until nobody else has written in between; each attempt reads anew."""
        for tries in range(_TRIES):
            try:
                return await attempt()
            except Conflict:
                await pause(tries)
        raise Conflict(f"the procedure {key!r} is being changed by others all the time; nothing was stored, try again")

    async def _newest(self, key: str) -> MemoryItem | None:
        found = await self._store.find(Where(self.space, key=key, conditions=(_NEWEST,)), limit=1)
        return found[0] if found else None

    async def _known(self, key: str) -> MemoryItem:
        item = await self._newest(key)
        if item is None:
            raise NotFound(f"there is no procedure {key!r}; save it first, or look at `keys()`")
        return item

    async def _next_number(self, key: str) -> int:
        """1, unless older versions are left of a procedure whose newest was forgotten."""
        return max((one.version for one in await self.history(key)), default=0) + 1

    async def _every(self, where: Where) -> list[MemoryItem]:
        items: list[MemoryItem] = []
        while page := await self._store.find(where, limit=_PAGE, after=items[-1] if items else None):
            items += page
            if len(page) < _PAGE:
                break
        return items


def _superseded(item: MemoryItem, by: Procedure) -> Put:
    """The end of a version. One that was retired had ended before."""
    ended: datetime = by.created_at if item.valid_to is None else item.valid_to
    old = changed(item, replace(procedure_of(item), standing="superseded"))
    return Put(item=replace(old, valid_to=ended, superseded_by=by.id), expect=item.version)
