"""Memory items as rows: reading, filtering and writing them."""

from __future__ import annotations

import asyncio
import json
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from recollect.clock import to_micros
from recollect.errors import Conflict, RecollectError
from recollect.stores.base import Records
from recollect.stores.codec import pack_vectors
from recollect.stores.filters import Condition, Scalar, Where, iter_metadata_paths
from recollect.stores.postgres.connections import SqlParams
from recollect.stores.postgres.embedding_models import (
    GET_MODELS,
    LACKS_VECTORS_SQL,
    PostgresModels,
    activate_model,
    bind_model,
    load_models,
    parse_models,
    prepare_model,
)
from recollect.stores.postgres.row_codec import (
    ITEM_COLUMNS,
    SPACE_ID_SQL,
    build_handle,
    build_handle_range,
    build_handles,
    build_space_params,
    decode_item,
    decode_space,
    encode_item,
    encode_json,
    encode_timestamp,
    escape_text,
    unescape_text,
)
from recollect.stores.postgres.transactions import PostgresServer, SpaceNumber, StatementPlan
from recollect.stores.validation import validate_limit
from recollect.stores.writes import Delete, Embed, Model, Put, RecordWrite, Touch, Write
from recollect.types import MemoryItem, Space

_ACCESS_FLUSH_SECONDS = 0.25

# Filters.

_FILTER_COLUMNS = {
    "importance": ("number", "r.importance"),
    "trust": ("number", "r.trust"),
    "position": ("number", "r.position"),
    "created_at": ("number", "r.created_at"),
    "access_count": ("number", "r.access_count"),
    "source": ("text", "r.source"),
    "key": ("text", "r.key"),
    "session": ("text", "r.session"),
    "speaker": ("text", "r.speaker"),
    "agent": ("text", "r.by_agent"),
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

JoinAndCondition = tuple[str, str]


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

    def build_join(self, row: str) -> JoinAndCondition:
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
        if where.live_at is not None:
            now = self._bind(to_micros(where.live_at), "bigint")
            clauses.append(f"r.valid_from is null or r.valid_from <= {now}")
            clauses.append(f"r.valid_to is null or r.valid_to > {now}")
            clauses.append(f"r.expires_at is null or r.expires_at > {now}")
        if where.known_at is not None:
            known = self._bind(to_micros(where.known_at), "bigint")
            clauses.append(f"r.valid_from is not null or r.created_at <= {known}")
        if where.open_at is not None:
            at = self._bind(to_micros(where.open_at), "bigint")
            clauses.append(f"r.superseded_by is null or r.valid_to is null or r.valid_to > {at}")
        if where.created_from is not None:
            clauses.append(f"r.created_at >= {self._bind(to_micros(where.created_from), 'bigint')}")
        if where.created_until is not None:
            clauses.append(f"r.created_at < {self._bind(to_micros(where.created_until), 'bigint')}")
        if where.min_importance > 0.0:
            clauses.append(f"r.importance >= {self._bind(float(where.min_importance), 'float8')}")
        if where.key is not None:
            clauses.append(f"r.key_handle = {self._bind(build_handle(where.key), 'text')}")
        if where.key_prefix is not None:
            start, end = build_handle_range(where.key_prefix)
            clauses.append(f"r.key_handle >= {self._bind(start, 'text')}")
            clauses += [] if end is None else [f"r.key_handle < {self._bind(end, 'text')}"]
            clauses.append(f"starts_with(r.key, {self._bind_scalar(where.key_prefix)})")
        if where.ids is not None:
            clauses.append(f"r.handle = any({self._bind(build_handles(where.ids), 'text[]')})")
        return clauses

    def _build_condition(self, condition: Condition) -> str:
        match condition.op:
            case "eq":
                return self._build_equals(condition, condition.value)
            case "ne":
                equals = self._build_equals(condition, condition.value)
                if condition.is_field:
                    return f"({equals}) is not true"
                return f"{self._build_metadata_path(condition)} is not null and ({equals}) is not true"
            case "in":
                assert isinstance(condition.value, tuple)
                clauses = [self._build_equals(condition, value) for value in condition.value]
                return " or ".join(f"({clause})" for clause in clauses) if clauses else "false"
            case "prefix":
                assert isinstance(condition.value, str)
                return self._build_test(condition, "text", f"starts_with({{}}, {self._bind_scalar(condition.value)})")
            case "has":
                return self._build_contains(condition)
            case op:
                test = f"{{}} {_COMPARISON_SIGNS[op]} {self._bind_scalar(condition.value)}"
                return self._build_test(condition, _get_kind(condition.value), test)

    def _build_equals(self, condition: Condition, value: Any) -> str:
        if condition.is_field:
            kind, column = _FILTER_COLUMNS[condition.path]
            if value is None:
                return f"{column} is null"
            return f"{column} = {self._bind_scalar(value)}" if _get_kind(value) == kind else "false"
        if isinstance(value, float) and math.isinf(value):
            return "false"  # JSON has no infinity
        return f"{self._build_metadata_path(condition)} = {self._bind_json(value)}"

    def _build_contains(self, condition: Condition) -> str:
        """Return the test that a list in the metadata contains a value of the same type."""
        if isinstance(condition.value, float) and math.isinf(condition.value):
            return "false"
        path = self._build_metadata_path(condition)
        return f"jsonb_typeof({path}) = 'array' and {path} @> jsonb_build_array({self._bind_json(condition.value)})"

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
            return self._bind(escape_text(value), "text")
        # As text: a float would round an integer of more than 53 bits.
        return self._bind(repr(value), "numeric")

    def _bind_json(self, value: Any) -> str:
        return self._bind(json.dumps(escape_text(value) if isinstance(value, str) else value), "jsonb")

    def _bind(self, value: Any, type: str) -> str:
        name = f"f{len(self.values)}"
        self.values[name] = value
        return f"%({name})s::{type}"


def _get_kind(value: Scalar | tuple[Scalar, ...]) -> str:
    match value:
        case None | bool():
            return str(value)
        case int() | float():
            return "number"
        case _:
            return "text"


# Reads.

# Statements that depend on a Where end with its clauses, which are constants and placeholders.
_FROM_ITEMS = f"from recollect.records r where r.tenant = %(tenant)s and r.space = {SPACE_ID_SQL}"
GET_ITEMS = f"select {ITEM_COLUMNS} {_FROM_ITEMS} and r.handle = any(%(handles)s)"
_FIND_ITEMS = f"select {ITEM_COLUMNS} {_FROM_ITEMS} and "
_GET_ITEMS_WITH_TERMS = f"select {ITEM_COLUMNS}, r.terms {_FROM_ITEMS} and r.handle = any(%(handles)s)"
_GET_VECTORS = f"""
    select r.id, v.data
    from recollect.records r
    join recollect.vectors v on v.tenant = r.tenant and v.space = r.space and v.place = r.place
    where r.tenant = %(tenant)s and r.space = {SPACE_ID_SQL} and r.handle = any(%(handles)s)
        and v.generation = %(generation)s
    order by v.place, v.part
"""  # noqa: S608 - constant clauses
_LIST_PATHS = f"select path from recollect.paths where tenant = %(tenant)s and space = {SPACE_ID_SQL}"  # noqa: S608
_GET_LAST_TURNS = f"""
    select {ITEM_COLUMNS} {_FROM_ITEMS} and r.session_handle = %(session)s
    order by r.position desc, r.id desc
    limit %(limit)s
"""
GET_TOTAL_SIZE = """
    select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
    from pg_class c
    where c.relnamespace = 'recollect'::regnamespace and c.relkind = 'r'
"""
_FIND_UNEMBEDDED = f"""
    select s.tenant, s.tier, s.owner, s.agent, s.session, {ITEM_COLUMNS}
    from recollect.records r
    join recollect.spaces s on s.tenant = r.tenant and s.id = r.space
    where {LACKS_VECTORS_SQL}
    order by r.space, r.place
    limit %(limit)s
"""  # noqa: S608


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
        found = {item.id: item for item in await self._read_items(space, GET_ITEMS, {"handles": build_handles(ids)})}
        return [found[id] for id in dict.fromkeys(ids) if id in found]

    async def get_full(self, space: Space, *ids: str) -> list[Put]:
        await self._flush_accesses()
        async with self._server.begin_read(space.tenant) as work:
            models = await load_models(work)
            values = {**build_space_params(space), "handles": build_handles(ids), "generation": models.generation}
            rows = await work.fetch_rows(_GET_ITEMS_WITH_TERMS, values)
            vectors: dict[str, list[NDArray[np.float16]]] = {}
            for id, data in await work.fetch_rows(_GET_VECTORS, values):
                vector = np.frombuffer(data, ">f2", offset=4)  # after the dimensions
                vectors.setdefault(unescape_text(id), []).append(vector)
        puts = {}
        for *row, terms in rows:
            item = decode_item(space, row)
            own = np.stack(vectors[item.id]).astype(np.float32) if item.id in vectors else None
            model = None if own is None else models.active
            puts[item.id] = Put(item=item, terms=tuple(unescape_text(terms).split()), vectors=own, model=model)
        return [puts[id] for id in dict.fromkeys(ids) if id in puts]

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        await self._flush_accesses()
        filter = PostgresFilter(where)
        values = {**filter.values, "limit": validate_limit(limit)}
        sql = f"{_FIND_ITEMS} {filter.sql}"
        if after is not None:
            sql += " and (r.created_at, r.id) < (%(created_at)s::bigint, %(id)s)"
            values |= {"created_at": to_micros(after.created_at), "id": escape_text(after.id)}
        sql += " order by r.created_at desc, r.id desc limit %(limit)s"
        return await self._read_items(where.space, sql, values)

    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        values = {"session": build_handle(session), "limit": validate_limit(limit)}
        return await self._read_items(space, _GET_LAST_TURNS, values)

    async def _read_items(self, space: Space, statement: str, values: SqlParams) -> list[MemoryItem]:
        rows = await self._server.read(space.tenant, statement, build_space_params(space) | values)
        return [decode_item(space, row) for row in rows]

    async def paths(self, space: Space) -> frozenset[str]:
        rows = await self._server.read(space.tenant, _LIST_PATHS, build_space_params(space))
        return frozenset(unescape_text(path) for (path,) in rows)

    async def size(self) -> int:
        [(size,)] = await self._server.read(None, GET_TOTAL_SIZE)
        return int(size)

    async def model(self) -> Model | None:
        [(models,)] = await self._server.read(None, GET_MODELS)
        return parse_models(models).active

    async def bind_model(self, model: Model) -> None:
        if await self.model() != model:
            async with self._server.begin_write(None) as work:
                await bind_model(work, model)

    async def find_unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        most = validate_limit(limit)
        async with self._server.begin_write(None) as work:
            models = await prepare_model(work, model)
            rows = await work.fetch_rows(_FIND_UNEMBEDDED, {"fresh": models.next_generation, "limit": most})
        return [decode_item(decode_space(row[:5]), row[5:]) for row in rows]

    async def activate_model(self, model: Model) -> None:
        async with self._server.begin_write(None) as work:
            await activate_model(work, model)

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

_RECORD_COLUMNS = {
    "place": "bigint", "handle": "text", "id": "text", "version": "bigint", "access_count": "bigint",
    "last_accessed": "bigint", "content": "text", "metadata": "text", "importance": "float8", "created_at": "bigint",
    "valid_from": "bigint", "valid_to": "bigint", "superseded_by": "text", "expires_at": "bigint", "source": "text",
    "trust": "float8", "key": "text", "key_handle": "text", "session": "text", "session_handle": "text",
    "position": "float8", "speaker": "text", "derived_from": "text", "by_user": "text", "by_agent": "text",
    "by_session": "text", "pinned": "boolean", "decayed_at": "bigint", "learned_at": "bigint", "terms": "text",
    "length": "int", "passages": "int",
}  # fmt: skip
_NEW_RECORDS = f"json_to_recordset(%(rows)s::json) as new ({', '.join(map(' '.join, _RECORD_COLUMNS.items()))})"

_INSERT_RECORDS = f"""
    insert into recollect.records (tenant, space, {", ".join(_RECORD_COLUMNS)})
    select %(tenant)s, %(space)s, new.*
    from {_NEW_RECORDS}
"""  # noqa: S608 - a constant list of columns

_UPDATE_RECORDS = f"""
    update recollect.records r
    set {", ".join(f"{name} = new.{name}" for name in _RECORD_COLUMNS if name not in ("place", "handle", "id"))}
    from {_NEW_RECORDS}
    where r.tenant = %(tenant)s and r.space = %(space)s and r.place = new.place
"""  # noqa: S608 - a constant list of columns

_UPDATE_ACCESSES = """
    update recollect.records r
    set access_count = new.access_count, last_accessed = new.last_accessed
    from json_to_recordset(%(rows)s::json) as new (place bigint, access_count bigint, last_accessed bigint)
    where r.tenant = %(tenant)s and r.space = %(space)s and r.place = new.place
"""

_DELETE_RECORDS, _DELETE_POSTINGS, _DELETE_PLACED_VECTORS = (
    f"delete from recollect.{table} where tenant = %(tenant)s and space = %(space)s and place = any(%(places)s)"  # noqa: S608
    for table in ("records", "postings", "vectors")
)
# The index of vectors begins with tenant, space and generation.
_DELETE_VECTORS = f"{_DELETE_PLACED_VECTORS} and generation in ('a', 'b')"
_DELETE_PREPARED_VECTORS = f"{_DELETE_PLACED_VECTORS} and generation = %(generation)s"

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
    from unnest(%(handles)s::text[], %(paths)s::text[]) as new (handle, path)
    on conflict do nothing
"""

_UPDATE_COUNTS = """
    update recollect.spaces
    set next_seq = next_seq + %(places)s, items = items + %(items)s, words = words + %(words)s
    where tenant = %(tenant)s and id = %(space)s
"""

_INSERTS = {_INSERT_RECORDS, _INSERT_POSTINGS, _INSERT_VECTORS, _INSERT_PATHS, _UPDATE_COUNTS}


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


class PostgresRecordBatch:
    """The writes of a batch to the items of one space."""

    def __init__(self, space: Space, number: SpaceNumber, rows: Iterable[Sequence[Any]]) -> None:
        self.space = space
        self.number = number
        self.drafts: dict[str, RecordDraft] = {}
        self.deleted_places: list[int] = []
        self.paths: set[str] = set()
        self.new_places = self.item_delta = self.term_delta = 0
        for id, place, version, access_count, last_accessed, text, passages, _ in rows:
            terms = tuple(unescape_text(text).split())
            self.drafts[unescape_text(id)] = RecordDraft(
                place, version, access_count, last_accessed, terms, passages, is_stored=True
            )

    def apply(self, write: RecordWrite, models: PostgresModels) -> PostgresModels:
        """Apply a write and return the models after it. Raise `Conflict` if its expectation is not met."""
        match write:
            case Put():
                return self._put(write, models)
            case Delete():
                self._delete(write)
            case Touch():
                self._touch(write)
            case Embed():
                models.check_prepared(write.model)
                draft = self.drafts.get(write.id)
                if draft is not None and write.expect in (None, draft.version):
                    draft.prepared_vectors = pack_vectors(write.vectors)
        return models

    def _put(self, put: Put, models: PostgresModels) -> PostgresModels:
        draft = self.drafts.get(put.item.id)
        _check_version(put.item.id, draft, put.expect, absent=0)
        if put.vectors is not None:
            assert put.model is not None
            models.check_active(put.model)
            models = PostgresModels(put.model, models.generation, models.preparing)
        if draft is None:
            draft = self._add_draft(put.item)
        draft.version += 1
        draft.item = put.item
        if put.terms is not None and put.terms != draft.terms:
            self.term_delta += len(put.terms) - len(draft.terms)
            draft.terms, draft.has_new_terms = tuple(put.terms), True
        if put.vectors is not None:
            draft.vectors, draft.prepared_vectors = pack_vectors(put.vectors), None
            draft.passages = len(put.vectors)
        self.paths.update(iter_metadata_paths(put.item.metadata))
        return models

    def _add_draft(self, item: MemoryItem) -> RecordDraft:
        self.new_places += 1
        self.item_delta += 1
        place = self.number.next_seq + self.new_places
        accessed = encode_timestamp(item.last_accessed)
        draft = RecordDraft(place, access_count=item.access_count, last_accessed=accessed)
        self.drafts[item.id] = draft
        return draft

    def _delete(self, delete: Delete) -> None:
        draft = self.drafts.get(delete.id)
        _check_version(delete.id, draft, delete.expect, absent=None)
        if draft is None:
            return
        del self.drafts[delete.id]
        self.item_delta -= 1
        self.term_delta -= len(draft.terms)
        if draft.is_stored:
            self.deleted_places.append(draft.place)

    def _touch(self, touch: Touch) -> None:
        at = to_micros(touch.at)
        for id in touch.ids:
            if draft := self.drafts.get(id):
                draft.access_count += 1
                draft.last_accessed = at if draft.last_accessed is None else max(draft.last_accessed, at)
                draft.is_touched = True

    def add_to_plan(self, plan: StatementPlan, models: PostgresModels) -> None:
        """Add the statements for all applied writes."""
        self._plan_rows(plan)
        self._plan_postings(plan)
        self._plan_vectors(plan, models)
        handles, paths = [build_handle(path) for path in self.paths], [escape_text(path) for path in self.paths]
        self._add(plan, _INSERT_PATHS, {"handles": handles, "paths": paths})
        counts = {"places": self.new_places, "items": self.item_delta, "words": self.term_delta}
        self._add(plan, _UPDATE_COUNTS, counts)

    def _plan_rows(self, plan: StatementPlan) -> None:
        self._add(plan, _DELETE_RECORDS, {"places": self.deleted_places})
        written = [draft for draft in self.drafts.values() if draft.item is not None]
        touched = [draft for draft in self.drafts.values() if draft.item is None and draft.is_touched]
        self._add_rows(plan, _UPDATE_RECORDS, [_encode_draft(draft) for draft in written if draft.is_stored])
        self._add_rows(plan, _INSERT_RECORDS, [_encode_draft(draft) for draft in written if not draft.is_stored])
        self._add_rows(plan, _UPDATE_ACCESSES, [_encode_accesses(draft) for draft in touched])

    def _plan_postings(self, plan: StatementPlan) -> None:
        changed = [draft for draft in self.drafts.values() if draft.has_new_terms]
        stale = self.deleted_places + [draft.place for draft in changed if draft.is_stored]
        self._add(plan, _DELETE_POSTINGS, {"places": stale})
        postings = [
            {"term": build_handle(term), "place": draft.place, "count": count, "length": len(draft.terms)}
            for draft in changed
            for term, count in Counter(draft.terms).items()
        ]
        self._add_rows(plan, _INSERT_POSTINGS, postings)

    def _plan_vectors(self, plan: StatementPlan, models: PostgresModels) -> None:
        drafts = self.drafts.values()
        stale = self.deleted_places + [draft.place for draft in drafts if draft.vectors is not None and draft.is_stored]
        self._add(plan, _DELETE_VECTORS, {"places": stale})
        prepared = [draft.place for draft in drafts if draft.prepared_vectors is not None]
        if prepared:
            self._add(plan, _DELETE_PREPARED_VECTORS, {"generation": models.next_generation, "places": prepared})
        rows = [
            (generation, draft.place, part, HalfVector(vector))
            for draft in drafts
            for generation, vectors in (
                (models.generation, draft.vectors),
                (models.next_generation, draft.prepared_vectors),
            )
            if vectors is not None
            for part, vector in enumerate(vectors)
        ]
        if rows:
            columns = map(list, zip(*rows, strict=True))
            self._add(
                plan, _INSERT_VECTORS, dict(zip(("generations", "places", "parts", "data"), columns, strict=True))
            )

    def _add_rows(self, plan: StatementPlan, statement: str, rows: Sequence[SqlParams]) -> None:
        self._add(plan, statement, {"rows": encode_json(rows) if rows else None})

    def _add(self, plan: StatementPlan, statement: str, values: SqlParams) -> None:
        """Add a statement, unless all of its values are empty."""
        if any(values.values()):
            values = {"space": self.number.id, **values}
            plan.add(self.space.tenant, statement, values, has_row_changes=statement not in _INSERTS)


def _check_version(id: str, draft: RecordDraft | None, expected: int | None, *, absent: int | None) -> None:
    if expected is None or expected == (draft.version if draft else absent):
        return
    state = f"is at version {draft.version}" if draft else "is not there"
    raise Conflict(f"item {id!r} {state}, not at version {expected}; read it again")


def _encode_draft(draft: RecordDraft) -> SqlParams:
    assert draft.item is not None
    return {
        **encode_item(draft.item),
        **_encode_accesses(draft),
        "version": draft.version,
        "terms": escape_text(" ".join(draft.terms)),
        "length": len(draft.terms),
        "passages": draft.passages,
    }


def _encode_accesses(draft: RecordDraft) -> SqlParams:
    return {"place": draft.place, "access_count": draft.access_count, "last_accessed": draft.last_accessed}
