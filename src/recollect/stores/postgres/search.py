"""Searching by meaning and by words: the server finds who leads, and the leaders are weighed exactly here.

The server's sums differ from ours beyond the fifth decimal, or the third where vectors are halved in precision. So it
is asked for everybody who might be among the best, and the order is made from numbers that every store agrees on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pgvector import HalfVector

from recollect.errors import BadVector
from recollect.stores.base import Vector
from recollect.stores.bm25 import K1, B, Corpus, contribution, rarity
from recollect.stores.evidence import Brief, Found, Matches, in_order
from recollect.stores.postgres import items, models
from recollect.stores.postgres.filters import Filter
from recollect.stores.postgres.rows import SPACE, named
from recollect.stores.postgres.server import Work
from recollect.stores.postgres.text import handle, sayable
from recollect.stores.where import Where
from recollect.values import Space

_NEAR = f"""
    with scored as materialized (
        select v.place, max(-(v.data <#> %(query)s)) as score
        from recollect.vectors v
        {{join}}
        where v.tenant = %(tenant)s and v.space = {SPACE} and v.generation = %(generation)s and {{filter}}
        group by v.place
    )
    select place
    from scored
    where score >= (select min(score) from (select score from scored order by score desc limit %(limit)s) best)
        - %(slack)s::float8
"""  # noqa: S608 - constant clauses

_VECTORS = f"""
    select v.place, v.data
    from recollect.vectors v
    where v.tenant = %(tenant)s and v.space = {SPACE} and v.generation = %(generation)s and v.place = any(%(places)s)
"""  # noqa: S608 - constant clauses

_ANY_VECTOR = f"""
    select 1
    from recollect.vectors v
    where v.tenant = %(tenant)s and v.space = {SPACE} and v.generation = %(generation)s
    limit 1
"""  # noqa: S608 - constant clauses

_CORPUS = "select items, words from recollect.spaces where tenant = %(tenant)s and handle = %(space)s"

_HOLDERS = f"""
    select p.term, count(*)
    from recollect.postings p
    where p.tenant = %(tenant)s and p.space = {SPACE} and p.term = any(%(terms)s)
    group by p.term
"""  # noqa: S608 - constant clauses

_MATCHING = f"""
    with scored as materialized (
        select p.place, sum(
            asked.weight * p.count * {K1 + 1.0}::float8
            / (p.count + {K1}::float8 * ({1.0 - B}::float8 + {B}::float8 * p.length / %(mean)s::float8))
        ) as score
        from unnest(%(terms)s::text[], %(weights)s::float8[]) as asked (term, weight)
        join recollect.postings p on p.term = asked.term
        {{join}}
        where p.tenant = %(tenant)s and p.space = {SPACE} and {{filter}}
        group by p.place
    )
    select place
    from scored
    where score >= (select min(score) from (select score from scored order by score desc limit %(limit)s) best) - 1e-5
"""  # noqa: S608 - constant clauses

_COUNTS = f"""
    select p.place, p.term, p.count
    from recollect.postings p
    where p.tenant = %(tenant)s and p.space = {SPACE} and p.place = any(%(places)s) and p.term = any(%(terms)s)
"""  # noqa: S608 - constant clauses


@dataclass(frozen=True, slots=True)
class Words:
    """The terms of a question, and what each is worth in one space."""

    terms: tuple[str, ...]
    weights: tuple[float, ...] = ()
    corpus: Corpus = field(default_factory=lambda: Corpus(0, 0.0))

    @property
    def asked(self) -> dict[str, float]:
        """What can be asked for at all, by its handle: half a character is in no text."""
        found: dict[str, float] = {}
        for term, weight in zip(self.terms, self.weights, strict=True):
            if sayable(term):
                found[handle(term)] = found.get(handle(term), 0.0) + weight
        return found


async def nearest(work: Work, where: Where, query: Vector, limit: int) -> list[Found]:
    known = await models.read(work)
    places = await near(work, where, query, limit, known)
    cosines = await exact(work, where.space, query, places, known)
    briefs = await items.briefs(work, where.space, places)
    return in_order([Found(briefs[place], cosine) for place, cosine in cosines.items()], limit)


async def near(work: Work, where: Where, query: Vector, limit: int, known: models.Models) -> list[int]:
    """Where everybody stands who might be among the nearest."""
    if known.active is None or limit == 0:
        return []
    values = {**named(where.space), "generation": known.generation}
    if len(query) != known.active.dim:
        if await work.row(_ANY_VECTOR, values) is None:
            return []
        raise BadVector(
            f"a vector has {len(query)} dimensions where {known.active.dim} are stored; is it the right embedder?"
        )
    filter = Filter(where)
    join, meant = filter.about("v")
    sql = _NEAR.format(join=join, filter=meant)
    # What halving the question's precision, and summing in single precision, can move a cosine by; for two of them.
    slack = 2.0 * (2.0**-11 + len(query) * 2.0**-24) + 1e-5
    values |= {**filter.values, "query": HalfVector(query.astype(np.float16)), "limit": limit, "slack": slack}
    return [row[0] for row in await work.rows(sql, values)]


async def exact(
    work: Work, space: Space, query: Vector, places: Iterable[int], known: models.Models
) -> dict[int, float]:
    """The cosine of the best passage of each place that has any."""
    values = {**named(space), "generation": known.generation, "places": list(places)}
    if not values["places"]:
        return {}
    rows = await work.rows(_VECTORS, values)
    if not rows:
        return {}
    matrix = np.array([row[1].to_numpy() for row in rows], np.float64)
    best: dict[int, float] = {}
    for (place, _), score in zip(rows, (matrix @ query.astype(np.float64)).tolist(), strict=True):
        best[place] = max(score, best.get(place, score))
    return best


async def weighed(work: Work, space: Space, terms: Sequence[str]) -> Words:
    """What terms are worth, by the statistics of this space alone."""
    row = await work.row(_CORPUS, named(space))
    if row is None or row[0] == 0:
        return Words(tuple(terms), (0.0,) * len(terms))
    corpus = Corpus(row[0], row[1] / row[0])
    handles = [handle(one) if sayable(one) else None for one in terms]
    asked = [one for one in handles if one is not None]
    holders = dict(await work.rows(_HOLDERS, {**named(space), "terms": asked})) if asked else {}
    return Words(tuple(terms), tuple(rarity(corpus, holders.get(one, 0)) for one in handles), corpus)


async def matched(work: Work, where: Where, words: Words, limit: int) -> list[int]:
    """Where everybody stands who might be among those that match best."""
    asked = words.asked
    if not asked or not words.corpus.items or limit == 0:
        return []
    filter = Filter(where)
    values = {
        **named(where.space),
        **filter.values,
        "terms": list(asked),
        "weights": list(asked.values()),
        "mean": words.corpus.mean_length or 1.0,
        "limit": limit,
    }
    join, meant = filter.about("p")
    return [row[0] for row in await work.rows(_MATCHING.format(join=join, filter=meant), values)]


async def parts(work: Work, space: Space, words: Words, briefs: Mapping[int, Brief]) -> dict[int, tuple[float, ...]]:
    """What each term says for each of these items; those for which none says anything are left out."""
    asked = words.asked
    if not asked or not briefs:
        return {}
    rows = await work.rows(_COUNTS, {**named(space), "places": list(briefs), "terms": list(asked)})
    of_term: dict[str, list[tuple[int, int]]] = {}
    for place, term, count in rows:
        of_term.setdefault(term, []).append((place, count))
    found = {row[0]: [0.0] * len(words.terms) for row in rows}
    for at, term in enumerate(words.terms):
        held = of_term.get(handle(term), []) if sayable(term) else []
        counts = np.array([count for _, count in held], np.float64)
        lengths = np.array([briefs[place].length for place, _ in held], np.float64)
        said = contribution(words.corpus, counts, lengths, words.weights[at]).tolist()
        for (place, _), part in zip(held, said, strict=True):
            found[place][at] = part
    return {place: tuple(said) for place, said in found.items()}


async def matching(work: Work, where: Where, terms: Sequence[str], limit: int) -> Matches:
    words = await weighed(work, where.space, terms)
    briefs = await items.briefs(work, where.space, await matched(work, where, words, limit))
    said = await parts(work, where.space, words, briefs)
    found = [Found(briefs[place], sum(one), one) for place, one in said.items()]
    return Matches(tuple(in_order(found, limit)), words.weights, words.corpus.items)
