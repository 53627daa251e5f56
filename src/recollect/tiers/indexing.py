"""Terms, passages and vectors of items, and the base class, checks and retries that tiers share."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import accumulate, pairwise
from typing import ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from recollect.clock import Clock
from recollect.errors import BadQuery, BadVector, Conflict, EmbeddingModelMismatch
from recollect.language.analysis import analyze, build_date_terms
from recollect.models.embedding import Embedding
from recollect.security.redaction import LARGE_TEXT_LENGTH
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.codec import MAX_PASSAGES
from recollect.stores.filters import Where
from recollect.stores.overlay import iter_pages
from recollect.stores.search import SearchMode, SearchQuery
from recollect.stores.writes import Model, Put
from recollect.types import Hit, MemoryItem, Scope, Tier
from recollect.validation import check_choice, check_count, check_fraction, check_text

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Value = TypeVar("_Value")

PARAPHRASE_KEY = "plainly"
"""Metadata key of a paraphrase in plain sentences, one a line. It is stored, so that a new model embeds it too."""

# 180 words are about 240 word pieces; MiniLM reads at most 256.
_PASSAGE_WORDS = 180
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+")
# Each attempt fails only if the store was re-embedded meanwhile.
_MAX_MODEL_CHANGES = 64
# Each conflict means that another writer succeeded.
_MAX_CONFLICTS = 1000


class ItemSearch(Protocol):
    """The search that a tier uses; `recollect.retrieval.search.HybridSearch` implements it."""

    async def search(self, query: SearchQuery, /) -> list[Hit]: ...


class ItemTier:
    """Base class of tiers whose items are found by hybrid search."""

    _tier: Tier

    def __init__(
        self,
        store: Records,
        embedding: Embedding,
        searcher: ItemSearch,
        *,
        scope: Scope,
        settings: Settings,
        clock: Clock,
        act: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._store = store
        self._embedding = embedding
        self._searcher = searcher
        self._scope = scope
        self._settings = settings
        self._clock = clock
        self._next_action_id = act
        self._space = scope.space(self._tier)

    async def _search(
        self,
        query: str,
        n: int,
        min_relevance: float | None,
        where: Where,
        *,
        at: datetime,
        now: datetime,
        mode: SearchMode = "hybrid",
    ) -> list[Hit]:
        relevance = self._settings.min_relevance if min_relevance is None else min_relevance
        search_query = SearchQuery(
            text=check_query(query),
            where=where,
            n=check_limit(n),
            min_relevance=check_fraction("min_relevance", relevance, error=BadQuery),
            mode=check_choice("mode", mode, ("hybrid", "dense", "text"), error=BadQuery),
            now=at,
            asked_at=now,
        )
        return await with_current_model(self._embedding, lambda _: self._searcher.search(search_query))


async def find_all(store: Records, where: Where) -> list[MemoryItem]:
    """Return all matching items, newest first."""
    return [item async for page in iter_pages(store, where) for item in page]


check_query = partial(check_text, "query", max_length=20_000, error=BadQuery)
check_limit = partial(check_count, "n", maximum=1_000_000, error=BadQuery)


def split_passages(content: str) -> list[str]:
    """Split a text at sentence ends into passages that an embedder reads whole. Each passage gets its own vector."""
    if len(content.split()) <= _PASSAGE_WORDS:
        return [content]
    passages: list[str] = []
    words: list[str] = []
    for sentence in _SENTENCE_END.split(content):
        rest = sentence.split()
        while rest:
            piece, rest = rest[:_PASSAGE_WORDS], rest[_PASSAGE_WORDS:]
            if words and len(words) + len(piece) > _PASSAGE_WORDS:
                passages.append(" ".join(words))
                words = []
            words.extend(piece)
    passages.append(" ".join(words))
    last = " ".join(passages[MAX_PASSAGES - 1 :])
    return passages if len(passages) <= MAX_PASSAGES else [*passages[: MAX_PASSAGES - 1], last]


def texts_to_embed(item: MemoryItem) -> list[str]:
    """Return the passages of an item and its paraphrase, at most `MAX_PASSAGES` texts."""
    passages = split_passages(item.content)
    return [*passages, *read_paraphrase(item)[: MAX_PASSAGES - len(passages)]]


def read_paraphrase(item: MemoryItem) -> list[str]:
    paraphrase = item.metadata.get(PARAPHRASE_KEY)
    return [line for line in paraphrase.splitlines() if line.strip()] if isinstance(paraphrase, str) else []


def extract_index_terms(item: MemoryItem) -> tuple[str, ...]:
    """Return an item's terms, the new terms of its paraphrase, and for a turn of a dialogue the terms of its date."""
    terms = analyze(item.content)
    known = set(terms)
    terms += dict.fromkeys(term for term in analyze(" ".join(read_paraphrase(item))) if term not in known)
    if item.turn is not None:
        terms.extend(build_date_terms(item.created_at))
    return tuple(terms)


async def embed_items(embedding: Embedding, items: Sequence[MemoryItem]) -> list[NDArray[np.float32]]:
    """Return the vectors of each item, one a passage."""
    texts = [texts_to_embed(item) for item in items]
    rows = await embedding.embed([text for passages in texts for text in passages])
    return [rows[start:end] for start, end in pairwise(accumulate(map(len, texts), initial=0))]


async def build_puts(embedding: Embedding, model: Model, items: Sequence[MemoryItem], *, expect: int = 0) -> list[Put]:
    """Return the writes of items with their terms and vectors."""
    length = sum(len(item.content) for item in items)
    terms = await call_with_text(length, lambda: [extract_index_terms(item) for item in items])
    vectors = await embed_items(embedding, items)
    return [
        Put(item=item, vectors=item_vectors, terms=item_terms, model=model, expect=expect)
        for item, item_vectors, item_terms in zip(items, vectors, terms, strict=True)
    ]


def current_model(embedding: Embedding) -> Model:
    return Model(embedding.name, embedding.dim, embedding.fingerprint)


async def with_current_model(embedding: Embedding, act: Callable[[Model], Awaitable[_Result]]) -> _Result:
    """Call `act` with the current model; call it again if this memory changed the model meanwhile."""
    for _ in range(_MAX_MODEL_CHANGES):
        model = current_model(embedding)
        try:
            return await act(model)
        except (EmbeddingModelMismatch, BadVector):
            await embedding.wait_for_switch()
            if current_model(embedding) == model:
                raise
    raise Conflict(f"the store's embedding model changed {_MAX_MODEL_CHANGES} times; try again later")


def split_batches(
    values: Iterable[_Value], size: Callable[[_Value], int], max_size: int, max_count: int = sys.maxsize
) -> Iterator[list[_Value]]:
    """Split values into batches of limited total size and count; a larger value is alone in its batch."""
    batch: list[_Value] = []
    total = 0
    for value in values:
        if batch and (len(batch) == max_count or total + size(value) > max_size):
            yield batch
            batch, total = [], 0
        batch.append(value)
        total += size(value)
    if batch:
        yield batch


async def retry_on_conflict(act: Callable[[], Awaitable[_Result]], name: str) -> _Result:
    """Call `act` again after each `Conflict`; raise `Conflict` with `name`, of the operation, after 1,000 attempts."""
    for attempt in range(_MAX_CONFLICTS):
        try:
            return await act()
        except Conflict:
            await back_off(attempt)
    raise Conflict(f"{name} conflicted {_MAX_CONFLICTS:,} times; nothing was stored, try again later")


async def back_off(attempt: int) -> None:
    """Sleep before the next attempt: 1 ms more after each one, at most 50 ms."""
    await asyncio.sleep(min(0.001 * attempt, 0.05))


async def call_with_text(
    length: int, function: Callable[_Arguments, _Result], *args: _Arguments.args, **options: _Arguments.kwargs
) -> _Result:
    """Call a function that scans a text of this length; in a thread if it would block the event loop for long."""
    if length > LARGE_TEXT_LENGTH:
        return await asyncio.to_thread(function, *args, **options)
    return function(*args, **options)
