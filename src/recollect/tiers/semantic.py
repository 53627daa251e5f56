"""What is known: facts and turns that are kept until somebody forgets them, and found by meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from recollect.clock import Clock, aware
from recollect.errors import BadInput, BadQuery, BadVector, Conflict, EmbeddingModelMismatch
from recollect.inference.base import Embedding
from recollect.inference.offline import importance_of
from recollect.settings import Settings
from recollect.stores.admission import admitted, check_text
from recollect.stores.base import Records
from recollect.stores.ops import Delete, Model, Put
from recollect.stores.question import Mode, Question
from recollect.stores.where import FIELDS, Condition, Where, parse_where
from recollect.tiers import keyed
from recollect.tiers.facts import Fact, FactOptions, facts_of, in_utc
from recollect.tiers.indexing import index_terms, passages
from recollect.tiers.patience import pause
from recollect.tiers.turns import Said, checked_position, said
from recollect.values import NOTHING, Hit, MemoryItem, Scope, Space, Turn, content_id, plain_json

_WRITE_TOGETHER = 512
_TRIES = 64

# How many turns of an earlier attempt are recognised; a call with more of them should give positions.
_LONGEST_TAIL = 2000

# About ten milliseconds of analysis.
_LONG_TO_ANALYSE = 20_000

# Some pages of text: more is a document to remember, not a question.
_LONGEST_QUERY = 20_000


Searcher = Callable[[Question], Awaitable[list[Hit]]]


@dataclass(frozen=True, slots=True)
class Draft:
    """A fact on its way to being an item."""

    fact: Fact
    item: MemoryItem
    dialogue: Said


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
        self._scope = scope
        self._settings = settings
        self._clock = clock

    @property
    def space(self) -> Space:
        return self._scope.space("semantic")

    async def add(self, content: str, **options: Unpack[FactOptions]) -> MemoryItem:
        """Keep one fact or turn. The same content again is the same item."""
        return (await self.add_many([{"content": content, **options}]))[0]

    async def add_many(self, facts: Iterable[Mapping[str, Any]]) -> list[MemoryItem]:
        """Keep many, each a dict with `content` and any of `FactOptions`, in durable batches.

        All of them are checked before the first is written, so bad input stores nothing.
        """
        drafts = await self._place([self._draft(fact) for fact in facts_of(facts)])
        kept: list[MemoryItem] = []
        ahead: asyncio.Task[list[MemoryItem]] | None = None
        try:
            for batch in _batches(drafts):
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
            conditions=await self._conditions(where),
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
        for _ in range(_TRIES):
            model = self._model()
            try:
                return await self._search(question)
            except (EmbeddingModelMismatch, BadVector):
                await self._embedding.settled()
                if self._model() == model:
                    raise
        raise Conflict("the store's embedding model is being changed all the time; try again")

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
                await self._store.write(Put(item=replace(item, importance=importance), expect=item.version))
            except Conflict:
                await pause(tries)
                continue
            return True
        raise Conflict(f"item {id!r} is being changed by others all the time; try again")

    async def forget(self, id: str) -> bool:
        """Drop one item, its words and its vectors; False when there is no such item."""
        id = _name("an id", id)
        if not await self._store.get(self.space, id):
            return False
        await self._store.write(Delete(self.space, id))
        return True

    async def history(self, key: str) -> list[MemoryItem]:
        """Every value a key has had, newest first."""
        return await keyed.values(self._store, self.space, _name("a key", key))

    def _model(self) -> Model:
        return Model(self._embedding.name, self._embedding.dim, self._embedding.fingerprint)

    def _draft(self, fact: Fact) -> Draft:
        metadata = plain_json(dict(fact.metadata or {}))
        session = self._scope.session if fact.session is None and fact.is_turn else fact.session
        if fact.is_turn and session is None:
            raise BadInput("a speaker or a position belongs to a session; say which, or open the memory with one")
        dialogue = said(metadata, Said(session, checked_position(fact.position), fact.speaker, fact.at))
        if len(fact.content) > self._settings.max_content:
            raise BadInput(
                f"the text has {len(fact.content):,} characters and max_content is {self._settings.max_content:,}; "
                "split it, or raise the setting"
            )
        item = MemoryItem(
            id=content_id(self.space, fact.content, *_identity(fact, None)),
            content=fact.content,
            scope=self._scope,
            created_at=dialogue.at or self._clock(),
            metadata=MappingProxyType(metadata) if metadata else NOTHING,
            importance=importance_of(fact.content) if fact.importance is None else float(fact.importance),
            valid_from=fact.valid_from and aware(fact.valid_from),
            valid_to=fact.valid_to and aware(fact.valid_to),
            source=fact.source or "user",
            trust=float(fact.trusted),
            key=fact.key,
        )
        admitted(Put(item=item))  # now, and not when others of the same call have been written
        return Draft(fact, item, dialogue)

    async def _place(self, drafts: list[Draft]) -> list[Draft]:
        """Give turns that came without a position the next ones of their session, in the order they came."""
        known = await self._said_before(drafts)
        last: dict[str, float] = {}
        placed = []
        for at, draft in enumerate(drafts):
            session, position = draft.dialogue.session, draft.dialogue.position
            if session is None:
                placed.append(draft)
                continue
            if session not in last:
                last[session] = await self._last_position(session)
            if at in known:
                placed.append(replace(draft, item=replace(draft.item, id=known[at].id, turn=known[at].turn)))
                continue
            if position is None:
                position = last[session] + 1.0
            last[session] = max(last[session], position)
            turn = Turn(session, position, draft.dialogue.speaker)
            id = content_id(self.space, draft.item.content, *_identity(draft.fact, turn))
            placed.append(replace(draft, item=replace(draft.item, id=id, turn=turn)))
        return placed

    async def _said_before(self, drafts: list[Draft]) -> dict[int, MemoryItem]:
        """Turns without a position that were stored by an earlier attempt at the same call.

        The same words may be said twice, so words alone do not tell. But a call that is made again begins with what
        the session ends with.
        """
        by_session: dict[str, list[int]] = {}
        for at, draft in enumerate(drafts):
            if draft.dialogue.session is not None and draft.dialogue.position is None:
                by_session.setdefault(draft.dialogue.session, []).append(at)
        known: dict[int, MemoryItem] = {}
        for session, places in by_session.items():
            tail = await self._store.last_turns(self.space, session, limit=min(len(places), _LONGEST_TAIL))
            tail.reverse()
            stored = [(item.content, item.turn.speaker if item.turn else None) for item in tail]
            given = [(drafts[at].item.content, drafts[at].dialogue.speaker) for at in places[: len(tail)]]
            overlap = next((k for k in range(len(tail), 0, -1) if stored[-k:] == given[:k]), 0)
            known.update(zip(places, tail[len(tail) - overlap :], strict=False))
        return known

    async def _last_position(self, session: str) -> float:
        last = await self._store.last_turns(self.space, session)
        return last[0].turn.position if last and last[0].turn is not None else -1.0

    async def _keep(self, drafts: list[Draft]) -> list[MemoryItem]:
        model = self._model()
        try:
            return await self._keep_under(model, drafts)
        except EmbeddingModelMismatch:
            # Unless this memory itself has just changed its model, the store is not ours to write to.
            await self._embedding.settled()
            if self._model() == model:
                raise
            return await self._keep_under(self._model(), drafts)

    async def _keep_under(self, model: Model, drafts: list[Draft]) -> list[MemoryItem]:
        items = [await keyed.placed(self._store, self.space, draft.item) for draft in drafts]
        by_id = {item.id: (item, draft.fact) for item, draft in zip(items, drafts, strict=True)}
        stored = {item.id: item for item in await self._store.get(self.space, *by_id)}
        fresh = [item for id, (item, _) in by_id.items() if id not in stored]
        terms = await _terms(fresh)
        vectors = await embedded(self._embedding, fresh)
        puts = [
            Put(item=item, vectors=rows, terms=found, model=model)
            for item, rows, found in zip(fresh, vectors, terms, strict=True)
        ]
        # What is there already keeps its vectors and its birthday; what the caller says anew counts.
        renewed = [_renewed(stored[id], *given) for id, given in by_id.items() if id in stored]
        puts += [Put(item=item) for item in renewed if item != stored[item.id]]
        await keyed.write(self._store, self.space, puts, [item for item, _ in by_id.values() if item.key is not None])
        changed = [id for id, (item, _) in by_id.items() if id in stored or item.key is not None]
        now_there = {item.id: item for item in await self._store.get(self.space, *changed)}
        return [now_there.get(item.id, item) for item in items]


async def _terms(items: Sequence[MemoryItem]) -> list[tuple[str, ...]]:
    """The words of each item; long texts are taken apart in a thread, where they hold nobody up."""
    if sum(len(item.content) for item in items) < _LONG_TO_ANALYSE:
        return [index_terms(item) for item in items]
    return await asyncio.to_thread(lambda: [index_terms(item) for item in items])


async def embedded(embedding: Embedding, items: Sequence[MemoryItem]) -> list[NDArray[np.float32]]:
    """The vectors of each item, one for each of its passages."""
    parts = [passages(item.content) for item in items]
    rows = await embedding.embed([part for some in parts for part in some])
    return np.split(rows, np.cumsum([len(some) for some in parts])[:-1]) if items else []


@dataclass(frozen=True, slots=True)
class Batch:
    """What is written together; `waits` when it has something in common with the batch before."""

    drafts: list[Draft]
    waits: bool


def _batches(drafts: list[Draft]) -> Iterator[Batch]:
    """Two values of one key are not written together, since the later one has to supersede the earlier."""
    together: list[Draft] = []
    named: set[str] = set()
    before: set[str] = set()
    for draft in drafts:
        if len(together) == _WRITE_TOGETHER or (draft.fact.key is not None and f"key {draft.fact.key}" in named):
            yield Batch(together, waits=not named.isdisjoint(before))
            together, named, before = [], set(), named
        together.append(draft)
        named.add(draft.item.id)
        if draft.fact.key is not None:
            named.add(f"key {draft.fact.key}")
    if together:
        yield Batch(together, waits=not named.isdisjoint(before))


def _identity(fact: Fact, turn: Turn | None) -> list[str]:
    """What makes the same words another item: a key, or another place in a dialogue."""
    parts = [f"key={fact.key}"] if fact.key is not None else []
    if turn is not None:
        parts += [f"session={turn.session}", f"speaker={turn.speaker}", f"position={turn.position!r}"]
    return parts


def _renewed(stored: MemoryItem, item: MemoryItem, fact: Fact) -> MemoryItem:
    return replace(
        stored,
        metadata=item.metadata or stored.metadata,
        importance=stored.importance if fact.importance is None else item.importance,
        source=stored.source if fact.source is None else item.source,
        trust=stored.trust if fact.source is None and fact.trust is None else item.trust,
        valid_from=item.valid_from or stored.valid_from,
        valid_to=item.valid_to,
        superseded_by=None,
    )


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
        raise BadQuery(f"n is how many hits are wanted, a whole number from 0, not {n!r}")
    return n


def _name(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{what} is a text, not {type(value).__name__}")
    return value


def _fraction(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise BadQuery(f"{name} is a number from 0 to 1, not {value!r}")
    return float(value)


def _mode(mode: Any) -> Mode:
    if mode not in ("hybrid", "dense", "text"):
        raise BadQuery(f"mode is 'hybrid', 'dense' or 'text', not {mode!r}")
    return mode  # type: ignore[no-any-return]
