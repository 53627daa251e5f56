"""Searching: what is asked of the server, and the candidates that are made of its answer.

The server's sums differ from ours beyond the sixth decimal, or the third where the question is halved in precision. So
it is asked for everybody who might be among the best, and the order is made from numbers that every store agrees on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from pgvector import Vector as FullVector

from recollect.errors import BadVector
from recollect.stores.base import Vector
from recollect.stores.bm25 import K1, B, Corpus, contribution, rarity
from recollect.stores.evidence import Ask, Brief, Column, Found, Glance, Matches, in_order, place_key
from recollect.stores.postgres import look
from recollect.stores.postgres.filters import Filter
from recollect.stores.postgres.journey import Rows, Values
from recollect.stores.postgres.rows import WIDTH, candidate_of
from recollect.stores.postgres.server import Server, Work
from recollect.stores.postgres.standing import Standing, first_of, standing, values_of
from recollect.stores.postgres.text import handle, kept, sayable
from recollect.stores.where import Where

_ANY_VECTOR = """
    select 1
    from recollect.vectors v
    where v.tenant = %(tenant)s and v.space = %(number)s and v.generation = %(generation)s
    limit 1
"""

_SPARE = 16
# More than summing in single precision moves a cosine by, or summing in another order a score.
_NOISE = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Items by their places in the dialogue: a column each, as in `Evidence`, which see."""

    briefs: list[Brief]
    cosines: Column
    parts: NDArray[np.float64]
    weights: Column
    rows: list[tuple[Any, ...]]
    """As they were read."""
    crowded: bool = False
    """Whether some are here who may turn out not to be among the first, or who stand around those."""


def _nobody(weights: Sequence[float]) -> Candidates:
    return Candidates([], np.empty(0), np.empty((len(weights), 0)), np.array(weights, np.float64), [])


NOBODY = _nobody([])


async def at_once(server: Server, ask: Ask) -> tuple[Standing, Candidates | None]:
    """What a space holds, and what `looked` finds there, in one journey; None where that is not enough."""
    by_meaning, handles, limit = ask.vector is not None, _handles(ask), max(ask.limit, 1)
    filter = Filter(ask.where)
    values = {**filter.values, **_asked(ask), **values_of(ask.where.space), "terms": handles, "limit": limit}
    values |= {"most": _most(limit), "dim": 0 if ask.vector is None else len(ask.vector)}
    found = await server.read(ask.where.space.tenant, look.of_named(filter, by_meaning=by_meaning), values)
    at = standing([found[-1][-1:]])
    if not at.corpus.items:
        return at, _nobody([0.0] * len(handles))
    query = ask.vector if at.models.active is not None else None
    if query is not None and (at.indexed is not None or len(query) != at.models.dim):
        return at, None
    seen = _Seen(found, query)
    return at, _candidates(seen, at, ask) if seen.is_complete(limit, at.models.dim) else None


class _Seen:
    """The answer to a look."""

    def __init__(self, answer: Rows, query: Vector | None) -> None:
        *self.rows, last = answer
        self.near, self.matched, _, _, asked, holders, self.edge, _ = last[WIDTH - 3 :]
        self.held = dict(zip(asked or (), holders or (), strict=True))
        self.cosines = _cosines([row[WIDTH] for row in self.rows], query)

    def is_complete(self, limit: int, dim: int) -> bool:
        """Whether nobody who was not looked at can be among the nearest."""
        return self.edge is None or _complete(self.cosines, limit, -self.edge, dim)


def _candidates(seen: _Seen, at: Standing, ask: Ask) -> Candidates:
    weights = [rarity(at.corpus, seen.held.get(number, 0)) for number in range(1, len(ask.terms) + 1)]
    if ask.worth_it is not None and not ask.worth_it(_glance(seen.rows, seen.cosines, weights)):
        return _nobody(weights)
    crowded = max(seen.near, seen.matched) > ask.limit
    return _laid_out(seen.rows, seen.cosines, weights, at.corpus, crowded=crowded)


def _handles(ask: Ask) -> list[str]:
    return [handle(term) if sayable(term) else "" for term in ask.terms]  # no term is empty


async def looked(work: Work, at: Standing, ask: Ask) -> Candidates:
    """Everybody who is among the first `limit` by meaning or by words, and the turns around them."""
    handles = _handles(ask)
    if at.number is None or not at.corpus.items or (ask.vector is None and not any(handles)):
        return _nobody([rarity(at.corpus, 0) if at.corpus.items else 0.0 for _ in handles])
    filter, limit = Filter(ask.where), max(ask.limit, 1)  # of none, too, it is told what the terms are worth
    by_meaning = ask.vector is not None and await _can_be_near(work, at, ask.vector)
    by_index = by_meaning and at.indexed is True and filter.is_wide
    sql = look.of_known(filter, by_meaning=by_meaning, dim=at.models.dim if by_index else None)
    values = {**filter.values, **_asked(ask), **_known(at), "terms": handles, "limit": limit}
    most = _most(limit)
    if by_index:
        await work.by_index(2 * most)
    while True:
        seen = _Seen(await work.rows(sql, {**values, "most": most}), ask.vector if by_meaning else None)
        if seen.near >= limit if by_index else seen.is_complete(limit, at.models.dim):
            return _candidates(seen, at, ask)
        if by_index:  # it gave up before it had enough
            by_index, sql = False, look.of_known(filter, by_meaning=True)
        else:
            most *= 4


def _most(limit: int) -> int:
    """More than are wanted: an item may have several passages, and close ones are told apart only in full precision."""
    return 2 * limit + _SPARE


def _asked(ask: Ask) -> Values:
    values: Values = {
        "tenant": kept(ask.where.space.tenant),
        "base": K1 * (1.0 - B),
        "reach": float(ask.reach),
        "noise": _NOISE,
    }
    if ask.vector is not None:
        values |= {"half": HalfVector(ask.vector.astype(np.float16)), "full": FullVector(ask.vector)}
    return values


def _known(at: Standing) -> Values:
    return {
        "number": at.number,
        "items": at.corpus.items,
        "slope": K1 * B / (at.corpus.mean_length or 1.0),
        "generation": at.models.generation,
    }


async def _can_be_near(work: Work, at: Standing, query: Vector) -> bool:
    model = at.models.active
    if model is None:
        return False
    if len(query) != model.dim:
        values: Values = {"tenant": work.tenant, "number": at.number, "generation": at.models.generation}
        if await work.row(_ANY_VECTOR, values) is None:
            return False
        raise BadVector(f"a vector has {len(query)} dimensions where {model.dim} are stored; is it the right embedder?")
    return True


def _cosines(vectors: list[bytes | None], query: Vector | None) -> Column:
    """The cosine of each vector as the server sends it; NaN where there is none."""
    cosines = np.full(len(vectors), np.nan)
    if query is not None:
        there = [at for at, vector in enumerate(vectors) if vector is not None]
        packed = np.frombuffer(b"".join(filter(None, vectors)), _as_sent(len(query)))
        cosines[there] = packed["data"].astype(np.float64) @ query.astype(np.float64)
    return cosines


@lru_cache(maxsize=16)
def _as_sent(dim: int) -> np.dtype[np.void]:
    """A vector on the line: how long it is, and its numbers."""
    return np.dtype([("head", ">u4"), ("data", ">f2", dim)])


def _complete(cosines: Column, limit: int, edge: float, dim: int) -> bool:
    """Whether nobody who was not looked at can be among the nearest."""
    # What halving the question's precision, and summing in single precision, can move a cosine by.
    slack = 2.0**-11 + dim * 2.0**-24 + _NOISE
    return int(np.count_nonzero(cosines > edge + slack)) >= limit


def _glance(rows: list[tuple[Any, ...]], cosines: Column, weights: Sequence[float]) -> Glance:
    """Before anything is laid out, which takes longer: often nobody is near, and few have a word."""
    held = frozenset().union(*(row[WIDTH + 1] for row in rows if row[WIDTH + 1] is not None))
    nearest = float(np.fmax.reduce(cosines, initial=-np.inf))
    return Glance(nearest, [number in held for number in range(1, len(weights) + 1)], weights)


def _laid_out(
    rows: list[tuple[Any, ...]], cosines: Column, weights: Sequence[float], corpus: Corpus, *, crowded: bool
) -> Candidates:
    briefs = list(map(candidate_of, rows))
    order = sorted(range(len(rows)), key=list(map(place_key, briefs)).__getitem__)
    ordered, laid = [briefs[at] for at in order], [rows[at] for at in order]
    counts = [[0.0] * len(rows) for _ in weights]
    for column, row in enumerate(laid):
        if row[WIDTH + 1] is not None:
            for term, count in zip(row[WIDTH + 1], row[WIDTH + 2], strict=True):
                counts[term - 1][column] = count
    table = np.array(counts, np.float64).reshape(len(weights), len(rows))
    lengths = np.array([brief.length for brief in ordered], np.float64)
    weighed = np.array(weights, np.float64)
    parts = contribution(corpus, table, lengths, weighed[:, np.newaxis])
    return Candidates(ordered, cosines[order], parts, weighed, laid, crowded)


async def nearest(server: Server, where: Where, query: Vector, limit: int) -> list[Found]:
    _, found = await _searched(server, Ask(where, query, (), limit, -1))
    scored = zip(found.briefs, found.cosines.tolist(), strict=True)
    return in_order([Found(brief, cosine) for brief, cosine in scored if cosine == cosine], limit)


async def matching(server: Server, where: Where, terms: Sequence[str], limit: int) -> Matches:
    at, found = await _searched(server, Ask(where, None, tuple(terms), limit, -1))
    parts = [tuple(one) for one in found.parts.T.tolist()]
    scored = [Found(brief, sum(said), said) for brief, said in zip(found.briefs, parts, strict=True)]
    return Matches(tuple(in_order(scored, limit)), tuple(found.weights.tolist()), at.corpus.items)


async def _searched(server: Server, ask: Ask) -> tuple[Standing, Candidates]:
    at, found = await at_once(server, ask)
    if found is None:
        space = ask.where.space
        async with server.reading(space.tenant, first_of(space)) as work:
            at = standing(work.first)
            found = await looked(work, at, ask)
    return at, found
