"""What is known: facts and turns that are kept until somebody forgets them, and found by meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from recollect.clock import Clock
from recollect.errors import BadInput, BadQuery, Conflict, NotFound
from recollect.inference.base import Embedding
from recollect.settings import Settings
from recollect.stores.admission import check_text
from recollect.stores.base import Records
from recollect.stores.ops import Delete, Model, Put
from recollect.stores.question import Mode, Question
from recollect.stores.where import FIELDS, Condition, Where, parse_where
from recollect.tiers import keyed
from recollect.tiers.consolidate import (
    ConsolidationReport,
    Progress,
    apply,
    copies_of,
    plan_consolidation,
    survivor_of,
)
from recollect.tiers.drafts import Draft, Drafts, batches, repeated, said_again, trusted_as_said
from recollect.tiers.facts import Fact, FactOptions, fact_of, facts_of, in_utc
from recollect.tiers.indexing import index_terms, to_embed
from recollect.tiers.one_model import under_one_model
from recollect.tiers.patience import pause
from recollect.tiers.quarantine import held, in_quarantine, objections
from recollect.values import Hit, MemoryItem, Scope, Space

_TRIES = 64
# More, since many may tell of one key at once, and each time one of them comes first.
_TRIES_TO_KEEP = 200

# About ten milliseconds of analysis.
_LONG_TO_ANALYSE = 20_000

# Some pages of text: more is a document to remember, not a question.
_LONGEST_QUERY = 20_000

MOST_HITS = 1_000_000
"""More than anybody reads, and little enough to be put together at once."""


Searcher = Callable[[Question], Awaitable[list[Hit]]]


class SemanticMemory:
    """Facts of one user. Made by `AgentMemory`, which gives it its store, embedder and search."""

    def __init__(
        self,
        store: Records,
        embedding: Embedding,
        search: Searcher,
        *,
        scope: Scope,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._embedding = embedding
        self._search = search
        self._settings = settings
        self._clock = clock
        self._drafts = Drafts(store, scope=scope, settings=settings, clock=clock)
        self._space = scope.space("semantic")

    @property
    def space(self) -> Space:
        return self._space

    async def add(self, content: str, **options: Unpack[FactOptions]) -> MemoryItem:
        """Keep one fact or turn. The same content again is the same item.

        One that gives orders and is not the user's own, or that would take the place of what is trusted more, is kept
        in quarantine instead: its `tier` says so, and it is not recalled before somebody has approved it.
        """
        return (await self._gated(await self._drafts.of([fact_of(content, options)])))[0]

    async def approved(self, fact: Fact) -> MemoryItem:
        """Keep a fact that somebody has read, whatever it says."""
        return (await self._add(await self._drafts.of([fact])))[0]

    async def add_many(self, facts: Iterable[Mapping[str, Any]]) -> list[MemoryItem]:
        """Keep many, each a dict with `content` and any of `FactOptions`, in durable batches.

        All of them are checked before the first is written, so bad input stores nothing.
        """
        return await self._gated(await self._drafts.of(facts_of(facts), many=True))

    async def _gated(self, drafts: list[Draft]) -> list[MemoryItem]:
        """Keep the drafts, apart from the others where something speaks against one; the items in their order."""
        doubted = [draft for draft in drafts if draft.item.trust < 1.0]
        if not doubted:  # the user's own words are let in as they are
            return await self._add(drafts)
        why = {id(draft): await objections(self._store, self.space, draft.item) for draft in doubted}
        apart = {id(draft): in_quarantine(draft.item, why[id(draft)]) for draft in doubted if why[id(draft)]}
        await held(self._store, list(apart.values()))
        kept = iter(await self._add([draft for draft in drafts if id(draft) not in apart]))
        return [apart[id(draft)] if id(draft) in apart else next(kept) for draft in drafts]

    async def _add(self, drafts: list[Draft]) -> list[MemoryItem]:
        if len(drafts) == 1:  # there is nothing to be ahead of
            return await self._keep(drafts)
        kept: list[MemoryItem] = []
        ahead: asyncio.Task[list[MemoryItem]] | None = None
        try:
            for batch in batches(drafts):
                if batch.waits and ahead is not None:
                    kept += await ahead
                    ahead = None
                # While one batch is being written, the next one is being embedded.
                behind, ahead = ahead, asyncio.create_task(self._keep(batch.drafts))
                if behind is not None:
                    kept += await behind
            return kept if ahead is None else kept + await ahead
        finally:
            if ahead is not None and not ahead.done():
                await asyncio.wait([ahead])

    async def get(self, id: str) -> MemoryItem | None:
        found = await self._store.get(self.space, _name("an id", id))
        return found[0] if found else None

    async def search(
        self,
        query: str,
        n: int = 5,
        *,
        min_relevance: float | None = None,
        min_importance: float = 0.0,
        where: Mapping[str, Any] | None = None,
        as_of: datetime | None = None,
        mode: Mode = "hybrid",
    ) -> list[Hit]:
        """The items that answer a query best, best first. Counts an access to each."""
        now = self._clock()
        moment = in_utc("as_of", as_of) if as_of is not None else now
        narrowed = Where(
            self.space,
            live_at=moment,
            known_at=moment if as_of is not None else None,
            min_importance=_fraction("min_importance", min_importance),
            conditions=() if where is None else await self._conditions(where),
        )
        return await self._found(
            Question(
                text=checked_query(query),
                where=narrowed,
                n=checked_count(n),
                min_relevance=self._settings.min_relevance
                if min_relevance is None
                else _fraction("min_relevance", min_relevance),
                mode=_mode(mode),
                now=moment,
                asked_at=now,
            )
        )

    async def _found(self, question: Question) -> list[Hit]:
        """The hits, found by the model that the store's vectors are of: it may be changed while we search."""
        return await under_one_model(self._embedding, lambda _: self._search(question))

    async def _conditions(self, where: Mapping[str, Any] | None) -> tuple[Condition, ...]:
        """The filter, or `BadQuery` for a path that nothing in this scope carries: most likely a slip of the pen."""
        conditions = parse_where(where)
        named = {condition.path.removeprefix("metadata.") for condition in conditions if not condition.is_field}
        if not named:
            return conditions
        known = await self._store.paths(self.space)
        unknown = sorted(named - known)
        if unknown and (known or await self._store.find(Where(self.space), limit=1)):
            raise BadQuery(
                f"nothing here has metadata at {', '.join(map(repr, unknown))}; "
                f"known are {', '.join(sorted(known)[:20]) or 'none'}, and the fields {', '.join(sorted(FIELDS))}"
            )
        return conditions

    async def update_importance(self, id: str, importance: float) -> bool:
        """Set an item's importance; False when there is no such item."""
        importance = _fraction("importance", importance)
        for tries in range(_TRIES):
            item = await self.get(id)
            if item is None:
                return False
            try:
                changed = replace(item, importance=importance, decayed_at=self._clock())
                await self._store.write(Put(item=changed, expect=item.version))
            except Conflict:
                await pause(tries)
                continue
            return True
        raise Conflict(f"item {id!r} is being changed by others all the time; try again")

    async def forget(self, id: str) -> bool:
        """Drop one item, its words and its vectors, and what was merged into it; False when there is no such item."""
        item = await self.get(id)
        if item is None:
            return False
        copies = await copies_of(self._store, self.space, item)
        await self._store.write(*(Delete(self.space, one.id) for one in (item, *copies)))
        return True

    async def consolidate(self, *, dry_run: bool = False, progress: Progress | None = None) -> ConsolidationReport:
        """Merge facts that say the same. The best of them stays; the others are superseded by it, and its history.

        Turns and keyed facts are left alone. A `dry_run` reports what would be merged and writes nothing.
        """
        now = self._clock()
        plan = await plan_consolidation(self._store, self._embedding, self.space, now, progress=progress)
        if dry_run:
            return ConsolidationReport(plan.merges, plan.examined)
        return replace(await apply(self._store, self.space, plan.merges, now), examined=plan.examined)

    async def page(self, limit: int = 100, *, after: str | None = None, past: bool = False) -> list[MemoryItem]:
        """Facts newest first; `after` is the id of the last one of the page before. `past` ones are no longer true."""
        if checked_count(limit) == 0:
            return []
        last = None if after is None else await self.get(after)
        if after is not None and last is None:
            raise NotFound(f"there is no item {after!r:.80} to go on after; it may have been forgotten since")
        where = Where(self.space, live_at=None if past else self._clock())
        return await self._store.find(where, limit=limit, after=last)

    async def history(self, key: str) -> list[MemoryItem]:
        """Every value a key has had, newest first."""
        return await keyed.values(self._store, self.space, _name("a key", key))

    async def _keep(self, drafts: list[Draft]) -> list[MemoryItem]:
        for tries in range(_TRIES_TO_KEEP):
            try:
                return await under_one_model(self._embedding, lambda model: self._keep_under(model, drafts))
            except Conflict:  # somebody else wrote one of these meanwhile
                await pause(tries)
        raise Conflict("the same facts are being written by others all the time; try again")

    async def _keep_under(self, model: Model, drafts: list[Draft]) -> list[MemoryItem]:
        asked = {draft.item.id for draft in drafts}
        held = {item.id: item for item in await self._store.get(self.space, *asked)}
        if not held and all(draft.item.key is None for draft in drafts):  # as most: nothing else is there to look at
            said = [draft.item for draft in drafts]
            new = {item.id: item for item in said}
            await keyed.write(self._store, self.space, await self._anew(model, list(new.values())), [])
            return said
        placed = [
            keyed.Placed(draft.item)
            if keyed.takes(draft.item, held.get(draft.item.id))
            else await keyed.placed(self._store, self.space, draft.item)
            for draft in drafts
        ]
        items = [one.item for one in placed]
        by_id = {item.id: (item, draft.fact) for item, draft in zip(items, drafts, strict=True)}
        others = await self._store.get(self.space, *(id for id in by_id if id not in asked))
        stored = {id: item for id, item in (held | {item.id: item for item in others}).items() if id in by_id}
        fresh = [item for id, (item, _) in by_id.items() if id not in stored]
        puts = await self._anew(model, fresh)
        counted = await self._said_again(by_id, stored)
        puts += [
            Put(item=new, expect=old.version)
            for old, new in {new.id: (old, new) for old, new in counted.values()}.values()
            if new != old
        ]
        puts += [keyed.retired(one.aside, one.item) for one in placed if one.aside is not None]
        named = [counted[id][1] if id in counted else item for id, (item, _) in by_id.items()]
        await keyed.write(self._store, self.space, puts, [item for item in named if item.key is not None])
        places = {id: counted[id][1].id if id in counted else id for id in by_id}
        changed = [places[id] for id, (item, _) in by_id.items() if id in stored or item.key is not None]
        now_there = {item.id: item for item in await self._store.get(self.space, *changed)}
        return [now_there.get(places[item.id], item) for item in items]

    async def _anew(self, model: Model, items: Sequence[MemoryItem]) -> list[Put]:
        """What keeps items that nobody has said before."""
        terms = await _terms(items)
        vectors = await embedded(self._embedding, items)
        return [
            Put(item=item, vectors=rows, terms=found, model=model, expect=0)
            for item, rows, found in zip(items, vectors, terms, strict=True)
        ]

    async def _said_again(
        self, given: Mapping[str, tuple[MemoryItem, Fact]], stored: Mapping[str, MemoryItem]
    ) -> dict[str, tuple[MemoryItem, MemoryItem]]:
        """For each id that is stored already, the item that it counts as, before and after it was said again.

        What was merged into another counts as that one. Only words that are trusted more, or that say for how long
        they hold, bring it back as an item of its own.
        """
        before: dict[str, MemoryItem] = dict(stored)
        after: dict[str, MemoryItem] = {}
        places: dict[str, str] = {}
        for id, (item, fact) in given.items():
            if id not in stored:
                continue
            again, place = said_again(after.get(id, stored[id]), item, fact), id
            heir = None
            if fact.valid_from is None and fact.valid_to is None:
                heir = await survivor_of(self._store, self.space, stored[id], self._clock())
            worth = trusted_as_said(stored[id], item, fact)
            if heir is not None and worth <= heir.trust:
                before.setdefault(heir.id, heir)
                heir, place = after.get(heir.id, before[heir.id]), heir.id
                again = heir if worth < heir.trust else repeated(heir, item, fact)
            after[place], places[id] = again, place
        return {id: (before[place], after[place]) for id, place in places.items()}


async def _terms(items: Sequence[MemoryItem]) -> list[tuple[str, ...]]:
    """The words of each item; long texts are taken apart in a thread, where they hold nobody up."""
    if sum(len(item.content) for item in items) < _LONG_TO_ANALYSE:
        return [index_terms(item) for item in items]
    return await asyncio.to_thread(lambda: [index_terms(item) for item in items])


async def embedded(embedding: Embedding, items: Sequence[MemoryItem]) -> list[NDArray[np.float32]]:
    """The vectors of each item, one for each of its passages."""
    parts = [to_embed(item) for item in items]
    rows = await embedding.embed([part for some in parts for part in some])
    return [rows[start:end] for start, end in pairwise(accumulate(map(len, parts), initial=0))]


def checked_query(query: Any) -> str:
    if not isinstance(query, str):
        raise BadQuery(f"a query is a text, not {type(query).__name__}")
    if not query.strip():
        raise BadQuery("the query is empty; ask for something")
    check_text((query,))
    if len(query) > _LONGEST_QUERY:
        raise BadQuery(f"the query has {len(query):,} characters; at most {_LONGEST_QUERY:,} are answered")
    return query


def checked_count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise BadQuery(f"n is how many hits are wanted, a whole number from 0, not {n!r:.80}")
    if n > MOST_HITS:
        raise BadQuery(f"n is at most {MOST_HITS:,}, not {n!r:.80}; ask for a page at a time")
    return n


def _name(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{what} is a text, not {type(value).__name__}")
    return value


def _fraction(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise BadQuery(f"{name} is a number from 0 to 1, not {value!r:.80}")
    return float(value)


def _mode(mode: Any) -> Mode:
    if mode not in ("hybrid", "dense", "text"):
        raise BadQuery(f"mode is 'hybrid', 'dense' or 'text', not {mode!r:.80}")
    return mode  # type: ignore[no-any-return]
