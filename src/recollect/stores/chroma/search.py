"""Searching a shelf: who is nearest, who shares words, who stands beside whom; exactly, and in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from recollect.clock import aware
from recollect.errors import BadVector
from recollect.stores.chroma.batch import Models, Rows
from recollect.stores.chroma.cells import Kept
from recollect.stores.chroma.matrix import DOUBT
from recollect.stores.chroma.shelf import Shelf
from recollect.stores.chroma.words import Weighed
from recollect.stores.evidence import SCORE_STEPS, Ask, Brief, Evidence, Found, Matches, in_order, laid_out, nothing
from recollect.stores.ops import Put
from recollect.stores.where import Where, holds
from recollect.values import MemoryItem

Query = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Nearness:
    """What is known of vectors: items by their cosine, best first and within `DOUBT`, exact ones by id, and they."""

    best_first: Callable[[Query], Iterable[tuple[str, float]]]
    cosines: Callable[[Sequence[str], Query], dict[str, float]]
    rows: Callable[[str], Rows | None]
    """The vectors of an item, as they are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """One shelf, and the vectors that answer for it."""

    shelf: Shelf
    models: Models
    near: Nearness

    def whole(self, ids: Sequence[str]) -> list[Put]:
        """The items as writes that make them anew elsewhere."""
        puts = []
        for kept in (self.shelf.kept[id] for id in dict.fromkeys(ids) if id in self.shelf.kept):
            rows = self.near.rows(kept.item.id) if self.models.generation in kept.refs else None
            vectors = None if rows is None else rows.astype(np.float32)
            model = None if rows is None else self.models.active
            puts.append(Put(item=kept.item, vectors=vectors, terms=tuple(kept.terms), model=model))
        return puts

    def find(self, where: Where, limit: int, after: MemoryItem | None) -> list[MemoryItem]:
        where = _utc(where)
        only = self._named(where)
        if only is not None:
            found = sorted(self._meant(where, only), key=_age, reverse=True)
            if after is not None:
                found = [kept for kept in found if _age(kept) < (after.created_at, after.id)]
            return [kept.item for kept in found[:limit]]
        items: list[MemoryItem] = []
        for kept in self.shelf.newest_first(after) if limit else ():
            if holds(where, kept.item):
                items.append(kept.item)
                if len(items) == limit:
                    break
        return items

    def nearest(self, where: Where, query: Query, limit: int) -> list[Found]:
        if not self._has_vectors(query):
            return []
        taken = self._taken(_utc(where), self.near.best_first(query), limit, DOUBT)
        cosines = self.near.cosines(taken, query)
        return in_order([Found(self._brief(id), cosines[id]) for id in taken], limit)

    def matching(self, where: Where, terms: Sequence[str], limit: int) -> Matches:
        if not self.shelf.kept:
            return Matches(weights=(0.0,) * len(terms))
        return self._matched(where, self.shelf.words.weigh(terms), limit)

    def _matched(self, where: Where, weighed: Weighed, limit: int) -> Matches:
        taken = self._taken(_utc(where), weighed.best_first(), limit, 2 / SCORE_STEPS)
        parts = weighed.parts(taken)
        found = [
            Found(self._brief(id), float(row.sum()), tuple(row.tolist())) for id, row in zip(taken, parts, strict=True)
        ]
        return Matches(tuple(in_order(found, limit)), weighed.weights, weighed.items)

    def around(self, where: Where, places: Sequence[tuple[str, float]], reach: int) -> list[Brief]:
        where = _utc(where)
        near = {
            id: (session, position)
            for session in {session for session, _ in places}
            for id, position in self.shelf.turns(session).items()
        }
        by_session: dict[str, list[float]] = {}
        for session, at in places:
            by_session.setdefault(session, []).append(at)
        found = [
            self._brief(id)
            for id, (session, position) in near.items()
            if any(abs(position - at) <= reach for at in by_session[session]) and holds(where, self.shelf.kept[id].item)
        ]
        return sorted(found, key=lambda brief: (brief.session, brief.position, brief.id))

    def last_turns(self, session: str, limit: int) -> list[MemoryItem]:
        turns = sorted(((position, id) for id, position in self.shelf.turns(session).items()), reverse=True)
        return [self.shelf.kept[id].item for _, id in turns[:limit]]

    def gather(self, ask: Ask) -> Evidence:
        near = [] if ask.vector is None else self.nearest(ask.where, ask.vector, ask.limit)
        if not self.shelf.kept:
            return nothing(ask)
        weighed = self.shelf.words.weigh(ask.terms)
        matches = self._matched(ask.where, weighed, ask.limit)
        briefs = {found.brief.id: found.brief for found in (*near, *matches.found)}
        turns = [(b.session, b.position) for b in briefs.values() if b.session is not None and b.position is not None]
        briefs.update({brief.id: brief for brief in self.around(ask.where, turns, ask.reach)})
        ids = list(briefs)
        cosines = {} if ask.vector is None or not near else self.near.cosines(ids, ask.vector)
        parts = weighed.parts(ids)
        return laid_out(briefs.values(), cosines, dict(zip(ids, parts, strict=True)), matches.weights, self.speakers)

    @property
    def speakers(self) -> frozenset[str]:
        return frozenset(name for name, said in self.shelf.speakers.items() if said > 0)

    def _has_vectors(self, query: Query) -> bool:
        model = self.models.active
        if model is None or not any(self.models.generation in kept.refs for kept in self.shelf.kept.values()):
            return False
        if len(query) != model.dim:
            raise BadVector(
                f"a vector has {len(query)} dimensions where {model.dim} are stored; is it the right embedder?"
            )
        return True

    def _taken(self, where: Where, ranked: Iterable[tuple[str, float]], limit: int, doubt: float) -> list[str]:
        """The best that are meant, and whoever is so close to the last of them that its place is in doubt."""
        only = self._named(where)
        taken: list[str] = []
        enough = -np.inf
        for id, score in ranked if limit else ():
            if score < enough:
                break
            if (only is None or id in only) and holds(where, self.shelf.kept[id].item):
                taken.append(id)
                if len(taken) == limit:
                    enough = score - doubt
        return taken

    def _named(self, where: Where) -> frozenset[str] | None:
        """The few items that can be meant at all, where the question says so."""
        keyed = self.shelf.keyed(where.key) if where.key is not None else None
        if where.ids is None or keyed is None:
            return keyed if where.ids is None else where.ids
        return where.ids & keyed

    def _meant(self, where: Where, only: frozenset[str]) -> Iterator[Kept]:
        for id in only:
            kept = self.shelf.kept.get(id)
            if kept is not None and holds(where, kept.item):
                yield kept

    def _brief(self, id: str) -> Brief:
        return self.shelf.brief(id, self.models.generation)


def _utc(where: Where) -> Where:
    def utc(moment: datetime | None) -> datetime | None:
        return None if moment is None else aware(moment)

    return replace(where, live_at=utc(where.live_at), known_at=utc(where.known_at), open_at=utc(where.open_at))


def _age(kept: Kept) -> tuple[datetime, str]:
    return kept.item.created_at, kept.item.id
