"""The statement that searches: who leads by meaning and by words, who stands around them, and what speaks for each."""

from __future__ import annotations

from functools import lru_cache

from recollect.stores.bm25 import K1, B
from recollect.stores.evidence import SCORE_STEPS
from recollect.stores.postgres import models
from recollect.stores.postgres.filters import Filter, Parts
from recollect.stores.postgres.rows import CANDIDATE, WIDTH
from recollect.stores.postgres.standing import STANDING

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
# the space hold each term, how near those can be who were not looked at, and what is known of the space.
_UNASKED = "null::json"
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
    select {CANDIDATE}, {{vector}}, words.at, words.counts, null::float8 as edge, null::json as standing
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
        (select max(far) from close having count(*) = %(most)s), {_UNASKED}
    from held
"""  # noqa: S608 - constant clauses

# What the statement finds out by itself where a space is known by its name alone. Nobody is near there who cannot be
# compared, or should be found by an index.
_AT = f"""
    at as materialized (
        select s.id, s.items,
            {K1 * B}::float8 / coalesce(nullif(s.words / nullif(s.items, 0)::float8, 0.0), 1.0) as slope,
            case
                when s.items < %(large)s and {models.DIM}::int = %(dim)s then {models.GENERATION}::"char"
            end as generation
        from recollect.spaces s
        where s.tenant = %(tenant)s and s.handle = %(space)s
    )
"""  # noqa: S608 - constant clauses
_FOUND_OUT = {
    "%(number)s": "(select id from at)",
    "%(items)s": "(select items from at)",
    "%(slope)s::float8": "(select slope from at)",
    "%(generation)s": "(select generation from at)",
    _UNASKED + "\n    from held": f"({STANDING})\n    from held",
}


def of_known(filter: Filter, *, by_meaning: bool, dim: int | None = None) -> str:
    """In a space that is known, by its number; with `dim`, by the index of vectors of so many dimensions."""
    return _put_together(filter.about("v"), filter.about("p"), filter.sql, by_meaning, dim)


def of_named(filter: Filter, *, by_meaning: bool) -> str:
    """In a space of which nothing is known but its name."""
    return _finding_out(of_known(filter, by_meaning=by_meaning))


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


@lru_cache(maxsize=256)
def _finding_out(statement: str) -> str:
    for known, found_out in _FOUND_OUT.items():
        statement = statement.replace(known, found_out)
    return f"with {_AT}, {statement.strip().removeprefix('with')}"
