"""A checked `recall` request, and the embedding of its query."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recollect.errors import BadInput, BadQuery, EmbedderFailed
from recollect.models.embedding import Embedding
from recollect.retrieval.fusion import Calibration, calibrate_embedding
from recollect.stores.filters import Condition, Where, matches_where, parse_where
from recollect.tiers.indexing import check_limit, check_query
from recollect.types import TIER_NAMES, MemoryItem
from recollect.validation import check_count, check_fraction, check_utc

# A longer text takes the model as long as a second query.
_MAX_COMPARED_CHARACTERS = 600

CANDIDATES = 25
"""The number of candidates of each tier. More find no more answers, and cost time."""

MAX_QUERIES = 16
"""The maximum number of phrasings of a query, the question included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRequest:
    """The checked arguments of one `recall` call."""

    query: str
    phrases: tuple[str, ...] = ()
    """Further phrasings of what the query asks for."""
    limit: int | None
    """The maximum number of hits; None leaves the number to the ranking."""
    n: int = CANDIDATES
    """The maximum number of candidates of each tier."""
    now: datetime
    tiers: frozenset[str]
    budget: int | None
    min_relevance: float
    as_of: datetime | None
    where: Mapping[str, Any] | None
    conditions: tuple[Condition, ...]

    @property
    def moment(self) -> datetime:
        """The time that the answer is about."""
        return self.now if self.as_of is None else self.as_of

    def matches(self, item: MemoryItem) -> bool:
        """Return True if the item passes the metadata filter."""
        if not self.conditions:
            return True
        return matches_where(Where(item.scope.space(item.tier), conditions=self.conditions), item)


def parse_request(  # noqa: PLR0913 - the arguments of `recall`
    query: Any, n: Any, *, tiers: Any, budget: Any, min_relevance: Any, as_of: Any, where: Any, now: datetime
) -> RecallRequest:
    """Check the arguments of `recall`. Raise `BadInput` for the first that is invalid."""
    question, *phrases = _parse_queries(query)
    return RecallRequest(
        query=question,
        phrases=tuple(phrases),
        limit=(limit := None if n is None else check_limit(n)),
        n=max(CANDIDATES, limit or 0),
        now=now,
        tiers=_parse_tiers(tiers),
        budget=None if budget is None else check_count("budget", budget, minimum=1),
        min_relevance=check_fraction("min_relevance", min_relevance, error=BadQuery),
        as_of=None if as_of is None else check_utc("as_of", as_of),
        where=where,
        conditions=parse_where(where),
    )


def _parse_queries(query: Any) -> list[str]:
    """Return the question and its other phrasings, without repetitions."""
    if isinstance(query, str):
        return [check_query(query)]
    if not isinstance(query, Sequence) or isinstance(query, bytes) or not query:
        raise BadQuery(f"query must be a text, or a list of the question and its phrasings; got {query!r:.80}")
    queries = list(dict.fromkeys(map(check_query, query)))
    if len(queries) > MAX_QUERIES:
        raise BadQuery(f"a query may have at most {MAX_QUERIES} phrasings; got {len(queries)}")
    return queries


def _parse_tiers(tiers: Any) -> frozenset[str]:
    if tiers is None:
        return frozenset(TIER_NAMES)
    if isinstance(tiers, str) or not isinstance(tiers, Collection) or not all(name in TIER_NAMES for name in tiers):
        raise BadInput(f"tiers must be a list of names out of {', '.join(TIER_NAMES)}; got {tiers!r:.80}")
    return frozenset(tiers)


class QueryEmbedding:
    """The vector of one query, and its cosines with other texts. A failed embedder is not asked again."""

    def __init__(self, embedding: Embedding, query: str) -> None:
        self.embedding = embedding
        self._query = query
        # Serialized, so that later callers find the vectors in the embedder's cache.
        self._lock = asyncio.Lock()
        self._error: EmbedderFailed | None = None
        self._is_embedded = False
        self._known_cosines: dict[str, float] = {}

    async def embed_query(self) -> None:
        """Embed the query once, for all tiers that search with it. Raise `EmbedderFailed` if that fails."""
        if not self._is_embedded:
            await self._embed([])
            self._is_embedded = True

    async def try_embed_query(self) -> bool:
        """Embed the query; return False if the embedder has failed."""
        with suppress(EmbedderFailed):
            await self.embed_query()
        return self._error is None

    async def compute_cosines(self, texts: Sequence[str]) -> tuple[list[float], Calibration] | None:
        """Return the cosine of each text with the query, and the calibration; None if the embedder fails."""
        compared = [text[:_MAX_COMPARED_CHARACTERS] for text in texts]
        # Conversation and episodes hold the same texts.
        new = [text for text in compared if text not in self._known_cosines]
        try:
            if new or self._error is not None:
                rows = await self._embed(new)
                self._known_cosines.update(zip(new, (rows[1:] @ rows[0]).tolist(), strict=True))
            calibration = await calibrate_embedding(self.embedding)
        except EmbedderFailed:
            return None
        return [self._known_cosines[text] for text in compared], calibration

    async def _embed(self, texts: list[str]) -> Any:
        async with self._lock:
            if self._error is not None:
                raise self._error
            try:
                return await self.embedding.embed([self._query, *texts])
            except EmbedderFailed as error:
                self._error = error
                raise
