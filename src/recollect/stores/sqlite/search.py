"""Reading of items: by id, by filter, by vector, by terms and by position in a dialogue."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import apsw
import numpy as np
from numpy.typing import NDArray

from recollect.clock import to_micros
from recollect.stores.base import Records, Vector
from recollect.stores.codec import VECTOR_DTYPE
from recollect.stores.filters import Condition, Scalar, Where, find_prefix_range
from recollect.stores.search import (
    SCORE_SCALE,
    EvidenceLookup,
    EvidenceQuery,
    ItemBrief,
    SearchEvidence,
    build_empty_evidence,
    sort_by_position,
)
from recollect.stores.sqlite.records import (
    BRIEF_COLUMNS,
    ITEM_COLUMNS,
    SELECT_UNEMBEDDED,
    SqliteAccessBuffer,
    SqliteRecordWriter,
    adopt_model,
    build_for_each_generation,
    decode_item,
    find_space_id,
    get_vector_range,
    load_active_table,
    parse_model,
    prepare_model,
    switch_model,
)
from recollect.stores.sqlite.search_cache import (
    AllowedPlaces,
    SpaceCache,
    SpaceState,
    SqliteTermCache,
    SqliteVectorMatrix,
    TermScores,
    VectorScan,
    estimate_vector_bytes,
    find_nth_highest,
    scan_from_file,
)
from recollect.stores.sqlite.threads import SqliteStoreBase, run_in_reader
from recollect.stores.validation import build_model_mismatch, validate_limit
from recollect.stores.writes import Model, Put, Touch
from recollect.types import MemoryItem, Space

T = TypeVar("T")
Places = NDArray[np.int64]
Scores = NDArray[np.float64]

_ACCESS_FLUSH_SECONDS = 0.25
_MAX_CACHED_SPEAKERS = 1024

# Filters as SQL: constant clauses, with every value and metadata path bound as a parameter.

SqlClause = tuple[str, tuple[Any, ...]]

_FILTER_COLUMNS = {
    "importance": ("number", "importance"),
    "trust": ("number", "trust"),
    "position": ("number", "position"),
    "created_at": ("number", "created_at"),
    "access_count": ("number", "access_count"),
    "source": ("text", "source"),
    "key": ("text", "key"),
    "session": ("text", "session"),
    "speaker": ("text", "speaker"),
    "agent": ("text", "by_agent"),
}
_JSON_TYPES = {"text": "('text')", "number": "('integer', 'real')"}
_COMPARISON_OPERATORS = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

_LIVE_CONDITION = """
    (valid_from is null or valid_from <= ?)
    and (valid_to is null or valid_to > ?)
    and (expires_at is null or expires_at > ?)"""


def build_where_clause(where: Where) -> SqlClause:
    """Return the condition on a space's items, and its parameters."""
    parts: list[SqlClause] = []
    if where.live_at is not None:
        now = to_micros(where.live_at)
        parts.append((_LIVE_CONDITION, (now, now, now)))
    if where.known_at is not None:
        parts.append(("valid_from is not null or created_at <= ?", (to_micros(where.known_at),)))
    if where.open_at is not None:
        parts.append(("superseded_by is null or valid_to is null or valid_to > ?", (to_micros(where.open_at),)))
    if where.created_from is not None:
        parts.append(("created_at >= ?", (to_micros(where.created_from),)))
    if where.created_until is not None:
        parts.append(("created_at < ?", (to_micros(where.created_until),)))
    if where.min_importance > 0.0:
        parts.append(("importance >= ?", (where.min_importance,)))
    if where.key is not None:
        parts.append(("key = ?", (where.key,)))
    if where.key_prefix is not None:
        parts.append(_build_condition(Condition("key", "prefix", where.key_prefix)))
    if where.ids is not None:
        parts.append(("id in (select value from json_each(?))", (json.dumps(sorted(where.ids)),)))
    parts.extend(_build_condition(condition) for condition in where.conditions)
    return _join_clauses(" and ", parts) if parts else ("true", ())


def _build_condition(condition: Condition) -> SqlClause:
    value = condition.value
    match condition.op:
        case "ne":
            equal, values = _build_comparison(condition, value, ("=", value))
            if condition.is_field:
                return f"({equal}) is not true", values
            path = _build_json_path(condition)
            return f"(json_type(metadata, ?) is not null and ({equal}) is not true)", (path, *values)
        case "in":
            assert isinstance(value, tuple)
            alternatives = [_build_comparison(condition, choice, ("=", choice)) for choice in value]
            return _join_clauses(" or ", alternatives) if alternatives else ("false", ())
        case "prefix":
            # A range: an index supports it, and it has no wildcard characters.
            assert isinstance(value, str)
            start, end = find_prefix_range(value)
            return _build_comparison(condition, value, (">=", start), *([] if end is None else [("<", end)]))
        case "has":
            return _build_contains(condition)
        case _:
            return _build_comparison(condition, value, (_COMPARISON_OPERATORS[condition.op], value))


def _build_comparison(condition: Condition, value: Any, *comparisons: tuple[str, Any]) -> SqlClause:
    """Return the condition that a field or path has the kind of `value`, and fulfills all comparisons."""
    kind = _get_json_kind(value)
    bounds = tuple(bound for _, bound in comparisons)
    if condition.is_field:
        column_kind, column = _FILTER_COLUMNS[condition.path]
        if value is None:
            return f"{column} is null", ()
        tests = " and ".join(f"{column} {operator} ?" for operator, _ in comparisons)
        return (tests, bounds) if kind == column_kind else ("false", ())
    path = _build_json_path(condition)
    types = _JSON_TYPES.get(kind)
    if types is None:  # booleans and null can only be equal
        return "json_type(metadata, ?) is ?", (path, kind)
    tests = " and ".join(f"json_extract(metadata, ?) {operator} ?" for operator, _ in comparisons)
    return f"(json_type(metadata, ?) in {types} and {tests})", (path, *(v for bound in bounds for v in (path, bound)))


def _build_contains(condition: Condition) -> SqlClause:
    """Return a condition that a list contains a value of the same kind."""
    assert not isinstance(condition.value, tuple)
    path, kind = _build_json_path(condition), _get_json_kind(condition.value)
    types = _JSON_TYPES.get(kind)
    equal, value = (f"type in {types} and atom = ?", condition.value) if types else ("type = ?", kind)
    contains = f"exists (select 1 from json_each(metadata, ?) where {equal})"  # noqa: S608 - one of three constants
    return f"json_type(metadata, ?) = 'array' and {contains}", (path, path, value)


def _get_json_kind(value: Scalar | tuple[Scalar, ...]) -> str:
    """Return the kind of a value: `text`, `number`, or SQLite's JSON type `true`, `false` or `null`."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "number"
        case _:
            return "text"


def _build_json_path(condition: Condition) -> str:
    # Keys contain only letters, digits, _ and -, so quotes are enough.
    return "$" + "".join(f'."{key}"' for key in condition.keys)


def _join_clauses(operator: str, parts: list[SqlClause]) -> SqlClause:
    sql = operator.join(f"({part})" for part, _ in parts)
    return sql, tuple(value for _, values in parts for value in values)


# Searches. Statements that end with `and` get a filter's clause appended, which contains constants and `?` only.

_SELECT_ITEMS = f"select {ITEM_COLUMNS} from records where space = ? and "  # noqa: S608
_SELECT_ITEMS_BY_ID = f"select {ITEM_COLUMNS} from records where space = ? and id in (select value from json_each(?))"  # noqa: S608
_SELECT_ITEMS_AT = f"select {ITEM_COLUMNS} from records where place in (select value from json_each(?))"  # noqa: S608
_SELECT_LAST_TURNS = f"""
    select {ITEM_COLUMNS}
    from records
    where space = ? and session = ?
    order by position desc, id desc
    limit ?"""  # noqa: S608
_SELECT_ITEMS_OF_SPACES = f"""
    select s.tenant, s.tier, s.user, s.agent, s.session, r.*
    from (select space, place, {ITEM_COLUMNS} from records where place in (select value from json_each(?))) r
    join spaces s on s.id = r.space
    order by r.place"""  # noqa: S608
_SELECT_TERMS_AT = "select id, terms from records where place in (select value from json_each(?))"
_SELECT_TERMS_BY_ID = "select id, place, terms from records where space = ? and id in (select value from json_each(?))"
_SELECT_BRIEFS = f"select place, {BRIEF_COLUMNS} from records where place in (select value from json_each(?))"  # noqa: S608
_SELECT_BRIEFS_AROUND = f"""
    select place, {BRIEF_COLUMNS}
    from records
    where space = ?1 and session = ?2 and position between ?3 and ?4 and"""  # noqa: S608
_SELECT_PLACES_BY_ID = "select place from records indexed by records_id where space = ? order by id"
_SELECT_PLACES = "select place from records where space = ? and "
_SELECT_NOT_LIVE_PLACES = f"""
    select place
    from records indexed by records_bounded
    where space = ?
        and (valid_from is not null or valid_to is not null or expires_at is not null)
        and not ({_LIVE_CONDITION})"""  # noqa: S608
# Jumps from each speaker to the next in the index, so that a space of many turns is not read completely.
_SELECT_SPEAKERS = """
    with recursive known (speaker) as (
        select min(speaker) from records where space = ?1 and speaker is not null
        union all
        select (select min(speaker) from records where space = ?1 and speaker > known.speaker)
        from known
        where known.speaker is not null
    )
    select speaker from known where speaker is not null"""
_SELECT_ITEM_VECTORS = build_for_each_generation("select data from VECTORS where id >= ? and id < ? order by id")


class SqliteRecords(SqliteStoreBase, Records):
    """The record methods of a store, with its two search caches and the accesses that are not written yet."""

    _vector_cache: SpaceCache[SqliteVectorMatrix]
    _term_cache: SpaceCache[SqliteTermCache]
    _speaker_cache: dict[int, tuple[SpaceState, frozenset[str]]]
    _access_buffer: SqliteAccessBuffer
    _flush_timer: asyncio.TimerHandle | None = None
    _pending_flush: Future[None] | None = None

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        await self._wait_for_flush()
        return await self._readers.submit(lambda connection: self._load_items(connection, space, ids))

    async def get_full(self, space: Space, *ids: str) -> list[Put]:
        await self._wait_for_flush()
        return await self._readers.submit(lambda connection: self._load_full_items(connection, space, ids))

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        limit = validate_limit(limit)
        await self._wait_for_flush()
        return await self._readers.submit(lambda connection: _find_items(connection, where, limit, after))

    async def gather(self, ask: EvidenceQuery, judge: Callable[[SearchEvidence, EvidenceLookup], T]) -> T:
        query = ask.normalize()
        return await self._readers.submit(lambda connection: judge(*self._gather_evidence(connection, query)))

    def touch(self, touch: Touch) -> None:
        self._access_buffer.add(touch)
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(_ACCESS_FLUSH_SECONDS, self._flush_accesses)

    @run_in_reader
    def last_turns(
        self, connection: apsw.Connection, space: Space, session: str, *, limit: int = 1
    ) -> list[MemoryItem]:
        values = (find_space_id(connection, space), session, validate_limit(limit))
        return [decode_item(space, row) for row in connection.execute(_SELECT_LAST_TURNS, values)]

    @run_in_reader
    def paths(self, connection: apsw.Connection, space: Space) -> frozenset[str]:
        rows = connection.execute("select path from paths where space = ?", (find_space_id(connection, space),))
        return frozenset(row[0] for row in rows)

    async def size(self) -> int:
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    @run_in_reader
    def model(self, connection: apsw.Connection) -> Model | None:
        table = load_active_table(connection)
        return table.model if table else None

    async def bind_model(self, model: Model) -> None:
        if await self.model() != model:
            await self._writer.submit(lambda connection: adopt_model(connection, model), durable=True)

    async def find_unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        limit = validate_limit(limit)
        await self._writer.submit(lambda connection: prepare_model(connection, model), durable=False)
        return await self._readers.submit(lambda connection: _find_unembedded(connection, limit))

    async def activate_model(self, model: Model) -> None:
        await self._writer.submit(lambda connection: switch_model(connection, model), durable=True)

    # Accesses

    def _flush_accesses(self) -> None:
        """Queue the pending accesses for the writer."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        counts = self._access_buffer.take()

        def add_accesses(connection: apsw.Connection) -> None:
            records = SqliteRecordWriter(connection)
            for space, accesses in counts.items():
                records.add_accesses(space, accesses)

        if counts:
            self._pending_flush = self._writer.enqueue(add_accesses, durable=False)

    async def _wait_for_flush(self) -> None:
        """Wait until all accesses are written. The writer keeps their order, so the last flush stands for all."""
        self._flush_accesses()
        if self._pending_flush is not None and not self._pending_flush.done():
            flush = asyncio.wrap_future(self._pending_flush)
            await asyncio.wait([flush])
            flush.exception()  # ignored: a lost count must not fail the caller

    # Parts of a search

    def _scan_vectors(self, connection: apsw.Connection, state: SpaceState, vector: Vector) -> VectorScan:
        """Scan all vectors of a space, in memory if they fit into the cache."""
        if estimate_vector_bytes(state, len(vector)) > self._vector_cache.budget:
            return scan_from_file(connection, state, vector)
        return self._vector_cache.read_fresh(connection, state, SqliteVectorMatrix.get_view).scan(vector)

    def _score_terms(self, connection: apsw.Connection, state: SpaceState, terms: Sequence[str]) -> TermScores:
        if not terms:
            return TermScores.compute(state, [], np.zeros(0))
        postings, lengths = self._term_cache.read_fresh(
            connection, state, lambda cache: cache.get_postings(connection, state, terms)
        )
        return TermScores.compute(state, postings, lengths)

    def _gather_evidence(
        self, connection: apsw.Connection, ask: EvidenceQuery
    ) -> tuple[SearchEvidence, EvidenceLookup]:
        """Return the evidence, and a reader of the candidates in the same transaction."""
        space = ask.where.space
        state = SpaceState.read(connection, space)
        if state is None or state.items == 0:
            return build_empty_evidence(ask), SqliteCandidateReader(self, connection, space, {})
        if ask.vector is not None and ask.model is not None and state.model is not None:
            stored = parse_model(state.model)
            if stored != ask.model:
                raise build_model_mismatch(stored, ask.model)
        allowed = _find_allowed_places(connection, state, ask.where)
        scan = None if ask.vector is None else self._scan_vectors(connection, state, ask.vector)
        term_scores = self._score_terms(connection, state, ask.terms) if ask.terms else None
        rankings = [] if term_scores is None else [term_scores.find_best(allowed, ask.limit)]
        known_cosines: dict[int, float] = {}
        if scan is not None:
            nearest, scores = scan.find_best(connection, allowed, ask.limit)
            rankings.append((nearest, scores))
            known_cosines = dict(zip(nearest.tolist(), scores.tolist(), strict=True))
        briefs = _load_candidates(connection, state, rankings, ask.limit)
        turns = [(b.session, b.position) for b in briefs.values() if b.session is not None and b.position is not None]
        if turns and ask.reach:
            briefs.update(_load_briefs_around(connection, state.id, ask.where, turns, ask.reach))
        ordered = sort_by_position(briefs.values())
        place_of = {brief.id: place for place, brief in briefs.items()}
        places = np.array([place_of[brief.id] for brief in ordered], np.int64)
        cosines = np.array([known_cosines.get(place, np.nan) for place in places.tolist()], np.float64)
        unknown = np.flatnonzero(np.isnan(cosines))
        if scan is not None and len(unknown):
            cosines[unknown] = scan.compute_exact(connection, places[unknown])
        evidence = SearchEvidence(
            briefs=tuple(ordered),
            cosines=cosines,
            parts=np.empty((0, len(places))) if term_scores is None else term_scores.compute_parts(places),
            weights=np.empty(0) if term_scores is None else term_scores.weights,
            speakers=self._load_cached_speakers(connection, state),
        )
        return evidence, SqliteCandidateReader(self, connection, space, place_of)

    def _load_cached_speakers(self, connection: apsw.Connection, state: SpaceState) -> frozenset[str]:
        """Return the speakers of a space. The recursive statement takes 50 µs, so they are cached for each state."""
        cached = self._speaker_cache.get(state.id)
        if cached is not None and cached[0] == state:
            return cached[1]
        if len(self._speaker_cache) == _MAX_CACHED_SPEAKERS or (cached is not None and cached[0].wiped != state.wiped):
            self._speaker_cache.clear()
        speakers = frozenset(row[0] for row in connection.execute(_SELECT_SPEAKERS, (state.id,)))
        self._speaker_cache[state.id] = (state, speakers)
        return speakers

    def _load_items(self, connection: apsw.Connection, space: Space, ids: Sequence[str]) -> list[MemoryItem]:
        values = (find_space_id(connection, space), json.dumps(ids))
        items = self.build_items(space, connection.execute(_SELECT_ITEMS_BY_ID, values))
        return [items[id] for id in dict.fromkeys(ids) if id in items]

    def _load_full_items(self, connection: apsw.Connection, space: Space, ids: Sequence[str]) -> list[Put]:
        table = load_active_table(connection)
        values = (find_space_id(connection, space), json.dumps(ids))
        rows: list[Any] = connection.execute(_SELECT_TERMS_BY_ID, values).fetchall()
        found = {id: (place, terms) for id, place, terms in rows}
        puts = []
        for item in self._load_items(connection, space, ids):
            place, terms = found[item.id]
            vectors = None
            if table is not None:
                data = connection.execute(_SELECT_ITEM_VECTORS[table.generation], get_vector_range(place, place))
                parts = [np.frombuffer(part, VECTOR_DTYPE) for (part,) in data]
                vectors = np.stack(parts).astype(np.float32) if parts else None
            model = None if table is None or vectors is None else table.model
            puts.append(Put(item=item, vectors=vectors, terms=tuple(terms.split()), model=model))
        return puts

    def build_items(self, space: Space, rows: Iterable[tuple[Any, ...]]) -> dict[str, MemoryItem]:
        """Return rows as items by id, with their pending accesses."""
        found = {row[0]: row for row in rows}
        for id, access in self._access_buffer.get_pending(space, found).items():
            row = found[id]
            found[id] = (*row[:5], row[5] + access.times, max(row[6] or 0, access.last_at), *row[7:])
        return {id: decode_item(space, row) for id, row in found.items()}


@dataclass(frozen=True, slots=True)
class SqliteCandidateReader:
    """Reads candidates by their places, which is faster than by id, in the transaction that has found them."""

    records: SqliteRecords
    connection: apsw.Connection
    space: Space
    places: Mapping[str, int]

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        rows = self.connection.execute(_SELECT_ITEMS_AT, (self._get_places(ids),)).fetchall()
        return self.records.build_items(self.space, rows)

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        return dict(self.connection.execute(_SELECT_TERMS_AT, (self._get_places(ids),)))

    def _get_places(self, ids: Sequence[str]) -> str:
        return str([self.places[id] for id in ids if id in self.places])


def _find_items(connection: apsw.Connection, where: Where, limit: int, after: MemoryItem | None) -> list[MemoryItem]:
    sql, values = build_where_clause(where)
    sql = f"{_SELECT_ITEMS} {sql}"
    if after is not None:
        sql += " and (created_at, id) < (?, ?)"
        values = (*values, to_micros(after.created_at), after.id)
    # The plus makes SQLite use the index of keys, not read the whole space in order of time.
    is_keyed = where.key is not None or where.key_prefix
    sql += f" order by {'+' if is_keyed else ''}created_at desc, id desc limit ?"
    rows = connection.execute(sql, (find_space_id(connection, where.space), *values, limit))
    return [decode_item(where.space, row) for row in rows]


def _find_unembedded(connection: apsw.Connection, limit: int) -> list[MemoryItem]:
    table = load_active_table(connection)
    statement = SELECT_UNEMBEDDED[table.other_generation if table else "a"]
    places = [row[0] for row in connection.execute(statement, (limit,))]
    rows = connection.execute(_SELECT_ITEMS_OF_SPACES, (json.dumps(places),))
    return [decode_item(Space(*row[:5]), row[7:]) for row in rows]


def _load_briefs_around(
    connection: apsw.Connection, space: int, where: Where, turns: Sequence[tuple[str, float]], reach: int
) -> dict[int, ItemBrief]:
    """Return the turns at the given positions and up to `reach` before and after them, by place."""
    ranges: list[tuple[str, float, float]] = []
    for session, position in sorted(set(turns)):
        low, high = position - reach, position + reach
        if ranges and ranges[-1][0] == session and low <= ranges[-1][2]:
            ranges[-1] = (session, ranges[-1][1], high)
        else:
            ranges.append((session, low, high))
    condition, values = build_where_clause(where)
    sql = f"{_SELECT_BRIEFS_AROUND} {condition}"
    briefs: dict[int, ItemBrief] = {}
    for session, low, high in ranges:
        for row in connection.execute(sql, (space, session, low, high, *values)):
            briefs[row[0]] = ItemBrief._make(row[1:])
    return briefs


def _find_allowed_places(connection: apsw.Connection, state: SpaceState, where: Where) -> AllowedPlaces:
    """Return the places that a filter lets through. Without a condition only items with time bounds are read."""
    if not where.is_narrow and where.known_at is None:
        if where.live_at is None:
            return AllowedPlaces()
        now = to_micros(where.live_at)
        rows = connection.execute(_SELECT_NOT_LIVE_PLACES, (state.id, now, now, now)).fetchall()
        return AllowedPlaces(np.array([row[0] for row in rows], np.int64), excluded=True)
    sql, values = build_where_clause(where)
    rows = connection.execute(_SELECT_PLACES + sql, (state.id, *values)).fetchall()
    return AllowedPlaces(np.array([row[0] for row in rows], np.int64))


def _load_briefs(connection: apsw.Connection, places: Sequence[int]) -> dict[int, ItemBrief]:
    rows: list[Any] = connection.execute(_SELECT_BRIEFS, (str(places),)).fetchall()
    return {row[0]: ItemBrief._make(row[1:]) for row in rows}


def _select_leaders(
    connection: apsw.Connection, state: SpaceState, places: Places, scores: Scores, limit: int
) -> NDArray[np.intp]:
    """Return the indexes of the `limit` best, and of all that tie with the last of them: their ids decide."""
    if limit == 0:
        return np.empty(0, np.intp)
    if len(scores) <= limit:
        return np.arange(len(scores))
    last = find_nth_highest(scores, limit)
    near = np.flatnonzero(scores >= last - 2.0 / SCORE_SCALE)
    steps, last_step = np.rint(scores[near] * SCORE_SCALE), np.rint(last * SCORE_SCALE)
    above, tied = near[steps > last_step], near[steps == last_step]
    wanted = limit - len(above)
    # With very many ties (a common term, texts of one length), read the ids in order until enough are found. That
    # reads about wanted * items / ties rows, not the id of every tie.
    if len(tied) ** 2 > wanted * state.items:
        tied_places = set(places[tied].tolist())
        ordered = (row[0] for row in connection.execute(_SELECT_PLACES_BY_ID, (state.id,)))
        first = list(itertools.islice((place for place in ordered if place in tied_places), wanted))
        tied = np.flatnonzero(np.isin(places, np.array(first, np.int64)))
    return np.concatenate([above, tied])


def _load_candidates(
    connection: apsw.Connection, state: SpaceState, rankings: list[tuple[Places, Scores]], limit: int
) -> dict[int, ItemBrief]:
    """Return the `limit` best of each ranking by place; ids break ties, as in every store."""
    selected: list[tuple[Places, Scores]] = []
    for places, scores in rankings:
        leaders = _select_leaders(connection, state, places, scores, limit)
        selected.append((places[leaders], scores[leaders]))
    union = dict.fromkeys(itertools.chain(*(places.tolist() for places, _ in selected)))
    briefs = _load_briefs(connection, list(union))
    if all(len(places) <= limit for places, _ in selected):
        return briefs
    candidates: set[int] = set()
    for places, scores in selected:
        steps = np.rint(scores * SCORE_SCALE).tolist()
        ranked = sorted(zip(places.tolist(), steps, strict=True), key=lambda pair: (-pair[1], briefs[pair[0]].id))
        candidates.update(place for place, _ in ranked[:limit])
    return {place: briefs[place] for place in briefs if place in candidates}
