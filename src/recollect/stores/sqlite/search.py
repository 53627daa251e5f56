"""Reading of items: by id, by filter, by vector, by terms and by position in a dialogue."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import apsw
import numpy as np

from recollect.clock import to_micros
from recollect.stores.base import Records
from recollect.stores.codec import VECTOR_DTYPE
from recollect.stores.filters import FILTER_FIELDS, Condition, Operator, Scalar, Where, find_prefix_range
from recollect.stores.search import (
    SCORE_SCALE,
    EvidenceLookup,
    EvidenceQuery,
    FloatColumn,
    ItemBrief,
    SearchEvidence,
    build_empty_evidence,
    sort_by_position,
)
from recollect.stores.sqlite import records, search_cache
from recollect.stores.sqlite.connection import get_file_size
from recollect.stores.sqlite.search_cache import AllowedPlaces, Places, SpaceCache, SpaceState
from recollect.stores.sqlite.threads import SqliteStoreBase, run_in_reader, run_in_writer
from recollect.stores.validation import build_model_mismatch, validate_limit
from recollect.stores.writes import Model, Put, Touch
from recollect.types import MemoryItem, Space

T = TypeVar("T")

_ACCESS_FLUSH_SECONDS = 0.25

# Filters as SQL: constant clauses, with every value and metadata path bound as a parameter.

SqlClause = tuple[str, tuple[Any, ...]]

_FILTER_COLUMNS = {name: name for name in FILTER_FIELDS} | {"agent": "by_agent"}
_NUMBER_FIELDS = {"importance", "trust", "position", "created_at", "access_count"}
_JSON_TYPES = {"text": "('text')", "number": "('integer', 'real')"}
_COMPARISON_OPERATORS = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

_LIVE_CONDITION = """
    (valid_from is null or valid_from <= ?)
    and (valid_to is null or valid_to > ?)
    and (expires_at is null or expires_at > ?)"""


def build_where_clause(where: Where) -> SqlClause:
    """Return the condition on a space's items, and its parameters."""
    moments = (
        (_LIVE_CONDITION, where.live_at),
        ("valid_from is not null or created_at <= ?", where.known_at),
        ("superseded_by is null or valid_to is null or valid_to > ?", where.open_at),
        ("created_at >= ?", where.created_from),
        ("created_at < ?", where.created_until),
    )
    fields: tuple[tuple[str, Operator, Scalar], ...] = (
        ("importance", "gte", where.min_importance or None),
        ("key", "eq", where.key),
        ("key", "prefix", where.key_prefix),
    )
    parts: list[SqlClause] = [(sql, (to_micros(at),) * sql.count("?")) for sql, at in moments if at is not None]
    parts += [_build_condition(Condition(*field)) for field in fields if field[2] is not None]
    if where.ids is not None:
        parts.append(("id in (select value from json_each(?))", (json.dumps(sorted(where.ids)),)))
    parts += [_build_condition(condition) for condition in where.conditions]
    return _join_clauses(" and ", parts or [("true", ())])


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
            choices = [_build_comparison(condition, choice, ("=", choice)) for choice in value]
            return _join_clauses(" or ", choices or [("false", ())])
        case "prefix":
            # A range: an index supports it, and it has no wildcard characters.
            assert isinstance(value, str)
            start, end = find_prefix_range(value)
            return _build_comparison(condition, value, (">=", start), *([] if end is None else [("<", end)]))
        case "has":
            path, kind = _build_json_path(condition), _get_json_kind(value)
            types = _JSON_TYPES.get(kind)
            equal, wanted = (f"type in {types} and atom = ?", value) if types else ("type = ?", kind)
            contains = f"exists (select 1 from json_each(metadata, ?) where {equal})"  # noqa: S608 - two constants
            return f"json_type(metadata, ?) = 'array' and {contains}", (path, path, wanted)
        case _:
            return _build_comparison(condition, value, (_COMPARISON_OPERATORS[condition.op], value))


def _build_comparison(condition: Condition, value: Any, *comparisons: tuple[str, Any]) -> SqlClause:
    """Return the condition that a field or path has the kind of `value`, and fulfills all comparisons."""
    kind = _get_json_kind(value)
    bounds = tuple(bound for _, bound in comparisons)
    if condition.is_field:
        column = _FILTER_COLUMNS[condition.path]
        if value is None:
            return f"{column} is null", ()
        if kind != ("number" if condition.path in _NUMBER_FIELDS else "text"):
            return "false", ()
        return " and ".join(f"{column} {operator} ?" for operator, _ in comparisons), bounds
    path = _build_json_path(condition)
    types = _JSON_TYPES.get(kind)
    if types is None:  # booleans and null can only be equal
        return "json_type(metadata, ?) is ?", (path, kind)
    tests = " and ".join(f"json_extract(metadata, ?) {operator} ?" for operator, _ in comparisons)
    return f"(json_type(metadata, ?) in {types} and {tests})", (path, *(v for bound in bounds for v in (path, bound)))


def _get_json_kind(value: Scalar | tuple[Scalar, ...]) -> str:
    """Return the kind of a value: `text`, `number`, or SQLite's JSON type `true`, `false` or `null`."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return "text" if isinstance(value, str) else "number"


def _build_json_path(condition: Condition) -> str:
    # Keys contain only letters, digits, _ and -, so quotes are enough.
    return "$" + "".join(f'."{key}"' for key in condition.keys)


def _join_clauses(operator: str, parts: list[SqlClause]) -> SqlClause:
    sql = operator.join(f"({part})" for part, _ in parts)
    return sql, tuple(value for _, values in parts for value in values)


# Searches. Statements that end with `and` get a filter's clause appended, which contains constants and `?` only.

_SELECT_ITEMS = f"select {records.ITEM_COLUMNS} from records where space = ? and "  # noqa: S608
_SELECT_ITEMS_BY_ID = (
    f"select {records.ITEM_COLUMNS} from records where space = ? and id in (select value from json_each(?))"  # noqa: S608
)
_SELECT_ITEMS_AT = f"select {records.ITEM_COLUMNS} from records where place in (select value from json_each(?))"  # noqa: S608
_SELECT_LAST_TURNS = f"""
    select {records.ITEM_COLUMNS} from records
    where space = ? and session = ?
    order by position desc, id desc limit ?"""  # noqa: S608
_SELECT_TERMS_AT = "select id, terms from records where place in (select value from json_each(?))"
_SELECT_TERMS_BY_ID = "select id, place, terms from records where space = ? and id in (select value from json_each(?))"
_BRIEF_COLUMNS = ", ".join(ItemBrief._fields)
_SELECT_BRIEFS = f"select place, {_BRIEF_COLUMNS} from records where place in (select value from json_each(?))"  # noqa: S608
_SELECT_BRIEFS_AROUND = f"""
    select place, {_BRIEF_COLUMNS} from records
    where space = ?1 and session = ?2 and position between ?3 and ?4 and"""  # noqa: S608
_SELECT_FIRST_PLACES = """
    select place from records
    where place in (select value from json_each(?))
    order by id limit ?"""
# Reads the ids of a space in order, until enough of the places are found.
_SELECT_FIRST_OF_MANY_PLACES = """
    select place from records indexed by records_id
    where space = ? and place in (select value from json_each(?))
    order by id limit ?"""
_SELECT_PLACES = "select place from records where space = ? and "
_SELECT_NOT_LIVE_PLACES = f"""
    select place from records indexed by records_bounded
    where space = ?
        and (valid_from is not null or valid_to is not null or expires_at is not null)
        and not ({_LIVE_CONDITION})"""  # noqa: S608
_SELECT_ITEM_VECTORS = records.build_for_each_generation(
    "select data from VECTORS where id >= ? and id < ? order by id"
)


class SqliteRecords(SqliteStoreBase, Records):
    """The record methods of a store, with its two search caches and the accesses that are not written yet."""

    _vector_cache: SpaceCache[search_cache.SqliteVectorMatrix]
    _term_cache: SpaceCache[search_cache.SqliteTermCache]
    # After each commit all readers reload their page caches, which is the largest cost of a search. So the accesses of
    # several searches are written together, and readers add those that are still pending.
    _accesses: dict[Space, dict[str, tuple[int, int]]]
    _access_lock: threading.Lock
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
        at = to_micros(touch.at)
        with self._access_lock:
            counts = self._accesses.setdefault(touch.space, {})
            for id in touch.ids:
                times, last_at = counts.get(id, (0, at))
                counts[id] = times + 1, max(last_at, at)
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(_ACCESS_FLUSH_SECONDS, self._flush_accesses)

    @run_in_reader
    def last_turns(
        self, connection: apsw.Connection, space: Space, session: str, *, limit: int = 1
    ) -> list[MemoryItem]:
        values = (records.find_space_id(connection, space), session, validate_limit(limit))
        return [records.decode_item(space, row) for row in connection.execute(_SELECT_LAST_TURNS, values)]

    @run_in_reader
    def paths(self, connection: apsw.Connection, space: Space) -> frozenset[str]:
        rows = connection.execute("select path from paths where space = ?", (records.find_space_id(connection, space),))
        return frozenset(row[0] for row in rows)

    async def size(self) -> int:
        return get_file_size(self.path) + get_file_size(self.path.with_name(self.path.name + "-wal"))

    @run_in_reader
    def model(self, connection: apsw.Connection) -> Model | None:
        table = records.load_active_table(connection)
        return table.model if table else None

    async def bind_model(self, model: Model) -> None:
        if await self.model() != model:
            await self._writer.submit(lambda connection: records.adopt_model(connection, model), durable=True)

    @run_in_writer(durable=False)
    def find_unembedded(self, connection: apsw.Connection, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        table = records.prepare_model(connection, model)
        rows = connection.execute(records.SELECT_UNEMBEDDED[table.other_generation], (validate_limit(limit),))
        return [records.decode_item(Space(*row[:5]), row[7:]) for row in rows]

    @run_in_writer()
    def activate_model(self, connection: apsw.Connection, model: Model) -> None:
        records.switch_model(connection, model)

    def _flush_accesses(self) -> None:
        """Queue the pending accesses for the writer."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        with self._access_lock:
            accesses, self._accesses = self._accesses, {}
        if accesses:
            self._pending_flush = self._writer.enqueue(
                lambda connection: records.SqliteRecordWriter(connection).add_accesses(accesses), durable=False
            )

    async def _wait_for_flush(self) -> None:
        """Wait until all accesses are written. The writer keeps their order, so the last flush stands for all."""
        self._flush_accesses()
        if self._pending_flush is not None and not self._pending_flush.done():
            flush = asyncio.wrap_future(self._pending_flush)
            await asyncio.wait([flush])
            flush.exception()  # ignored: a lost count must not fail the caller

    def _gather_evidence(
        self, connection: apsw.Connection, ask: EvidenceQuery
    ) -> tuple[SearchEvidence, EvidenceLookup]:
        """Return the evidence, and a reader of the candidates in the same transaction."""
        space = ask.where.space
        state = SpaceState.read(connection, space)
        if state is None or state.items == 0:
            return build_empty_evidence(ask), SqliteCandidateReader(self, connection, space, {})
        if ask.vector is not None and ask.model is not None and state.model is not None:
            stored = records.parse_model(state.model)
            if stored != ask.model:
                raise build_model_mismatch(stored, ask.model)
        allowed = _find_allowed_places(connection, state, ask.where)
        terms, speakers = self._term_cache.read_fresh(
            connection, state, lambda cache: (cache.get_postings(connection, state, ask.terms), cache.speakers)
        )
        term_scores = search_cache.TermScores.compute(state, *terms)
        rankings = [term_scores.find_best(allowed, ask.limit)] if ask.terms else []
        scan = (
            None if ask.vector is None else search_cache.scan_vectors(self._vector_cache, connection, state, ask.vector)
        )
        known: dict[int, float] = {}
        if scan is not None:
            rankings.append(scan.find_best(connection, allowed, ask.limit))
            known = dict(zip(*(column.tolist() for column in rankings[-1]), strict=True))
        best = (_select_best(connection, state, *ranking, ask.limit).tolist() for ranking in rankings)
        briefs = _load_briefs(connection, _SELECT_BRIEFS, (str(list(set().union(*best))),))
        turns = [(b.session, b.position) for b in briefs.values() if b.session is not None and b.position is not None]
        if turns and ask.reach:
            briefs |= _load_briefs_around(connection, state.id, ask.where, turns, ask.reach)
        ordered = sort_by_position(briefs.values())
        place_of = {brief.id: place for place, brief in briefs.items()}
        places = np.array([place_of[brief.id] for brief in ordered], np.int64)
        cosines = np.array([known.get(place, np.nan) for place in places.tolist()], np.float64)
        unknown = np.flatnonzero(np.isnan(cosines))
        if scan is not None and len(unknown):
            cosines[unknown] = scan.compute_exact(connection, places[unknown])
        evidence = SearchEvidence(
            briefs=tuple(ordered),
            cosines=cosines,
            parts=term_scores.compute_parts(places),
            weights=term_scores.weights,
            speakers=speakers,
        )
        return evidence, SqliteCandidateReader(self, connection, space, place_of)

    def _load_items(self, connection: apsw.Connection, space: Space, ids: Sequence[str]) -> list[MemoryItem]:
        values = (records.find_space_id(connection, space), json.dumps(ids))
        items = self.build_items(space, connection.execute(_SELECT_ITEMS_BY_ID, values))
        return [items[id] for id in dict.fromkeys(ids) if id in items]

    def _load_full_items(self, connection: apsw.Connection, space: Space, ids: Sequence[str]) -> list[Put]:
        table = records.load_active_table(connection)
        values = (records.find_space_id(connection, space), json.dumps(ids))
        found = {id: (place, terms) for id, place, terms in connection.execute(_SELECT_TERMS_BY_ID, values)}
        statement = _SELECT_ITEM_VECTORS[table.generation if table else "a"]
        puts = []
        for item in self._load_items(connection, space, ids):
            place, terms = found[item.id]
            data = connection.execute(statement, records.get_vector_range(place, place))
            parts = [np.frombuffer(part, VECTOR_DTYPE).astype(np.float32) for (part,) in data]
            vectors, model = (np.stack(parts), table.model) if table and parts else (None, None)
            puts.append(Put(item=item, vectors=vectors, terms=tuple(terms.split()), model=model))
        return puts

    def build_items(self, space: Space, rows: Iterable[tuple[Any, ...]]) -> dict[str, MemoryItem]:
        """Return rows as items by id, with their pending accesses."""
        if pending := self._accesses.get(space):
            rows = [_add_access(row, pending.get(row[0])) for row in rows]
        return {row[0]: records.decode_item(space, row) for row in rows}


def _add_access(row: tuple[Any, ...], access: tuple[int, int] | None) -> tuple[Any, ...]:
    return row if access is None else (*row[:3], row[3] + access[0], max(row[4] or 0, access[1]), *row[5:])


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
    rows = connection.execute(sql, (records.find_space_id(connection, where.space), *values, limit))
    return [records.decode_item(where.space, row) for row in rows]


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
        briefs |= _load_briefs(connection, sql, (space, session, low, high, *values))
    return briefs


def _load_briefs(connection: apsw.Connection, sql: str, values: tuple[Any, ...]) -> dict[int, ItemBrief]:
    rows: list[Any] = connection.execute(sql, values).fetchall()
    return {row[0]: ItemBrief._make(row[1:]) for row in rows}


def _find_allowed_places(connection: apsw.Connection, state: SpaceState, where: Where) -> AllowedPlaces:
    """Return the places that a filter lets through. Without a condition only items with time bounds are read."""
    is_filtered = where.is_narrow or where.known_at is not None
    if not is_filtered:
        if where.live_at is None:
            return AllowedPlaces()
        now = to_micros(where.live_at)
        rows = connection.execute(_SELECT_NOT_LIVE_PLACES, (state.id, now, now, now)).fetchall()
    else:
        sql, values = build_where_clause(where)
        rows = connection.execute(_SELECT_PLACES + sql, (state.id, *values)).fetchall()
    return AllowedPlaces(np.array([row[0] for row in rows], np.int64), excluded=not is_filtered)


def _select_best(
    connection: apsw.Connection, state: SpaceState, places: Places, scores: FloatColumn, limit: int
) -> Places:
    """Return the places of the `limit` best scores; ids break ties, as in every store."""
    if len(places) <= limit:
        return places
    if limit == 0:
        return places[:0]
    steps = np.rint(scores * SCORE_SCALE)
    last_step = search_cache.find_nth_highest(steps, limit)
    above, tied = places[steps > last_step], places[steps == last_step]
    wanted = limit - len(above)
    if len(tied) > wanted:
        values = (str(tied.tolist()), wanted)
        # With very many ties (a common term, texts of one length) their ids are not all looked up: reading the ids in
        # order finds enough of them within about wanted * items / ties rows.
        if len(tied) ** 2 > wanted * state.items:
            rows = connection.execute(_SELECT_FIRST_OF_MANY_PLACES, (state.id, *values))
        else:
            rows = connection.execute(_SELECT_FIRST_PLACES, values)
        tied = np.array([row[0] for row in rows], np.int64)
    return np.concatenate([above, tied])
