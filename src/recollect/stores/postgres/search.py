"""Search by vectors and terms: the SQL, the candidates, and the evidence that is judged.

The server's scores differ from ours after the sixth decimal, or the third for a query in half precision. So it returns
every item that may be among the best, and the order is computed here, from numbers that are the same in every store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal, TypeVar

import numpy as np
from pgvector import HalfVector
from pgvector import Vector as FullVector
from psycopg import sql

from recollect.clock import to_utc
from recollect.errors import BadVector, RecollectError, StoreClosed
from recollect.stores import search
from recollect.stores.postgres import codec
from recollect.stores.postgres.connections import PostgresConnection, Rows, SqlParams, SqlStatement
from recollect.stores.postgres.records import GET_ITEMS, PostgresFilter, PostgresRecords
from recollect.stores.postgres.transactions import PostgresServer, PostgresTransaction
from recollect.stores.search import (
    BM25_B,
    BM25_K1,
    SCORE_SCALE,
    EvidenceLookup,
    EvidenceQuery,
    ItemBrief,
    SearchEvidence,
)
from recollect.stores.writes import Touch
from recollect.types import MemoryItem, Space

T = TypeVar("T")
Judge = Callable[[SearchEvidence, EvidenceLookup], T]
Read = Callable[..., Awaitable[Rows]]
"""A function that runs a statement with its parameters, after other statements."""

_logger = logging.getLogger("recollect.stores")

HNSW_MIN_ITEMS = 20_000
"""The size of a space from which an index is faster than a scan (docs/decisions/009)."""

_MAX_JUDGED_INLINE = 200
_MAX_SPECIAL_SPACES = 4096
_MAX_HNSW_BREADTH = 1000  # the maximum of `hnsw.ef_search`
_EXTRA_CANDIDATES = 16
_NO_LIMIT = 1 << 62
_CONTENT = 2  # in `codec.CANDIDATE_COLUMNS`
# More than the error of a sum in single precision, or in another order.
_SCORE_TOLERANCE = 1e-5


class PostgresSearch(PostgresRecords):
    """The search of the `Records` protocol, and the HNSW indexes that large spaces get in the background.

    Each large space has its own index. One index of all vectors would slow down every write several times, and its
    scans would have to skip the vectors of other spaces.
    """

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server)
        self._index_task: asyncio.Task[None] | None = None
        self._special_spaces: dict[Space, Literal["long", "empty"]] = {}
        """Spaces with texts that are too long to be read with the candidates, and spaces without items at their last
        search. Many users have no procedures, and each recall searches them."""

    async def gather(self, ask: EvidenceQuery, judge: Judge[T]) -> T:
        ask = ask.normalize()
        space = ask.where.space
        if self._special_spaces.get(space) != "long":
            answer = await self._search(partial(self._server.read, space.tenant), ask)
            evidence = answer.build_evidence(ask)
            if not len(evidence) or all(row[_CONTENT] is not None for row in answer.rows):
                lookup = PostgresLookup(space, answer.rows, self._pending_accesses)
                # The handover to a thread takes longer than judging a few candidates.
                if len(evidence) <= _MAX_JUDGED_INLINE:
                    return judge(evidence, lookup)
                return await asyncio.to_thread(judge, evidence, lookup)
            self._mark_space(space, "long")
        async with self._server.begin_read(space.tenant) as work:
            answer = await self._search(work.fetch_rows, ask)
            lookup = PostgresLookup(space, answer.rows, self._pending_accesses, work)
            try:
                return await asyncio.to_thread(judge, answer.build_evidence(ask), lookup)
            finally:
                lookup.is_over = True

    def _mark_space(self, space: Space, kind: Literal["long", "empty"]) -> None:
        if len(self._special_spaces) >= _MAX_SPECIAL_SPACES:
            self._special_spaces.clear()
        self._special_spaces[space] = kind

    async def _search(self, read: Read, query: EvidenceQuery) -> SearchAnswer:
        """Return the candidates of a query. In a space that was empty, look first whether it still is."""
        space = query.where.space
        if self._special_spaces.get(space) == "empty":
            answer = SearchAnswer(await read(_SEARCH_EMPTY, _build_space_params(space)), query)
            if not answer.corpus.items:
                return answer
            self._special_spaces.pop(space, None)
        answer = await self._find_candidates(read, query)
        if not answer.corpus.items:
            self._mark_space(space, "empty")
        return answer

    async def _find_candidates(self, read: Read, query: EvidenceQuery) -> SearchAnswer:
        """Return the candidates of a query. One statement finds them, unless the space or its items are large."""
        filter, limit = PostgresFilter(query.where), max(query.limit, 1)  # a limit of 0 still asks for the weights
        statement = _build_search_sql(filter, by_vector=query.vector is not None)
        values = _build_search_params(query, limit) | filter.values
        answer = SearchAnswer(await read(statement, values), query)
        models, is_indexed = answer.models, answer.is_indexed
        if is_indexed is False and models.active is not None and self._index_task is None:
            self._index_task = asyncio.create_task(self._build_index(query.where.space, answer))
        if query.vector is None or models.active is None or not answer.corpus.items:
            return answer
        dim, got = models.dim, len(query.vector)
        if got != dim:
            if not await read(_HAS_ANY_VECTOR, values):
                return answer
            raise BadVector(f"a vector must have {dim} dimensions; got {got}. Check that the embedder is the right one")
        if is_indexed is not None:
            values["scanned"] = _NO_LIMIT
            if is_indexed and filter.is_wide:
                breadth = min(2 * values["most"], _MAX_HNSW_BREADTH)
                values |= {"number": answer.number, "generation": models.generation}
                indexed = _build_search_sql(filter, by_vector=True, dim=dim)
                setting = SqlStatement(_USE_INDEX, {"breadth": str(breadth)})
                answer = SearchAnswer(await read(indexed, values, setting), query)
                if answer.near_count >= limit:
                    return answer
            answer = SearchAnswer(await read(statement, values), query)
        while not answer.is_complete(limit):
            values["most"] *= 4
            answer = SearchAnswer(await read(statement, values), query)
        return answer

    async def _build_index(self, space: Space, answer: SearchAnswer) -> None:
        """Build the index of a large space in the background."""
        try:
            async with self._server.open_connection() as connection:
                await build_hnsw_index(connection, codec.escape_text(space.tenant), answer.number, answer.models)
        except RecollectError as error:  # the next search tries again
            _logger.warning("failed to build the index of a space with over %d items: %s", HNSW_MIN_ITEMS, error)
        finally:
            self._index_task = None


# Indexes.

# Whether the index of the space `s` exists and is valid.
_HNSW_INDEX_NAME = f"format('recollect.near_%%s_%%s_%%s', s.id, {codec.ACTIVE_GENERATION_SQL}, {codec.ACTIVE_DIM_SQL})"
HNSW_INDEX_IS_VALID_SQL = (
    f"(select indisvalid and indisready from pg_index where indexrelid = to_regclass({_HNSW_INDEX_NAME}))"  # noqa: S608
)

_FIND_PARTITION_AND_UNFINISHED_INDEX = """
    select substring(s.tableoid::regclass::text from '[0-9]+$'), exists (
        select 1 from pg_index i where i.indexrelid = to_regclass(%(name)s) and not i.indisvalid
            and not exists (select 1 from pg_stat_progress_create_index p where p.index_relid = i.indexrelid)
    )
    from recollect.spaces s where s.tenant = %(tenant)s and s.id = %(number)s
"""

# The dimensions are a condition too, since a later generation with this name may have others.
_CREATE_HNSW_INDEX = """
    create index concurrently if not exists {name}
    on {partition} using hnsw ((data::halfvec({dim})) halfvec_ip_ops)
    where space = {number} and generation = {generation} and vector_dims(data) = {dim}
"""


async def build_hnsw_index(
    connection: PostgresConnection, tenant: str, number: int, models: codec.PostgresModels
) -> None:
    """Build a missing index, and replace an invalid one that an aborted build left behind."""
    name = f"near_{number}_{models.generation}_{models.dim}"
    async with connection.transaction():
        await connection.execute("select set_config('recollect.tenant', %s, true)", (tenant,))
        values = {"tenant": tenant, "number": number, "name": f"recollect.{name}"}
        rows = await connection.fetch_rows(_FIND_PARTITION_AND_UNFINISHED_INDEX, values)
    if not rows:
        return
    [(partition, is_unfinished)] = rows
    if is_unfinished:
        drop = sql.SQL("drop index concurrently if exists {}").format(sql.Identifier("recollect", name))
        await connection.execute(drop, prepare=False)
    create = sql.SQL(_CREATE_HNSW_INDEX).format(
        name=sql.Identifier(name),
        partition=sql.Identifier("recollect", f"vectors_{partition}"),
        dim=sql.SQL(str(int(models.dim))),
        number=sql.Literal(number),
        generation=sql.Literal(models.generation),
    )
    await connection.execute(create, prepare=False)


# Statistics of a space.

# A recursive query that jumps from each speaker to the next: a scan would read every item of the space.
SPACE_STATS_SQL = f"""
    select json_build_object(
        'models', {codec.MODELS_JSON_SQL},
        'number', s.id,
        'items', s.items,
        'words', s.words,
        'indexed', case when s.items >= %(large)s then {HNSW_INDEX_IS_VALID_SQL} end,
        'speakers', array(
            with recursive known (speaker) as (
                (
                    select r.speaker from recollect.records r
                    where r.tenant = %(tenant)s and r.space = s.id and r.speaker is not null
                    order by r.speaker limit 1
                )
                union all
                select (
                    select r.speaker from recollect.records r
                    where r.tenant = %(tenant)s and r.space = s.id and r.speaker > known.speaker
                    order by r.speaker limit 1
                )
                from known where known.speaker is not null
            )
            select speaker from known where speaker is not null
        )
    )
    from (select) always
    left join recollect.spaces s on s.tenant = %(tenant)s and s.handle = %(space)s
"""  # noqa: S608 - constant clauses


# The search statement.

# The space by its handle. Without vectors of these dimensions, or in a space that is large enough for an index, no
# vectors are compared.
_RESOLVE_SPACE = f"""
    at as materialized (
        select s.id, s.items,
            {BM25_K1 * BM25_B}::float8 / coalesce(nullif(s.words / nullif(s.items, 0)::float8, 0.0), 1.0) as slope,
            case when s.items < %(scanned)s and {codec.ACTIVE_DIM_SQL}::int = %(dim)s
                then {codec.ACTIVE_GENERATION_SQL}::"char" end as generation
        from recollect.spaces s where s.tenant = %(tenant)s and s.handle = %(space)s
    )
"""  # noqa: S608 - constant clauses

# The nearest passage of an item.
_NEAREST_PASSAGE = """
    select {what} from recollect.vectors v
    where v.tenant = %(tenant)s and v.space = (select id from at) and v.generation = (select generation from at)
        and v.place = {row}.place
    order by v.data::vector <#> %(full)s limit 1
"""

# The nearest items: candidates by distances in half precision, then their distances in full precision.
_NEAR_BY_SCAN = f"""
    close as materialized (
        select v.place, v.data <#> %(half)s as far from recollect.vectors v
        {{join}}
        where v.tenant = %(tenant)s and v.space = (select id from at)
            and v.generation = (select generation from at) and {{filter}}
        order by far limit %(most)s
    ),
    near as materialized (
        select c.place, ({_NEAREST_PASSAGE.format(what="v.data::vector <#> %(full)s", row="c")}) as far
        from (select distinct place from close) c
    )
"""  # noqa: S608 - constant clauses
# The index is used only if its conditions are constants.
_NEAR_BY_INDEX = (
    _NEAR_BY_SCAN.replace("v.data <#> %(half)s as far", "v.data::halfvec({dim}) <#> %(half)s::halfvec({dim}) as far")
    .replace("and {filter}", "and vector_dims(v.data) = {dim} and {filter}")
    .replace("(select id from at)\n", "%(number)s\n", 1)
    .replace("(select generation from at)", "%(generation)s", 1)
)
_NO_NEAR = """
    close as (select 0.0::float8 as far where false),
    near as (select 0::bigint as place, 0.0::float8 as far where false)
"""

# One row per candidate, and a last one with totals: the leaders by vector and by terms, the items that contain each
# term, the distance of the farthest row scanned if the scan was cut off, and the statistics of the space.
_SEARCH = f"""
    with {_RESOLVE_SPACE},
    {{near}},
    posted as materialized (
        select asked.at::int, p.place, p.count, p.length
        from unnest(%(terms)s::text[]) with ordinality as asked (term, at)
        cross join lateral (
            select p.place, p.count, p.length from recollect.postings p
            where p.tenant = %(tenant)s and p.space = (select id from at) and p.term = asked.term offset 0
        ) p
    ),
    held as materialized (
        select at, count(*)::int as holders,
            ln(1.0::float8 + ((select items from at) - count(*) + 0.5::float8) / (count(*) + 0.5::float8)) as weight
        from posted group by at
    ),
    matched as materialized (
        select p.place, round({SCORE_SCALE}::float8 * sum(
            held.weight * p.count * {BM25_K1 + 1.0}::float8
            / (p.count + %(base)s::float8 + (select slope from at) * p.length)
        )) as score
        from posted p
        join held on held.at = p.at
        {{join}}
        where {{filter}}
        group by p.place order by score desc fetch first %(limit)s rows with ties
    ),
    nearest as materialized (
        select place from near
        where far <= coalesce(
            (select far from near order by far limit 1 offset %(limit)s - 1) + %(noise)s::float8, 'infinity'
        )
    ),
    leaders as materialized (
        select r.* from (select place from nearest union select place from matched) led
        cross join lateral (
            select * from recollect.records r
            where r.tenant = %(tenant)s and r.space = (select id from at) and r.place = led.place offset 0
        ) r
    ),
    candidates as materialized (
        select * from leaders
        union all
        select distinct on (r.place) r.* from leaders led
        cross join lateral (
            select * from recollect.records r
            where r.tenant = %(tenant)s and r.space = (select id from at) and r.session_handle = led.session_handle
                and r.position between led.position - %(reach)s and led.position + %(reach)s and {{around}} offset 0
        ) r
        where r.place not in (select place from leaders)
    )
    select {codec.CANDIDATE_COLUMNS}, {{vector}}, words.at, words.counts, null::float8 as edge, null::json as stats
    from candidates r
    left join (
        select p.place, array_agg(p.at) as at, array_agg(p.count) as counts from posted p
        where p.place in (select place from candidates) group by p.place
    ) words on words.place = r.place
    union all
    select {", ".join(["null"] * (codec.CANDIDATE_WIDTH - 3))},
        (select count(*) from nearest), (select count(*) from matched), null, null, array_agg(at), array_agg(holders),
        (select max(far) from close having count(*) = %(most)s), ({SPACE_STATS_SQL})
    from held
"""  # noqa: S608 - constant clauses

# The same answer for a space without items, in 0.25 ms instead of 0.8.
_SEARCH_EMPTY = f"""
    select {", ".join(["null"] * (codec.CANDIDATE_WIDTH - 3))}, 0, 0, null, null, null, null, null, ({SPACE_STATS_SQL})
"""


def _build_search_sql(filter: PostgresFilter, *, by_vector: bool, dim: int | None = None) -> str:
    """Return the search of a space, with its HNSW index if `dim` is given."""
    return _assemble_search_sql(filter.build_join("v"), filter.build_join("p"), filter.sql, by_vector, dim)


@lru_cache(maxsize=256)
def _assemble_search_sql(
    vectors: tuple[str, str], postings: tuple[str, str], neighbors: str, by_vector: bool, dim: int | None
) -> str:
    near, vector = _NO_NEAR, "null"
    if by_vector:
        near = _NEAR_BY_SCAN if dim is None else _NEAR_BY_INDEX
        near = near.format(join=vectors[0], filter=vectors[1], dim=dim)
        vector = f"({_NEAREST_PASSAGE.format(what='v.data', row='r')})"
    return _SEARCH.format(near=near, join=postings[0], filter=postings[1], around=neighbors, vector=vector)


_HAS_ANY_VECTOR = f"""
    select 1 from recollect.vectors v where v.tenant = %(tenant)s and v.space = {codec.SPACE_ID_SQL}
        and v.generation = {codec.ACTIVE_GENERATION_SQL}::"char" limit 1
"""  # noqa: S608 - constant clauses

# Lets an HNSW scan continue, in the order of distance, until enough rows pass the filter.
_USE_INDEX = """
    select set_config('plan_cache_mode', 'force_custom_plan', true),
        set_config('hnsw.iterative_scan', 'strict_order', true), set_config('hnsw.ef_search', %(breadth)s, true)
"""


def _build_space_params(space: Space) -> SqlParams:
    return {**codec.build_space_params(space), "large": HNSW_MIN_ITEMS}


def _build_search_params(query: EvidenceQuery, limit: int) -> SqlParams:
    values: SqlParams = {
        **_build_space_params(query.where.space),
        # No stored term is empty.
        "terms": [codec.build_handle(term) if codec.is_encodable(term) else "" for term in query.terms],
        "limit": limit,
        # More than the limit: an item may have several passages, and half precision has many ties.
        "most": 2 * limit + _EXTRA_CANDIDATES,
        "dim": 0 if query.vector is None else len(query.vector),
        "scanned": HNSW_MIN_ITEMS,
        "base": BM25_K1 * (1.0 - BM25_B),
        "reach": float(query.reach),
        "noise": _SCORE_TOLERANCE,
    }
    if query.vector is not None:
        values |= {"half": HalfVector(query.vector.astype(np.float16)), "full": FullVector(query.vector)}
    return values


# Candidates.


class SearchAnswer:
    """The rows of the search statement: candidates with their vectors and terms, and the statistics of the space."""

    def __init__(self, answer: Rows, query: EvidenceQuery) -> None:
        *self.rows, totals = answer
        totals = totals[codec.CANDIDATE_WIDTH - 3 :]
        self.near_count, self._matched_count, _, _, terms, holders, self._farthest, stats = totals
        self.models = codec.PostgresModels.parse(stats["models"])
        if query.vector is not None:
            self.models.check_active(query.model)
        self.number, items = stats["number"], stats["items"]
        self.corpus = search.CorpusStats(items, stats["words"] / items) if items else search.CorpusStats(0, 0.0)
        self.is_indexed = bool(stats["indexed"]) if items and items >= HNSW_MIN_ITEMS else None
        """None if the space is too small for an index."""
        self._speakers = frozenset(map(codec.unescape_text, stats["speakers"]))
        self._term_holders = dict(zip(terms or (), holders or (), strict=True))
        vectors = [row[codec.CANDIDATE_WIDTH] for row in self.rows]
        self._cosines = np.full(len(vectors), np.nan)
        if query.vector is not None:
            wire_format = np.dtype([("head", ">u4"), ("data", ">f2", len(query.vector))])
            packed = np.frombuffer(b"".join(filter(None, vectors)), wire_format)["data"]
            present = [at for at, vector in enumerate(vectors) if vector is not None]
            self._cosines[present] = packed.astype(np.float64) @ query.vector.astype(np.float64)

    def is_complete(self, limit: int) -> bool:
        """Return whether no row beyond the scanned ones can be among the nearest."""
        if self._farthest is None:
            return True
        # The error of a cosine by the query in half precision and the sum in single precision.
        slack = 2.0**-11 + self.models.dim * 2.0**-24 + _SCORE_TOLERANCE
        return int(np.count_nonzero(self._cosines > slack - self._farthest)) >= limit

    def build_evidence(self, query: EvidenceQuery) -> SearchEvidence:
        """Return the candidates in the order of the dialogue, without those beyond the limit and their neighbors."""
        corpus, numbers = self.corpus, range(1, len(query.terms) + 1)
        weights = [search.compute_idf(corpus, self._term_holders.get(n, 0)) if corpus.items else 0.0 for n in numbers]
        rows = self.rows
        if query.is_worth_ranking is not None and not query.is_worth_ranking(self._build_summary(weights)):
            rows = []
        briefs = list(map(codec.decode_candidate, rows))
        order = sorted(range(len(briefs)), key=list(map(search.get_position_key, briefs)).__getitem__)
        briefs, cosines = [briefs[at] for at in order], self._cosines[order]
        counts = np.zeros((len(weights), len(briefs)))
        for column, at in enumerate(order):
            terms, term_counts = rows[at][codec.CANDIDATE_WIDTH + 1 : codec.CANDIDATE_WIDTH + 3]
            for term, count in zip(terms or (), term_counts or (), strict=True):
                counts[term - 1, column] = count
        lengths = np.array([brief.length for brief in briefs], np.float64)
        weighted = np.array(weights, np.float64)
        scores = search.compute_bm25(corpus, counts, lengths, weighted[:, np.newaxis])
        if max(self.near_count, self._matched_count) > query.limit:
            kept = _select_within_limit(query, briefs, cosines, scores.sum(axis=0))
            briefs, cosines, scores = [briefs[at] for at in kept], cosines[kept], scores[:, kept]
        return SearchEvidence(tuple(briefs), cosines, scores, weighted, self._speakers)

    def _build_summary(self, weights: Sequence[float]) -> search.EvidenceSummary:
        held = frozenset().union(*(row[codec.CANDIDATE_WIDTH + 1] or () for row in self.rows))
        nearest = float(np.fmax.reduce(self._cosines, initial=-np.inf))
        return search.EvidenceSummary(nearest, [number in held for number in range(1, len(weights) + 1)], weights)


def _select_within_limit(
    query: EvidenceQuery, briefs: Sequence[ItemBrief], cosines: search.FloatColumn, scores: search.FloatColumn
) -> list[int]:
    """Return the indexes of the best candidates by vector and by terms, and of the turns around them."""
    leaders = {
        *_select_leaders(briefs, cosines, -np.inf, query.limit),
        *_select_leaders(briefs, scores, 0.0, query.limit),
    }
    positions: dict[str | None, list[float]] = {}
    for at in leaders:
        if (position := briefs[at].position) is not None:
            positions.setdefault(briefs[at].session, []).append(position)
    return [
        at
        for at, brief in enumerate(briefs)
        if at in leaders
        or (
            brief.position is not None
            and any(abs(brief.position - leader) <= query.reach for leader in positions.get(brief.session, ()))
        )
    ]


def _select_leaders(briefs: Sequence[ItemBrief], scores: search.FloatColumn, above: float, limit: int) -> list[int]:
    """Return the indexes of the best scores above a value, with ties broken as in every store."""
    indexes: list[int] = np.flatnonzero(scores > above).tolist()
    return [
        indexes[at] for at in search.select_best([briefs[at].id for at in indexes], scores[indexes].tolist(), limit)
    ]


class PostgresLookup:
    """Items and terms of candidates, decoded on demand.

    With a transaction, the contents were too long to be read with the candidates. The judge then runs in a thread, and
    the event loop reads the items for it.
    """

    def __init__(
        self, space: Space, rows: Rows, accesses: Sequence[Touch], work: PostgresTransaction | None = None
    ) -> None:
        self._space = space
        self._accesses = [touch for touch in accesses if touch.space == space]
        self._rows = {codec.unescape_text(row[0]): row for row in rows}
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.is_over = False

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        if self._work is None:
            rows = [self._rows[id] for id in ids if id in self._rows]
        else:
            rows = asyncio.run_coroutine_threadsafe(self._read_rows(self._work, ids), self._loop).result()
        items = {item.id: item for item in (codec.decode_item(self._space, row) for row in rows)}
        for touch in self._accesses:
            at = to_utc(touch.at)
            for id in touch.ids:
                if item := items.get(id):
                    last = at if item.last_accessed is None else max(item.last_accessed, at)
                    items[id] = replace(item, access_count=item.access_count + 1, last_accessed=last)
        return items

    async def _read_rows(self, work: PostgresTransaction, ids: Sequence[str]) -> Rows:
        if self.is_over:
            raise StoreClosed("the search was cancelled and its transaction is over; search again")
        return await work.fetch_rows(
            GET_ITEMS, {**codec.build_space_params(self._space), "handles": codec.build_handles(ids)}
        )

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        return {id: codec.unescape_text(self._rows[id][codec.CANDIDATE_WIDTH - 1]) for id in ids if id in self._rows}
