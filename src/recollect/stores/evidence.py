"""What a store knows that speaks for an answer: candidates with their cosine and their words, at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from recollect.clock import to_micros
from recollect.stores.ops import Model
from recollect.stores.where import Where
from recollect.values import MemoryItem

Column = NDArray[np.float64]


class Brief(NamedTuple):
    """What ranking has to know of an item, without its text."""

    id: str
    session: str | None
    position: float | None
    speaker: str | None
    created_at: int
    importance: float
    trust: float
    source: str
    length: int
    passages: int


def brief_of(item: MemoryItem, *, length: int, passages: int) -> Brief:
    turn = item.turn
    return Brief(
        id=item.id,
        session=turn.session if turn else None,
        position=turn.position if turn else None,
        speaker=turn.speaker if turn else None,
        created_at=to_micros(item.created_at),
        importance=item.importance,
        trust=item.trust,
        source=item.source,
        length=length,
        passages=passages,
    )


class Found(NamedTuple):
    """An item and its score; `parts` has one number for each term that was asked for."""

    brief: Brief
    score: float
    parts: tuple[float, ...] = ()


# Scores are told apart to the sixth decimal: what lies beyond is the noise of summing in another order.
SCORE_STEPS = 1e6


def in_order(found: Sequence[Found], limit: int) -> list[Found]:
    """The order that every store answers in: best first, and by id where scores are equal."""
    return [found[at] for at in best([one.brief.id for one in found], [one.score for one in found], limit)]


def best(ids: Sequence[str], scores: Sequence[float], limit: int) -> list[int]:
    """The same for who have no more than an id and a score yet: the places of the best."""
    ranked = sorted(
        (-round(score * SCORE_STEPS), id, at) for at, (id, score) in enumerate(zip(ids, scores, strict=True))
    )
    return [at for _, _, at in ranked[:limit]]


@dataclass(frozen=True, slots=True)
class Matches:
    """The items that share words with a query, and the weight that each of its terms has in this space."""

    found: tuple[Found, ...] = ()
    weights: tuple[float, ...] = ()
    items: int = 0


class Glance(NamedTuple):
    """What candidates have between them: the best cosine, and of each term whether anybody has it and what it weighs.

    The cosine is minus infinity where nobody has one.
    """

    nearest: float
    held: Sequence[bool]
    weights: Sequence[float]


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """What to look for: a vector, words, or both; `limit` of each kind, and the turns within `reach` of those."""

    where: Where
    vector: NDArray[np.float32] | None
    terms: tuple[str, ...]
    limit: int
    reach: int
    model: Model | None = None
    """The model that made the vector; a store that is bound to another refuses."""
    worth_it: Callable[[Glance], bool] | None = None
    """Whether such candidates need be looked at; a store that finds out early may answer that there is nobody."""


class Lookup(Protocol):
    """What a judge may still read, as of the moment of the evidence. Ids that are not there are passed over."""

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]: ...

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        """The words that items are found by, in their order and with a space between."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """The candidates by session, position and id: a column each.

    `cosines` is NaN where an item has no vector or none was asked for. `parts` has a row for each term that was asked
    for, and `weights` what that term is worth in this space.
    """

    briefs: tuple[Brief, ...]
    cosines: Column
    parts: NDArray[np.float64]
    weights: Column
    speakers: frozenset[str]

    def __len__(self) -> int:
        return len(self.briefs)

    @property
    def glance(self) -> Glance:
        held: list[bool] = np.any(self.parts > 0.0, axis=1).tolist()
        nearest = float(np.fmax.reduce(self.cosines, initial=-np.inf))
        return Glance(nearest, held, self.weights.tolist())


def nothing(ask: Ask, speakers: frozenset[str] = frozenset()) -> Evidence:
    """The evidence of an empty space."""
    terms = len(ask.terms)
    return Evidence((), np.empty(0), np.empty((terms, 0)), np.zeros(terms), speakers)


def laid_out(
    briefs: Iterable[Brief],
    cosines: Mapping[str, float],
    parts: Mapping[str, Sequence[float]],
    weights: Sequence[float],
    speakers: frozenset[str],
) -> Evidence:
    """Evidence from what is known by id: how a store that answers item by item puts it together."""
    ordered = in_place(briefs)
    table = np.zeros((len(ordered), len(weights)))
    for row, brief in enumerate(ordered):
        if brief.id in parts:
            table[row] = parts[brief.id]
    return Evidence(
        briefs=tuple(ordered),
        cosines=np.array([cosines.get(brief.id, np.nan) for brief in ordered], np.float64),
        parts=np.ascontiguousarray(table.T),
        weights=np.array(weights, np.float64),
        speakers=speakers,
    )


def in_place(briefs: Iterable[Brief]) -> list[Brief]:
    """Side by side with those that were said before and after."""
    return sorted(briefs, key=place_key)


def place_key(brief: Brief) -> tuple[str, float, str]:
    return brief.session or "", brief.position or 0.0, brief.id
