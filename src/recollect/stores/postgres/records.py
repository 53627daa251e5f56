"""Memory items as rows: reading, filtering and writing them."""

from __future__ import annotations

import asyncio
import json
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from recollect.clock import to_micros
from recollect.errors import Conflict, RecollectError
from recollect.stores.base import Records
from recollect.stores.codec import pack_vectors
from recollect.stores.filters import Condition, Scalar, Where, iter_metadata_paths
from recollect.stores.postgres import codec
from recollect.stores.postgres.connections import SqlParams
from recollect.stores.postgres.transactions import (
    LOCK_GROWTH_SQL,
    LOCK_MODELS_SQL,
    PostgresServer,
    PostgresTransaction,
    SpaceBatch,
    StoredRows,
)
from recollect.stores.validation import validate_limit
from recollect.stores.writes import Delete, Embed, Model, Put, RecordWrite, Touch, Write
from recollect.types import MemoryItem, Space

_ACCESS_FLUSH_SECONDS = 0.25

# Filters.

_FILTER_COLUMNS = {
    **{name: ("number", f"r.{name}") for name in ("importance", "trust", "position", "created_at", "access_count")},
    **{name: ("text", f"r.{name}") for name in ("source", "key", "session", "speaker")},
    "agent": ("text", "r.by_agent"),
}
# The type and clause of each field of a `Where`, and the encoding of its value.
_ITEM_CLAUSES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "live_at": (
        "bigint",
        to_micros,
        "(r.valid_from is null or r.valid_from <= {0}) and (r.valid_to is null or r.valid_to > {0}) "
        "and (r.expires_at is null or r.expires_at > {0})",
    ),
    "known_at": ("bigint", to_micros, "r.valid_from is not null or r.created_at <= {}"),
    "open_at": ("bigint", to_micros, "r.superseded_by is null or r.valid_to is null or r.valid_to > {}"),
    "created_from": ("bigint", to_micros, "r.created_at >= {}"),
    "created_until": ("bigint", to_micros, "r.created_at < {}"),
    "min_importance": ("float8", float, "r.importance >= {}"),
    "key": ("text", codec.build_handle, "r.key_handle = {}"),
    "ids": ("text[]", codec.build_handles, "r.handle = any({})"),
}
_COMPARISON_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

# Within the search statement, `at` is the space.
_EXCLUDE_INVALID_ITEMS = (
    "{row}.place not in ("
    "select r.place from recollect.records r where r.tenant = %(tenant)s and r.space = (select id from at) "
    "and (r.valid_from is not null or r.valid_to is not null or r.expires_at is not null) and not ({live})"
    ")"
)
_JOIN_ITEM = """
    join recollect.records r on r.tenant = %(tenant)s and r.space = (select id from at) and r.place = {row}.place
"""


class PostgresFilter:
    """The SQL condition of a `Where` on the items `r` of a space, and its parameters.

    The SQL consists of constants and placeholders; all names and values are parameters.
    """

    def __init__(self, where: Where) -> None:
        self.values: SqlParams = {}
        clauses = [*self._build_item_conditions(where), *map(self._build_condition, where.conditions)]
        self.sql = " and ".join(f"({clause})" for clause in clauses) if clauses else "true"
        self._is_only_live = where.live_at is not None and not where.is_narrow and where.known_at is None

    @property
    def is_wide(self) -> bool:
        """True if nearly all items of a space pass."""
        return self._is_only_live or self.sql == "true"

    def build_join(self, row: str) -> tuple[str, str]:
        """Return a join and a condition that limit vectors or postings to the items that pass.

        If the filter is only that an item is valid now, the few items that are not are excluded instead.
        """
        if self.sql == "true":
            return "", self.sql
        if self._is_only_live:
            return "", _EXCLUDE_INVALID_ITEMS.format(row=row, live=self.sql)
        return _JOIN_ITEM.format(row=row), self.sql

    def _build_item_conditions(self, where: Where) -> list[str]:
        clauses = []
        for name, (type, encode, clause) in _ITEM_CLAUSES.items():
            if (value := getattr(where, name)) not in (None, 0.0):
                clauses.append(clause.format(self._bind(encode(value), type)))
        if where.key_prefix is not None:
            start, end = codec.build_handle_range(where.key_prefix)
            clauses.append(f"r.key_handle >= {self._bind(start, 'text')}")
            clauses += [] if end is None else [f"r.key_handle < {self._bind(end, 'text')}"]
            clauses.append(f"starts_with(r.key, {self._bind_scalar(where.key_prefix)})")
        return clauses

    def _build_condition(self, condition: Condition) -> str:
        match condition.op:
            case "eq" | "in":
                values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
                return " or ".join(f"({self._build_equals(condition, value)})" for value in values) or "false"
            case "ne":
                equals = self._build_equals(condition, condition.value)
                if condition.is_field:
                    return f"({equals}) is not true"
                return f"{self._build_metadata_path(condition)} is not null and ({equals}) is not true"
            case "prefix":
                assert isinstance(condition.value, str)
                return self._build_test(condition, "text", f"starts_with({{}}, {self._bind_scalar(condition.value)})")
            case "has":  # a list in the metadata contains a value of the same type
                test = "jsonb_typeof({0}) = 'array' and {0} @> jsonb_build_array({1})"
                return self._build_json_test(condition, condition.value, test)
            case op:
                test = f"{{}} {_COMPARISON_SIGNS[op]} {self._bind_scalar(condition.value)}"
                return self._build_test(condition, _get_kind(condition.value), test)

    def _build_equals(self, condition: Condition, value: Any) -> str:
        if condition.is_field:
            kind, column = _FILTER_COLUMNS[condition.path]
            if value is None:
                return f"{column} is null"
            return f"{column} = {self._bind_scalar(value)}" if _get_kind(value) == kind else "false"
        return self._build_json_test(condition, value, "{0} = {1}")

    def _build_json_test(self, condition: Condition, value: Any, test: str) -> str:
        if isinstance(value, float) and math.isinf(value):
            return "false"  # JSON has no infinity
        json_value = json.dumps(codec.escape_text(value) if isinstance(value, str) else value)
        return test.format(self._build_metadata_path(condition), self._bind(json_value, "jsonb"))

    def _build_test(self, condition: Condition, kind: str, test: str) -> str:
        """Return a test of a field or metadata value. A value of another type fails it, where a cast would raise."""
        if condition.is_field:
            column_kind, column = _FILTER_COLUMNS[condition.path]
            return test.format(column) if kind == column_kind else "false"
        path = self._build_metadata_path(condition)
        cast = f"({path} #>> '{{}}') collate \"C\"" if kind == "text" else f"({path})::numeric"
        json_type = "string" if kind == "text" else "number"
        return f"case when jsonb_typeof({path}) = '{json_type}' then {test.format(cast)} else false end"

    def _build_metadata_path(self, condition: Condition) -> str:
        return f"(r.metadata::jsonb #> {self._bind(list(condition.keys), 'text[]')})"

    def _bind_scalar(self, value: Any) -> str:
        if isinstance(value, str):
            return self._bind(codec.escape_text(value), "text")
        # As text: a float would round an integer of more than 53 bits.
        return self._bind(repr(value), "numeric")

    def _bind(self, value: Any, type: str) -> str:
        name = f"f{len(self.values)}"
        self.values[name] = value
        return f"%({name})s::{type}"


def _get_kind(value: Scalar | tuple[Scalar, ...]) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    return "number" if isinstance(value, int | float) else "text"


# Reads.

# Statements that depend on a Where end with its clauses, which are constants and placeholders.
_FROM_ITEMS = f"from recollect.records r where r.tenant = %(tenant)s and r.space = {codec.SPACE_ID_SQL}"
GET_ITEMS = f"select {codec.ITEM_COLUMNS} {_FROM_ITEMS} and r.handle = any(%(handles)s)"
_FIND_ITEMS = f"select {codec.ITEM_COLUMNS} {_FROM_ITEMS} and "
_LIST_PATHS = f"select path from recollect.paths where tenant = %(tenant)s and space = {codec.SPACE_ID_SQL}"  # noqa: S608
_GET_LAST_TURNS = f"""
    select {codec.ITEM_COLUMNS} {_FROM_ITEMS} and r.session_handle = %(session)s
    order by r.position desc, r.id desc limit %(limit)s
"""
GET_TOTAL_SIZE = """
    select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class
    where relnamespace = 'recollect'::regnamespace and relkind = 'r'
"""

# Models.

_GET_MODELS = f"select {codec.MODELS_JSON_SQL}"
_SAVE_MODELS = """
    insert into recollect.meta (name, value) select * from json_each_text(%(models)s::json)
    on conflict (name) do update set value = excluded.value
"""
_GET_FULL_ITEMS = f"""
    select {codec.ITEM_COLUMNS}, r.terms, (
        select array_agg(v.data order by v.part) from recollect.vectors v
        where v.tenant = r.tenant and v.space = r.space and v.place = r.place
            and v.generation = {codec.ACTIVE_GENERATION_SQL}::"char"
    ), {codec.MODELS_JSON_SQL}
    {_FROM_ITEMS} and r.handle = any(%(handles)s)
"""  # noqa: S608
_DELETE_GENERATION = "delete from recollect.vectors where generation = %(generation)s"
# Items without vectors of the prepared model.
_FIND_UNEMBEDDED = f"""
    select s.tenant, s.tier, s.owner, s.agent, s.session, {codec.ITEM_COLUMNS} from recollect.records r
    join recollect.spaces s on s.tenant = r.tenant and s.id = r.space
    where not exists (
        select 1 from recollect.vectors v
        where v.tenant = r.tenant and v.space = r.space and v.place = r.place and v.generation = %(fresh)s
    )
    order by r.space, r.place limit %(limit)s
"""  # noqa: S608


async def load_models(work: PostgresTransaction) -> codec.PostgresModels:
    [[models]] = await work.fetch_rows(_GET_MODELS)
    return codec.PostgresModels.parse(models)


async def _save_models(work: PostgresTransaction, models: codec.PostgresModels) -> codec.PostgresModels:
    await work.execute(_SAVE_MODELS, {"models": models.encode()})
    return models


async def _bind_model(work: PostgresTransaction, model: Model) -> codec.PostgresModels:
    """Make the model the active one if there is none. Raise `EmbeddingModelMismatch` if there is another."""
    await work.execute(LOCK_GROWTH_SQL)
    models = await load_models(work)
    models.check_active(model)
    return await _save_models(work, replace(models, active=model))


async def _prepare_model(work: PostgresTransaction, model: Model) -> codec.PostgresModels:
    """Start or continue to prepare a model. Vectors of another unfinished model are deleted."""
    models = await load_models(work)
    if models.preparing == model and models.active is not None:
        return models
    await work.execute(LOCK_MODELS_SQL)
    models = await load_models(work)
    if models.active is None:
        models = await _bind_model(work, model)
    if models.preparing != model:
        await work.execute(_DELETE_GENERATION, {"generation": models.next_generation})
        models = await _save_models(work, replace(models, preparing=model))
    return models


class PostgresRecords(Records):
    """The `Records` protocol without search, and a buffer of accesses that are written in the background."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._pending_accesses: list[Touch] = []
        self._access_timer: asyncio.TimerHandle | None = None
        self._access_task: asyncio.Task[None] | None = None

    @abstractmethod
    async def write(self, *writes: Write) -> None: ...

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        if not ids:
            return []
        await self._flush_accesses()
        found = {item.id: item for item in await self._read_items(space, GET_ITEMS, handles=codec.build_handles(ids))}
        return [found[id] for id in dict.fromkeys(ids) if id in found]

    async def get_full(self, space: Space, *ids: str) -> list[Put]:
        await self._flush_accesses()
        puts = {}
        found = await self._server.read_space(space, _GET_FULL_ITEMS, handles=codec.build_handles(ids))
        for *row, terms, data, models in found:
            item, vectors, model = codec.decode_item(space, row), None, None
            if data is not None:
                rows = [np.frombuffer(vector, ">f2", offset=4) for vector in data]  # after the dimensions
                vectors, model = np.stack(rows).astype(np.float32), codec.PostgresModels.parse(models).active
            words = tuple(codec.unescape_text(terms).split())
            puts[item.id] = Put(item=item, terms=words, vectors=vectors, model=model)
        return [puts[id] for id in dict.fromkeys(ids) if id in puts]

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        await self._flush_accesses()
        filter = PostgresFilter(where)
        values = {**filter.values, "limit": validate_limit(limit)}
        sql = f"{_FIND_ITEMS} {filter.sql}"
        if after is not None:
            sql += " and (r.created_at, r.id) < (%(created_at)s::bigint, %(id)s)"
            values |= {"created_at": to_micros(after.created_at), "id": codec.escape_text(after.id)}
        sql += " order by r.created_at desc, r.id desc limit %(limit)s"
        return await self._read_items(where.space, sql, **values)

    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        most = validate_limit(limit)
        return await self._read_items(space, _GET_LAST_TURNS, session=codec.build_handle(session), limit=most)

    async def _read_items(self, space: Space, statement: str, **values: Any) -> list[MemoryItem]:
        return [codec.decode_item(space, row) for row in await self._server.read_space(space, statement, **values)]

    async def paths(self, space: Space) -> frozenset[str]:
        return frozenset(codec.unescape_text(path) for (path,) in await self._server.read_space(space, _LIST_PATHS))

    async def size(self) -> int:
        [[size]] = await self._server.read(None, GET_TOTAL_SIZE)
        return int(size)

    async def model(self) -> Model | None:
        [[models]] = await self._server.read(None, _GET_MODELS)
        return codec.PostgresModels.parse(models).active

    async def bind_model(self, model: Model) -> None:
        if await self.model() != model:
            async with self._server.begin_write(None) as work:
                await _bind_model(work, model)

    async def find_unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        most = validate_limit(limit)
        async with self._server.begin_write(None) as work:
            models = await _prepare_model(work, model)
            rows = await work.fetch_rows(_FIND_UNEMBEDDED, {"fresh": models.next_generation, "limit": most})
        return [codec.decode_item(codec.decode_space(row[:5]), row[5:]) for row in rows]

    async def activate_model(self, model: Model) -> None:
        async with self._server.begin_write(None) as work:
            await work.execute(LOCK_MODELS_SQL)
            models = await load_models(work)
            if models.active == model and models.preparing is None:
                return
            models = await _prepare_model(work, model)
            if await work.fetch_rows(_FIND_UNEMBEDDED, {"fresh": models.next_generation, "limit": 1}):
                raise Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
            await _save_models(work, codec.PostgresModels(model, models.next_generation))
            await work.execute(_DELETE_GENERATION, {"generation": models.generation})

    def touch(self, touch: Touch) -> None:
        self._pending_accesses.append(touch)
        if self._access_timer is None:
            loop = asyncio.get_running_loop()
            self._access_timer = loop.call_later(_ACCESS_FLUSH_SECONDS, self._start_writing_accesses)

    def _start_writing_accesses(self) -> None:
        if self._access_timer is not None:
            self._access_timer.cancel()
            self._access_timer = None
        if self._pending_accesses and (self._access_task is None or self._access_task.done()):
            self._access_task = asyncio.create_task(self._write_accesses())

    async def _write_accesses(self) -> None:
        while self._pending_accesses:
            touches = list(self._pending_accesses)
            try:
                await self.write(*touches)
            except RecollectError:
                pass  # access counts are best effort
            finally:
                del self._pending_accesses[: len(touches)]

    async def _flush_accesses(self) -> None:
        """Wait until all pending accesses are written."""
        self._start_writing_accesses()
        if self._access_task is not None and not self._access_task.done():
            await asyncio.wait([self._access_task])


# Writes.

SELECT_ITEMS = codec.SELECT_NAMED_SQL.format(
    table="records",
    columns=f"t.id, t.place, t.version, t.access_count, t.last_accessed, t.terms, t.passages, {codec.MODELS_JSON_SQL}",
)
_INSERT_RECORDS = """
    insert into recollect.records
    select new.* from json_populate_recordset(null::recollect.records, %(rows)s::json) as new
"""
_UPDATED_COLUMNS = (*codec.ITEM_FIELDS[1:], "key_handle", "session_handle", "terms", "length", "passages")
_UPDATE_RECORDS = f"""
    update recollect.records r set {", ".join(f"{name} = new.{name}" for name in _UPDATED_COLUMNS)}
    from json_populate_recordset(null::recollect.records, %(rows)s::json) as new
    where r.tenant = %(tenant)s and r.space = %(space)s and r.place = new.place
"""  # noqa: S608 - a constant list of columns

_UPDATE_ACCESSES = """
    update recollect.records r set access_count = new.access_count, last_accessed = new.last_accessed
    from json_to_recordset(%(rows)s::json) as new (place bigint, access_count bigint, last_accessed bigint)
    where r.tenant = %(tenant)s and r.space = %(space)s and r.place = new.place
"""

_DELETE_RECORDS, _DELETE_POSTINGS, _DELETE_PLACED_VECTORS = (
    f"delete from recollect.{table} where {codec.OF_SPACE_SQL} and place = any(%(places)s)"  # noqa: S608
    for table in ("records", "postings", "vectors")
)
# The index of vectors begins with tenant, space and generation.
_DELETE_VECTORS = f'{_DELETE_PLACED_VECTORS} and generation = any(%(generations)s::"char"[])'

_INSERT_POSTINGS = """
    insert into recollect.postings (tenant, space, term, place, count, length)
    select %(tenant)s, %(space)s, word.term, word.place, word.count, word.length
    from json_to_recordset(%(rows)s::json) as word (term text, place bigint, count int, length int)
"""

_INSERT_VECTORS = """
    insert into recollect.vectors (tenant, space, generation, place, part, data)
    select %(tenant)s, %(space)s, new.generation::"char", new.place, new.part, new.data
    from unnest(%(generations)s::text[], %(places)s::bigint[], %(parts)s::bigint[],
        %(data)s::halfvec[]) as new (generation, place, part, data)
"""

_INSERT_PATHS = """
    insert into recollect.paths (tenant, space, handle, path)
    select %(tenant)s, %(space)s, new.handle, new.path
    from unnest(%(handles)s::text[], %(paths)s::text[]) as new (handle, path) on conflict do nothing
"""

_UPDATE_COUNTS = """
    update recollect.spaces
    set next_seq = next_seq + %(places)s, items = items + %(items)s, words = words + %(words)s
    where tenant = %(tenant)s and id = %(space)s
"""


@dataclass(slots=True)
class RecordDraft:
    """An item's row as the batch leaves it."""

    place: int
    version: int = 0
    access_count: int = 0
    last_accessed: int | None = None
    terms: tuple[str, ...] = ()
    passages: int = 1
    is_stored: bool = False
    item: MemoryItem | None = None
    is_touched: bool = False
    has_new_terms: bool = False
    vectors: NDArray[np.float16] | None = None
    prepared_vectors: NDArray[np.float16] | None = None


class PostgresRecordBatch(SpaceBatch):
    """The writes of a batch to the items of one space."""

    def _load(self, rows: StoredRows) -> None:
        self._drafts: dict[str, RecordDraft] = {}
        self._deleted_places: list[int] = []
        self._paths: set[str] = set()
        self._new_places = self._item_delta = self._term_delta = 0
        for id, place, version, access_count, last_accessed, text, passages, _ in rows.values():
            terms = tuple(codec.unescape_text(text).split())
            draft = RecordDraft(place, version, access_count, last_accessed, terms, passages, is_stored=True)
            self._drafts[codec.unescape_text(id)] = draft

    def apply(self, write: RecordWrite) -> None:
        match write:
            case Put():
                self._put(write)
            case Delete():
                self._delete(write)
            case Touch():
                self._touch(write)
            case Embed():
                self._plan.models.check_prepared(write.model)
                draft = self._drafts.get(write.id)
                if draft is not None and write.expect in (None, draft.version):
                    draft.prepared_vectors = pack_vectors(write.vectors)

    def _put(self, put: Put) -> None:
        item, draft = put.item, self._drafts.get(put.item.id)
        _check_version(item.id, draft, put.expect, absent=0)
        if put.model is not None and put.vectors is not None:
            self._plan.models.check_active(put.model)
            if self._plan.models.active is None:
                self._plan.models = replace(self._plan.models, active=put.model)
                self._add(_SAVE_MODELS, models=self._plan.models.encode())
        if draft is None:
            self._new_places += 1
            self._item_delta += 1
            place, accessed = self._last + self._new_places, codec.encode_value(item.last_accessed)
            draft = RecordDraft(place, access_count=item.access_count, last_accessed=accessed)
            self._drafts[item.id] = draft
        draft.version += 1
        draft.item = item
        if put.terms is not None and put.terms != draft.terms:
            self._term_delta += len(put.terms) - len(draft.terms)
            draft.terms, draft.has_new_terms = tuple(put.terms), True
        if put.vectors is not None:
            draft.vectors, draft.prepared_vectors = pack_vectors(put.vectors), None
            draft.passages = len(put.vectors)
        self._paths.update(iter_metadata_paths(item.metadata))

    def _delete(self, delete: Delete) -> None:
        draft = self._drafts.get(delete.id)
        _check_version(delete.id, draft, delete.expect, absent=None)
        if draft is None:
            return
        del self._drafts[delete.id]
        self._item_delta -= 1
        self._term_delta -= len(draft.terms)
        if draft.is_stored:
            self._deleted_places.append(draft.place)

    def _touch(self, touch: Touch) -> None:
        at = to_micros(touch.at)
        for id in touch.ids:
            if draft := self._drafts.get(id):
                draft.access_count += 1
                draft.last_accessed = at if draft.last_accessed is None else max(draft.last_accessed, at)
                draft.is_touched = True

    def add_to_plan(self) -> None:
        self._plan_rows()
        self._plan_postings()
        self._plan_vectors()
        handles, paths = (list(map(encode, self._paths)) for encode in (codec.build_handle, codec.escape_text))
        self._add_unless_empty(_INSERT_PATHS, handles=handles, paths=paths)
        places, items, words = self._new_places, self._item_delta, self._term_delta
        self._add_unless_empty(_UPDATE_COUNTS, places=places, items=items, words=words)

    def _plan_rows(self) -> None:
        self._add_unless_empty(_DELETE_RECORDS, places=self._deleted_places)
        written = [draft for draft in self._drafts.values() if draft.item is not None]
        touched = [draft for draft in self._drafts.values() if draft.item is None and draft.is_touched]
        self._add_rows(_UPDATE_RECORDS, [self._encode_draft(draft) for draft in written if draft.is_stored])
        self._add_rows(_INSERT_RECORDS, [self._encode_draft(draft) for draft in written if not draft.is_stored])
        self._add_rows(_UPDATE_ACCESSES, [_encode_accesses(draft) for draft in touched])

    def _plan_postings(self) -> None:
        changed = [draft for draft in self._drafts.values() if draft.has_new_terms]
        stale = self._deleted_places + [draft.place for draft in changed if draft.is_stored]
        self._add_unless_empty(_DELETE_POSTINGS, places=stale)
        postings = [
            {"term": codec.build_handle(term), "place": draft.place, "count": count, "length": len(draft.terms)}
            for draft in changed
            for term, count in Counter(draft.terms).items()
        ]
        self._add_rows(_INSERT_POSTINGS, postings)

    def _plan_vectors(self) -> None:
        drafts, generations = self._drafts.values(), (self._plan.models.generation, self._plan.models.next_generation)
        stale = [draft.place for draft in drafts if draft.vectors is not None and draft.is_stored]
        prepared = [draft.place for draft in drafts if draft.prepared_vectors is not None]
        for places, among in ((self._deleted_places + stale, generations), (prepared, generations[1:])):
            if places:
                self._add(_DELETE_VECTORS, places=places, generations=list(among))
        rows = [
            (generation, draft.place, part, HalfVector(vector))
            for draft in drafts
            for generation, vectors in zip(generations, (draft.vectors, draft.prepared_vectors), strict=True)
            if vectors is not None
            for part, vector in enumerate(vectors)
        ]
        if rows:
            columns = map(list, zip(*rows, strict=True))
            self._add(_INSERT_VECTORS, **dict(zip(("generations", "places", "parts", "data"), columns, strict=True)))

    def _add_rows(self, statement: str, rows: Sequence[SqlParams]) -> None:
        self._add_unless_empty(statement, rows=codec.encode_json(rows) if rows else None)

    def _add_unless_empty(self, statement: str, **values: Any) -> None:
        """Add a statement, unless all of its values are empty."""
        if any(values.values()):
            self._add(statement, **values)

    def _encode_draft(self, draft: RecordDraft) -> SqlParams:
        assert draft.item is not None
        return {
            **codec.encode_item(draft.item),
            **_encode_accesses(draft),
            "tenant": codec.escape_text(self._space.tenant),
            "space": self.number,
            "version": draft.version,
            "terms": codec.escape_text(" ".join(draft.terms)),
            "length": len(draft.terms),
            "passages": draft.passages,
        }


def _check_version(id: str, draft: RecordDraft | None, expected: int | None, *, absent: int | None) -> None:
    if expected is None or expected == (draft.version if draft else absent):
        return
    state = f"is at version {draft.version}" if draft else "is not there"
    raise Conflict(f"item {id!r} {state}, not at version {expected}; read it again")


def _encode_accesses(draft: RecordDraft) -> SqlParams:
    return {"place": draft.place, "access_count": draft.access_count, "last_accessed": draft.last_accessed}
