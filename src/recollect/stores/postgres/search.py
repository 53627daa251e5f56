"""Searching: one statement finds who leads by meaning and by words, who stands around them, and what speaks for each.

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
from recollect.stores.evidence import SCORE_STEPS, Ask, Brief, Column, Found, Glance, Matches, in_order, place_key
from recollect.stores.postgres import index, models
from recollect.stores.postgres.filters import Filter, Parts
from recollect.stores.postgres.journey import Rows, Statement, Values
from recollect.stores.postgres.models import Models
from recollect.stores.postgres.rows import CANDIDATE, WIDTH, candidate_of, named
from recollect.stores.postgres.server import Server, Work
from recollect.stores.postgres.text import given, handle, sayable
from recollect.stores.where import Where
from recollect.values import Space

# From each speaker to the next one, so that a space of many turns and few speakers is not read through.
_STANDING = f"""
    select {models.AS_JSON}, s.id, s.items, s.words,
        case when s.items >= %(large)s then {index.WHOLE.format(generation=models.GENERATION, dim=models.DIM)} end,
        array(
        with recursive known (speaker) as (
            (
                select r.speaker
                from recollect.records r
                where r.tenant = %(tenant)s and r.space = s.id and r.speaker is not null
                order by r.speaker
                limit 1
            )
            union all
            select (
                select r.speaker
                from recollect.records r
                where r.tenant = %(tenant)s and r.space = s.id and r.speaker > known.speaker
                order by r.speaker
                limit 1
            )
            from known
            where known.speaker is not null
        )
        select speaker from known where speaker is not null
    )
    from (select) always
    left join recollect.spaces s on s.tenant = %(tenant)s and s.handle = %(space)s
"""  # noqa: S608 - constant clauses

_ANY_VECTOR = """
    select 1
    from recollect.vectors v
    where v.tenant = %(tenant)s and v.space = %(number)s and v.generation = %(generation)s
    limit 1
"""

# The passage of an item that is nearest.
_PASSAGE = """
    select {what}
    from recollect.vectors v
    where v.tenant = %(tenant)s and v.space = %(number)s and v.generation = %(generation)s and v.place = {row}.place
    order by v.data::vector <#> %(full)s
    limit 1
"""

# Who is near by the question in half precision, and how near in full.
_NEAR = f"""
    close as materialized (
        select v.place, v.data <#> %(half)s as far
        from recollect.vectors v
        {{join}}
        where v.tenant = %(tenant)s and v.space = %(number)s and v.generation = %(generation)s and {{filter}}
        order by far
        limit %(most)s
    ),
    near as materialized (
        select c.place, ({_PASSAGE.format(what="v.data::vector <#> %(full)s", row="c")}) as far
        from (select distinct place from close) c
    )
"""  # noqa: S608 - constant clauses
_BY_INDEX = _NEAR.replace(
    "v.data <#> %(half)s as far", "v.data::halfvec({dim}) <#> %(half)s::halfvec({dim}) as far"
).replace("and {filter}", "and vector_dims(v.data) = {dim} and {filter}")
_NOBODY_NEAR = """
    close as (select 0.0::float8 as far where false),
    near as (select 0::bigint as place, 0.0::float8 as far where false)
"""

# A row for each candidate. The last one is about all of them: how many lead by meaning and by words, how many items of
# the space hold each term, and how near those can be who were not looked at.
_LOOK = f"""
    with {{near}},
    posted as materialized (
        select asked.at::int, p.place, p.count, p.length
        from unnest(%(terms)s::text[]) with ordinality as asked (term, at)
        cross join lateral (
            select p.place, p.count, p.length
            from recollect.postings p
            where p.tenant = %(tenant)s and p.space = %(number)s and p.term = asked.term
            offset 0
        ) p
    ),
    held as materialized (
        select at, count(*)::int as holders,
            ln(1.0::float8 + (%(items)s - count(*) + 0.5::float8) / (count(*) + 0.5::float8)) as weight
        from posted
        group by at
    ),
    matched as materialized (
        select p.place, round({SCORE_STEPS}::float8 * sum(
            held.weight * p.count * {K1 + 1.0}::float8 / (p.count + %(base)s::float8 + %(slope)s::float8 * p.length)
        )) as score
        from posted p
        join held on held.at = p.at
        {{join}}
        where {{filter}}
        group by p.place
        order by score desc
        fetch first %(limit)s rows with ties
    ),
    nearest as materialized (
        select place
        from near
        where far <= coalesce(
            (select far from near order by far limit 1 offset %(limit)s - 1) + %(noise)s::float8, 'infinity'
        )
    ),
    leaders as materialized (
        select r.*
        from (select place from nearest union select place from matched) led
        cross join lateral (
            select *
            from recollect.records r
            where r.tenant = %(tenant)s and r.space = %(number)s and r.place = led.place
            offset 0
        ) r
    ),
    candidates as materialized (
        select * from leaders
        union all
        select distinct on (r.place) r.*
        from leaders led
        cross join lateral (
            select *
            from recollect.records r
            where r.tenant = %(tenant)s and r.space = %(number)s and r.session_handle = led.session_handle
                and r.position between led.position - %(reach)s and led.position + %(reach)s and {{around}}
            offset 0
        ) r
        where r.place not in (select place from leaders)
    )
    select {CANDIDATE}, {{vector}}, words.at, words.counts, null::float8 as edge
    from candidates r
    left join (
        select p.place, array_agg(p.at) as at, array_agg(p.count) as counts
        from posted p
        where p.place in (select place from candidates)
        group by p.place
    ) words on words.place = r.place
    union all
    select {", ".join(["null"] * (WIDTH - 3))},
        (select count(*) from nearest), (select count(*) from matched), null, null, array_agg(at), array_agg(holders),
        (select max(far) from close having count(*) = %(most)s)
    from held
"""  # noqa: S608 - constant clauses

# More than are wanted: an item may have several passages, and close ones are told apart only in full precision.
_SPARE = 16
# More than summing in single precision moves a cosine by, or summing in another order a score.
_NOISE = 1e-5


@dataclass(frozen=True, slots=True)
class Standing:
    """What a space holds, as far as every search has to know."""

    models: Models
    number: int | None
    corpus: Corpus
    speakers: frozenset[str]
    indexed: bool | None = None
    """Whether it has an index by meaning; None when it is too small for one."""


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


def first_of(space: Space) -> Statement:
    """What a transaction in which a space is searched begins with; `standing` reads the answer."""
    return Statement(_STANDING, {**named(space), "large": index.LARGE})


def standing(first: Rows) -> Standing:
    [(known, number, items, words, whole, speakers)] = first
    corpus = Corpus(items, words / items) if items else Corpus(0, 0.0)
    indexed = bool(whole) if items and items >= index.LARGE else None
    return Standing(models.known(known), number, corpus, frozenset(map(given, speakers)), indexed)


async def look(work: Work, at: Standing, ask: Ask, *, once: bool = False) -> Candidates | None:
    """Everybody who is among the first `limit` by meaning or by words, and the turns around them.

    With `once` the transaction is over afterwards, which saves a journey: it is not known then, and None is the answer,
    when it would have taken another look.
    """
    handles = [handle(term) if sayable(term) else "" for term in ask.terms]  # no term is empty
    if at.number is None or not at.corpus.items or (ask.vector is None and not any(handles)):
        return _nobody([rarity(at.corpus, 0) if at.corpus.items else 0.0 for _ in handles])
    filter, limit = Filter(ask.where), max(ask.limit, 1)  # of none, too, it is told what the terms are worth
    by_meaning = ask.vector is not None and await _can_be_near(work, at, ask.vector)
    by_index = by_meaning and at.indexed is True and filter.is_wide
    sql = _statement(filter, by_meaning=by_meaning, dim=at.models.dim if by_index else None)
    values = {**filter.values, **_values(at, ask, by_meaning=by_meaning), "terms": handles, "limit": limit}
    most = 2 * limit + _SPARE
    if by_index:
        await work.by_index(2 * most)
    while True:
        *rows, last = await (work.last if once else work.rows)(sql, {**values, "most": most})
        near, matched, _, _, asked, holders, edge = last[WIDTH - 3 :]
        cosines = _cosines([row[WIDTH] for row in rows], ask.vector if by_meaning else None)
        if near >= limit if by_index else edge is None or _complete(cosines, limit, -edge, at.models.dim):
            break
        if once:
            return None
        if by_index:  # it gave up before it had enough
            by_index, sql = False, _statement(filter, by_meaning=True)
        else:
            most *= 4
    held = dict(zip(asked or (), holders or (), strict=True))
    weights = [rarity(at.corpus, held.get(number, 0)) for number in range(1, len(handles) + 1)]
    if ask.worth_it is not None and not ask.worth_it(_glance(rows, cosines, weights)):
        return _nobody(weights)
    return _laid_out(rows, cosines, weights, at.corpus, crowded=max(near, matched) > ask.limit)


def _values(at: Standing, ask: Ask, *, by_meaning: bool) -> Values:
    values: Values = {
        "tenant": named(ask.where.space)["tenant"],
        "number": at.number,
        "items": at.corpus.items,
        "base": K1 * (1.0 - B),
        "slope": K1 * B / (at.corpus.mean_length or 1.0),
        "reach": float(ask.reach),
        "noise": _NOISE,
    }
    if by_meaning and ask.vector is not None:
        values["generation"] = at.models.generation
        values["half"] = HalfVector(ask.vector.astype(np.float16))
        values["full"] = FullVector(ask.vector)
    return values


def _statement(filter: Filter, *, by_meaning: bool, dim: int | None = None) -> str:
    """With `dim` the near ones are found by the index of vectors of so many dimensions."""
    return _put_together(filter.about("v"), filter.about("p"), filter.sql, by_meaning, dim)


@lru_cache(maxsize=256)
def _put_together(of_vectors: Parts, of_words: Parts, around: str, by_meaning: bool, dim: int | None) -> str:
    """Few kinds of questions are asked, each of them often."""
    near = _NOBODY_NEAR
    if by_meaning:
        join, meant = of_vectors
        near = (_NEAR if dim is None else _BY_INDEX).format(join=join, filter=meant, dim=dim)
    join, meant = of_words
    vector = f"({_PASSAGE.format(what='v.data', row='r')})" if by_meaning else "null"
    return _LOOK.format(near=near, join=join, filter=meant, around=around, vector=vector)


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
    space = ask.where.space
    async with server.reading(space.tenant, first_of(space)) as work:
        at = standing(work.first)
        found = await look(work, at, ask)
    assert found is not None
    return at, found
