"""Items in dictionaries: every answer is worked out from all items of the space, which is slow and plainly right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from recollect.clock import aware, to_micros
from recollect.errors import BadVector, Conflict
from recollect.stores.admission import mismatch
from recollect.stores.base import SpaceCount, Vector
from recollect.stores.bm25 import Corpus, contribution, rarity
from recollect.stores.evidence import Ask, Brief, Evidence, Found, Matches, brief_of, in_order, laid_out
from recollect.stores.in_memory.undo import Undo
from recollect.stores.ops import Delete, Embed, Model, Put, RecordWrite, Touch
from recollect.stores.vectors import packed
from recollect.stores.where import Where, holds, paths_of
from recollect.values import NOTHING, MemoryItem, Space

Rows = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Kept:
    """An item with its words, its vectors, and those of a model that is being prepared."""

    item: MemoryItem
    terms: tuple[str, ...] = ()
    vectors: Rows | None = None
    prepared: Rows | None = None


class Items:
    """All items, by space and id."""

    def __init__(self) -> None:
        self._spaces: dict[Space, dict[str, Kept]] = {}
        self._paths: dict[Space, dict[str, None]] = {}
        self._models: dict[str, Model] = {}

    def apply(self, write: RecordWrite, undo: Undo) -> None:
        match write:
            case Put():
                self._put(write, undo)
            case Delete():
                self._delete(write, undo)
            case Touch():
                self._touch(write, undo)
            case Embed():
                self._embed(write, undo)

    def get(self, space: Space, ids: Sequence[str]) -> list[MemoryItem]:
        held = self._of(space)
        return [held[id].item for id in dict.fromkeys(ids) if id in held]

    def whole(self, space: Space, ids: Sequence[str]) -> list[Put]:
        held, model = self._of(space), self.model()
        return [
            Put(
                item=kept.item,
                terms=kept.terms,
                vectors=None if kept.vectors is None else kept.vectors.astype(np.float32),
                model=None if kept.vectors is None else model,
            )
            for kept in (held[id] for id in dict.fromkeys(ids) if id in held)
        ]

    def tenants(self) -> set[str]:
        return {space.tenant for space, held in self._spaces.items() if held}

    def find(self, where: Where, limit: int, after: MemoryItem | None) -> list[MemoryItem]:
        found = sorted((kept.item for kept in self._meant(where)), key=_age, reverse=True)
        if after is not None:
            found = [item for item in found if _age(item) < _age(after)]
        return found[:limit]

    def terms(self, space: Space, ids: Sequence[str]) -> dict[str, str]:
        held = self._of(space)
        return {id: " ".join(held[id].terms) for id in ids if id in held}

    def nearest(self, where: Where, query: Vector, limit: int) -> list[Found]:
        model = self.model()
        if model is None or not any(kept.vectors is not None for kept in self._of(where.space).values()):
            return []
        if len(query) != model.dim:
            raise BadVector(
                f"a vector has {len(query)} dimensions where {model.dim} are stored; is it the right embedder?"
            )
        wide = query.astype(np.float64)
        found = [
            Found(_brief(kept), float((kept.vectors.astype(np.float64) @ wide).max()))
            for kept in self._meant(where)
            if kept.vectors is not None and len(kept.vectors)
        ]
        return in_order(found, limit)

    def matching(self, where: Where, terms: Sequence[str], limit: int) -> Matches:
        everything = list(self._of(where.space).values())
        if not everything:
            return Matches(weights=(0.0,) * len(terms))
        corpus = Corpus(len(everything), sum(len(kept.terms) for kept in everything) / len(everything))
        weights = tuple(rarity(corpus, sum(term in kept.terms for kept in everything)) for term in terms)
        found = [
            Found(_brief(kept), sum(parts), parts)
            for kept in self._meant(where)
            if any(parts := tuple(_part(corpus, kept, *pair) for pair in zip(terms, weights, strict=True)))
        ]
        return Matches(tuple(in_order(found, limit)), weights, len(everything))

    def gather(self, ask: Ask) -> Evidence:
        model = self.model()
        if ask.vector is not None and model is not None and ask.model not in (None, model):
            raise mismatch(model, ask.model)
        speakers = self.speakers(ask.where.space)
        near = [] if ask.vector is None else self.nearest(ask.where, ask.vector, ask.limit)
        matches = self.matching(ask.where, ask.terms, ask.limit)
        briefs = {found.brief.id: found.brief for found in (*near, *matches.found)}
        turns = [(b.session, b.position) for b in briefs.values() if b.session is not None and b.position is not None]
        briefs.update({brief.id: brief for brief in self.around(ask.where, turns, ask.reach)})
        only = replace(ask.where, ids=frozenset(briefs))
        near = [] if ask.vector is None else self.nearest(only, ask.vector, len(briefs))
        matched = self.matching(only, ask.terms, len(briefs)).found
        return laid_out(
            briefs.values(),
            {found.brief.id: found.score for found in near},
            {found.brief.id: found.parts for found in matched},
            matches.weights,
            speakers,
        )

    def around(self, where: Where, places: Sequence[tuple[str, float]], reach: int) -> list[Brief]:
        found = [
            _brief(kept)
            for kept in self._meant(where)
            if (turn := kept.item.turn) is not None
            and any(turn.session == session and abs(turn.position - at) <= reach for session, at in places)
        ]
        return sorted(found, key=lambda brief: (brief.session, brief.position, brief.id))

    def last_turns(self, space: Space, session: str, limit: int) -> list[MemoryItem]:
        turns = [
            (kept.item.turn.position, kept.item.id)
            for kept in self._of(space).values()
            if kept.item.turn is not None and kept.item.turn.session == session
        ]
        return [self._of(space)[id].item for _, id in sorted(turns, reverse=True)[:limit]]

    def paths(self, space: Space) -> frozenset[str]:
        return frozenset(self._paths.get(space, ()))

    def speakers(self, space: Space) -> frozenset[str]:
        turns = (kept.item.turn for kept in self._of(space).values())
        return frozenset(turn.speaker for turn in turns if turn is not None and turn.speaker is not None)

    def held(self) -> list[Space]:
        return list(dict.fromkeys((*self._spaces, *self._paths)))

    def wipe(self, space: Space, undo: Undo) -> int:
        """Everything of a space; how many items that was."""
        count = len(self._of(space))
        undo.drop(self._spaces, space)
        undo.drop(self._paths, space)
        return count

    def tidy_paths(self, space: Space, undo: Undo) -> None:
        """What may be filtered by is what the items that are left carry."""
        left = [path for kept in self._of(space).values() for path in paths_of(kept.item.metadata)]
        if space in self._paths:
            undo.set(self._paths, space, dict.fromkeys(left))

    def size(self) -> int:
        """The bytes of texts and vectors; what Python adds around them is not counted."""
        everything = [kept for held in self._spaces.values() for kept in held.values()]
        texts = sum(len(kept.item.content.encode()) for kept in everything)
        return texts + sum(kept.vectors.nbytes for kept in everything if kept.vectors is not None)

    def spaces(self, tenant: str | None) -> list[SpaceCount]:
        counts = [
            SpaceCount(space, len(held), max(kept.item.created_at for kept in held.values()))
            for space, held in self._spaces.items()
            if held and tenant in (None, space.tenant)
        ]
        return sorted(counts, key=lambda count: str(count.space).split("/"))

    def model(self) -> Model | None:
        return self._models.get("active")

    def adopt(self, model: Model, undo: Undo) -> None:
        active = self._models.get("active")
        if active is None:
            undo.set(self._models, "active", model)
        elif active != model:
            raise mismatch(active, model)

    def prepare(self, model: Model, undo: Undo) -> None:
        if self.model() is None:
            self.adopt(model, undo)
        if self._models.get("preparing") != model:
            self._change_all(lambda kept: replace(kept, prepared=None), undo)
            undo.set(self._models, "preparing", model)

    def unembedded(self, limit: int) -> list[MemoryItem]:
        lacking = [kept.item for held in self._spaces.values() for kept in held.values() if kept.prepared is None]
        return lacking[:limit]

    def switch(self, model: Model, undo: Undo) -> None:
        if self.model() == model and "preparing" not in self._models:
            return
        self.prepare(model, undo)
        if self.unembedded(1):
            raise Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
        undo.set(self._models, "active", model)
        undo.drop(self._models, "preparing")
        self._change_all(lambda kept: replace(kept, vectors=kept.prepared, prepared=None), undo)

    def _put(self, put: Put, undo: Undo) -> None:
        space = self._of(put.space)
        held = space.get(put.item.id)
        if put.expect is not None and put.expect != (held.item.version if held else 0):
            at = f"is at version {held.item.version}" if held else "is not there"
            raise Conflict(f"item {put.item.id!r} {at}, not at version {put.expect}; read it again")
        kept = replace(held, item=_as_stored(put.item, held.item)) if held else Kept(_as_stored(put.item, None))
        if put.terms is not None:
            kept = replace(kept, terms=tuple(put.terms))
        if put.vectors is not None:
            assert put.model is not None
            self.adopt(put.model, undo)
            kept = replace(kept, vectors=packed(put.vectors), prepared=None)
        undo.set(space, put.item.id, kept)
        for path in paths_of(put.item.metadata):
            undo.set(self._paths.setdefault(put.space, {}), path, None)

    def _delete(self, delete: Delete, undo: Undo) -> None:
        held = self._of(delete.space).get(delete.id)
        if delete.expect is not None and (held is None or held.item.version != delete.expect):
            at = f"is at version {held.item.version}" if held else "is not there"
            raise Conflict(f"item {delete.id!r} {at}, not at version {delete.expect}; read it again")
        undo.drop(self._of(delete.space), delete.id)

    def _touch(self, touch: Touch, undo: Undo) -> None:
        space, at = self._of(touch.space), aware(touch.at)
        for id in touch.ids:
            if kept := space.get(id):
                item = kept.item
                last = max(item.last_accessed or at, at)
                seen = replace(item, access_count=item.access_count + 1, last_accessed=last)
                undo.set(space, id, replace(kept, item=seen))

    def _embed(self, embed: Embed, undo: Undo) -> None:
        if self._models.get("preparing") != embed.model:
            raise Conflict(
                f"{embed.model.name!r} is not being prepared (any more); ask `unembedded` what there is to do"
            )
        space = self._of(embed.space)
        kept = space.get(embed.id)
        if kept is not None and embed.expect in (None, kept.item.version):
            undo.set(space, embed.id, replace(kept, prepared=packed(embed.vectors)))

    def _of(self, space: Space) -> dict[str, Kept]:
        return self._spaces.setdefault(space, {})

    def _meant(self, where: Where) -> list[Kept]:
        where = replace(where, live_at=_utc(where.live_at), known_at=_utc(where.known_at))
        return [kept for kept in self._of(where.space).values() if holds(where, kept.item)]

    def _change_all(self, change: Callable[[Kept], Kept], undo: Undo) -> None:
        for held in self._spaces.values():
            for id, kept in list(held.items()):
                undo.set(held, id, change(kept))


def _as_stored(item: MemoryItem, held: MemoryItem | None) -> MemoryItem:
    """The item as another process would read it: plain metadata, UTC, and the store's own version and counts."""
    turn = item.turn
    return replace(
        item,
        version=held.version + 1 if held else 1,
        access_count=(held or item).access_count,
        last_accessed=(held or item).last_accessed,
        metadata=MappingProxyType(dict(item.metadata)) if item.metadata else NOTHING,
        created_at=aware(item.created_at),
        valid_from=_utc(item.valid_from),
        valid_to=_utc(item.valid_to),
        expires_at=_utc(item.expires_at),
        decayed_at=_utc(item.decayed_at),
        learned_at=_utc(item.learned_at),
        turn=replace(turn, position=float(turn.position)) if turn else None,
        derived_from=tuple(item.derived_from),
    )


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else aware(moment)


def _age(item: MemoryItem) -> tuple[int, str]:
    return to_micros(item.created_at), item.id


def _brief(kept: Kept) -> Brief:
    passages = 1 if kept.vectors is None else len(kept.vectors)
    return brief_of(kept.item, length=len(kept.terms), passages=passages)


def _part(corpus: Corpus, kept: Kept, term: str, weight: float) -> float:
    count, length = kept.terms.count(term), len(kept.terms)
    return float(contribution(corpus, np.array([count], np.float64), np.array([length], np.float64), weight)[0])
