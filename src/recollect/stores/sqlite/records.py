"""Items in a store file: rows, full-text terms, vectors and access counts, and their writing."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import apsw
import numpy as np
from numpy.typing import NDArray

from recollect.clock import from_micros, to_micros
from recollect.errors import BadInput, Conflict
from recollect.stores.codec import (
    DECODE_ERRORS,
    build_corrupt_error,
    decode_mapping,
    decode_texts,
    detects_corruption,
    pack_vectors,
)
from recollect.stores.filters import iter_metadata_paths
from recollect.stores.validation import build_model_mismatch
from recollect.stores.writes import Delete, Embed, Model, Put, RecordWrite, Touch, Vectors
from recollect.types import EMPTY_MAPPING, MemoryItem, Scope, Space, Turn

# Places: the rowid of an item or entry is its space's id and its number in the space. A vector's is its item's place
# and the number of its passage.

SEQ_BITS = 28
MAX_SEQ = (1 << SEQ_BITS) - 1
PART_BITS = 6


def encode_place(space: int, seq: int) -> int:
    """Return the rowid of an item or entry."""
    return space << SEQ_BITS | seq


def decode_seqs(places: NDArray[np.int64]) -> NDArray[np.int64]:
    return places & MAX_SEQ


def get_place_range(space: int) -> tuple[int, int]:
    """Return the first and the last place of a space."""
    return encode_place(space, 0), encode_place(space, MAX_SEQ)


def get_vector_range(first_place: int, last_place: int) -> tuple[int, int]:
    """Return the first id of the places' vectors, and the first id after them."""
    return first_place << PART_BITS, (last_place + 1) << PART_BITS


# Rows

ITEM_COLUMNS = """
    id, version, content, metadata, importance, access_count, last_accessed, created_at, valid_from, valid_to,
    superseded_by, expires_at, source, trust, key, session, position, speaker, derived_from,
    by_user, by_agent, by_session, pinned, decayed_at, learned_at"""

_ENCODED_COLUMNS = (
    "content", "metadata", "importance", "created_at", "valid_from", "valid_to", "superseded_by", "expires_at",
    "source", "trust", "key", "session", "position", "speaker", "derived_from", "by_user", "by_agent", "by_session",
    "pinned", "decayed_at", "learned_at", "terms", "length", "passages",
)  # fmt: skip
BRIEF_COLUMNS = "id, session, position, speaker, created_at, importance, trust, source, length, passages"


def to_optional_micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)


def from_optional_micros(value: int | None) -> datetime | None:
    return None if value is None else from_micros(value)


def dump_json(value: Any) -> str:
    """Return compact JSON. Raises `ValueError` for NaN and infinity."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def load_metadata(text: str) -> Mapping[str, Any]:
    return EMPTY_MAPPING if text == "{}" else MappingProxyType(decode_mapping("metadata", json.loads(text)))


def encode_item(item: MemoryItem, terms: Sequence[str], passages: int | None) -> tuple[Any, ...]:
    """Return the values of `_ENCODED_COLUMNS`."""
    turn = item.turn
    return (
        item.content,
        dump_json(dict(item.metadata)),
        item.importance,
        to_micros(item.created_at),
        to_optional_micros(item.valid_from),
        to_optional_micros(item.valid_to),
        item.superseded_by,
        to_optional_micros(item.expires_at),
        item.source,
        item.trust,
        item.key,
        turn.session if turn else None,
        float(turn.position) if turn else None,
        turn.speaker if turn else None,
        dump_json(list(item.derived_from)),
        item.scope.user,
        item.scope.agent,
        item.scope.session,
        int(item.pinned),
        to_optional_micros(item.decayed_at),
        to_optional_micros(item.learned_at),
        " ".join(terms),
        len(terms),
        passages,
    )


# Creating a scope validates it, and nearly all rows of one answer share theirs.
_build_scope = lru_cache(maxsize=1024)(Scope)


def clear_scope_cache() -> None:
    """Drop the cached names of scopes."""
    _build_scope.cache_clear()


def decode_item(space: Space, row: tuple[Any, ...]) -> MemoryItem:
    session, position, speaker = row[15:18]
    try:
        return MemoryItem(
            id=row[0],
            version=row[1],
            content=row[2],
            metadata=load_metadata(row[3]),
            importance=row[4],
            access_count=row[5],
            last_accessed=from_optional_micros(row[6]),
            created_at=from_micros(row[7]),
            valid_from=from_optional_micros(row[8]),
            valid_to=from_optional_micros(row[9]),
            superseded_by=row[10],
            expires_at=from_optional_micros(row[11]),
            source=row[12],
            trust=row[13],
            key=row[14],
            turn=None if session is None else Turn(session, position, speaker),
            derived_from=decode_texts("derived_from", json.loads(row[18])) if row[18] != "[]" else (),
            scope=_build_scope(space.tenant, row[19], row[20], row[21]),
            pinned=bool(row[22]),
            decayed_at=from_optional_micros(row[23]),
            learned_at=from_optional_micros(row[24]),
            tier=space.tier,
        )
    except DECODE_ERRORS as error:
        raise build_corrupt_error(f"the row of item {row[0]!r:.80}", error) from error


def get_space_key(space: Space) -> tuple[str, str, str, str, str]:
    return space.tenant, space.tier, space.user, space.agent, space.session


def find_space_id(connection: apsw.Connection, space: Space) -> int | None:
    """Return the id of a space; None if nothing was stored in it."""
    id: int | None = connection.execute(
        "select id from spaces where tenant = ? and tier = ? and user = ? and agent = ? and session = ?",
        get_space_key(space),
    ).get
    return id


# Full-text terms. Each carries its space, so that a search reads and counts the terms of one space only.

_MAX_TERM_LENGTH = 64


def encode_term(space: int, term: str) -> str:
    """Return a term as a single token of the index, with unsupported characters hashed."""
    # The tokenizer folds A-Z and splits at everything but ASCII letters and digits.
    is_plain = len(term) <= _MAX_TERM_LENGTH and term.isascii() and term.isalnum() and term == term.lower()
    if not is_plain:
        raw = term.encode("utf-8", "surrogatepass")
        term = "_" + hashlib.blake2b(raw, digest_size=12).hexdigest()
    return f"{space:x}_{term}"


def index_terms(connection: apsw.Connection, space: int, place: int, terms: Sequence[str]) -> None:
    if terms:
        document = " ".join(encode_term(space, term) for term in terms)
        connection.execute("insert into words (rowid, terms) values (?, ?)", (place, document))


def unindex_terms(connection: apsw.Connection, space: int, place: int, terms: Sequence[str]) -> None:
    """Remove an item's terms, which must be those that were indexed: the index stores no text."""
    if terms:
        document = " ".join(encode_term(space, term) for term in terms)
        connection.execute("insert into words (words, rowid, terms) values ('delete', ?, ?)", (place, document))


def find_postings(connection: apsw.Connection, space: int, term: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the places of the items with a term, ascending, and how often each has it."""
    # For a term in thousands of items, one joined text is three times faster than a row per occurrence.
    joined = connection.execute(
        "select group_concat(doc) from occurrences where term = ?", (encode_term(space, term),)
    ).get
    if not joined:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    places, counts = np.unique(np.fromstring(str(joined), np.int64, sep=","), return_counts=True)
    return places, counts.astype(np.float64)


# Vectors: two tables, called generations. One is active, the other is filled while a new model is prepared.


def build_for_each_generation(statement: str) -> dict[str, str]:
    """Return a constant statement for each of the two tables, by generation."""
    return {generation: statement.replace("VECTORS", f"vectors_{generation}") for generation in ("a", "b")}


_INSERT_VECTOR = build_for_each_generation("insert or replace into VECTORS (id, data) values (?, ?)")
DELETE_VECTORS = build_for_each_generation("delete from VECTORS where id >= ? and id < ?")
_DELETE_ALL_VECTORS = build_for_each_generation("delete from VECTORS")
SELECT_UNEMBEDDED = build_for_each_generation("""
    select place
    from records
    where not exists (select 1 from VECTORS v where v.id = records.place << 6)
    order by place
    limit ?""")


@dataclass(frozen=True, slots=True)
class SqliteVectorTable:
    """The active model and the generation of its vectors."""

    model: Model
    generation: str

    @property
    def other_generation(self) -> str:
        return "b" if self.generation == "a" else "a"


def load_active_table(connection: apsw.Connection) -> SqliteVectorTable | None:
    """Return the active table; None if the store has no model yet."""
    model, generation = _read_meta(connection, "model"), _read_meta(connection, "generation")
    return SqliteVectorTable(parse_model(model), generation or "a") if model else None


def adopt_model(connection: apsw.Connection, model: Model) -> SqliteVectorTable:
    """Bind a store without a model to `model`. Raises `EmbeddingModelMismatch` if it is bound to another."""
    table = load_active_table(connection)
    if table is None:
        write_meta(connection, "model", json.dumps(asdict(model)))
        write_meta(connection, "generation", "a")
        return SqliteVectorTable(model, "a")
    if table.model != model:
        raise build_model_mismatch(table.model, model)
    return table


def prepare_model(connection: apsw.Connection, model: Model) -> SqliteVectorTable:
    """Start or continue to prepare a model. Vectors of another model in preparation are deleted."""
    table = load_active_table(connection) or adopt_model(connection, model)
    if _read_meta(connection, "preparing") != json.dumps(asdict(model)):
        connection.execute(_DELETE_ALL_VECTORS[table.other_generation])
        write_meta(connection, "preparing", json.dumps(asdict(model)))
    return table


def switch_model(connection: apsw.Connection, model: Model) -> None:
    """Activate the prepared model and delete the old vectors. Raises `Conflict` if an item lacks its new vectors."""
    table = load_active_table(connection)
    if table is not None and table.model == model and _read_meta(connection, "preparing") is None:
        return
    table = prepare_model(connection, model)
    if connection.execute(SELECT_UNEMBEDDED[table.other_generation], (1,)).get is not None:
        raise Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
    write_meta(connection, "model", json.dumps(asdict(model)))
    write_meta(connection, "generation", table.other_generation)
    connection.execute("delete from meta where name = 'preparing'")
    connection.execute(_DELETE_ALL_VECTORS[table.generation])
    # Invalidates cached spaces: this generation may have been active before, with other vectors.
    connection.execute("update spaces set rewrites = rewrites + 1")


@lru_cache(maxsize=16)
@detects_corruption("the name of the embedding model")
def parse_model(text: str) -> Model:
    return Model.decode(**json.loads(text))


def _read_meta(connection: apsw.Connection, name: str) -> str | None:
    value: str | None = connection.execute("select value from meta where name = ?", (name,)).get
    return value


def write_meta(connection: apsw.Connection, name: str, value: str) -> None:
    connection.execute(
        "insert into meta (name, value) values (?, ?) on conflict do update set value = excluded.value", (name, value)
    )


# Access counts


class ItemAccess(NamedTuple):
    """Accesses of an item that are not written yet, and the time of the last one in microseconds."""

    times: int
    last_at: int


AccessCounts = dict[Space, dict[str, ItemAccess]]


class SqliteAccessBuffer:
    """Accesses that are not written yet, by space and id.

    After each commit all readers reload their page caches, which is the largest cost of a search. So the accesses of
    several searches are written together, and readers add those that are still pending.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: AccessCounts = {}

    def add(self, touch: Touch) -> None:
        at = to_micros(touch.at)
        with self._lock:
            counts = self._pending.setdefault(touch.space, {})
            for id in touch.ids:
                times, last_at = counts.get(id, (0, at))
                counts[id] = ItemAccess(times + 1, max(last_at, at))

    def take(self) -> AccessCounts:
        """Remove and return everything, for the caller to write."""
        with self._lock:
            taken, self._pending = self._pending, {}
            return taken

    def get_pending(self, space: Space, ids: Iterable[str]) -> dict[str, ItemAccess]:
        with self._lock:
            counts = self._pending.get(space)
            return {id: counts[id] for id in ids if id in counts} if counts else {}


# Writing

_INSERT_RECORD = f"""
    insert into records (place, space, id, version, access_count, last_accessed, {", ".join(_ENCODED_COLUMNS)})
    values (?, ?, ?, 1, ?, ?, {", ".join("?" * len(_ENCODED_COLUMNS))})"""  # noqa: S608
_UPDATE_RECORD = f"""
    update records
    set version = version + 1, {", ".join(f"{name} = ?" for name in _ENCODED_COLUMNS[:-1])},
        passages = coalesce(?, passages)
    where place = ?"""  # noqa: S608

# The id of an erased space and its fences are never reused.
_INSERT_SPACE = """
insert into spaces (id, tenant, tier, user, agent, session, next_seq)
select
    max(coalesce((select max(id) from spaces), 0), coalesce((select value + 0 from meta where name = 'last_space'), 0))
        + 1,
    ?1, ?2, ?3, ?4, ?5,
    iif(?2 = 'checkpoints', coalesce((select value + 0 from meta where name = 'last_fence'), 0), 0)
returning id"""


class SqliteRecordWriter:
    """Applies the record writes of one batch, and caches what it has looked up."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._space_ids: dict[Space, int] = {}
        self._saved_paths: set[tuple[int, str]] = set()
        self._vector_table: SqliteVectorTable | None = None

    def apply(self, write: RecordWrite) -> None:
        match write:
            case Put():
                self._put(write)
            case Delete():
                self._delete(write)
            case Touch():
                at, counts = to_micros(write.at), Counter(write.ids)
                self.add_accesses(write.space, {id: ItemAccess(times, at) for id, times in counts.items()})
            case Embed():
                self._embed(write)

    def get_or_create_space(self, space: Space) -> int:
        id = self._space_ids.get(space)
        if id is None:
            id = find_space_id(self._connection, space)
            if id is None:
                id = int(self._connection.execute(_INSERT_SPACE, get_space_key(space)).get)
            self._space_ids[space] = id
        return id

    def add_accesses(self, space: Space, accesses: Mapping[str, ItemAccess]) -> None:
        """Add to the stored counts; items that have been deleted meanwhile are skipped."""
        space_id = self.get_or_create_space(space)
        self._connection.executemany(
            """
            update records
            set access_count = access_count + ?1, last_accessed = max(coalesce(last_accessed, ?2), ?2)
            where space = ?3 and id = ?4""",
            [(access.times, access.last_at, space_id, id) for id, access in accesses.items()],
        )

    def _put(self, put: Put) -> None:
        space = self.get_or_create_space(put.space)
        row = self._find_row(space, put.item.id)
        if put.expect is not None:
            _check_version(put.item.id, row[1] if row else 0, put.expect)
        if row is None:
            self._insert(put, space)
        else:
            self._replace(put, space, row)
        for path in iter_metadata_paths(put.item.metadata):
            if (space, path) not in self._saved_paths:
                self._connection.execute("insert or ignore into paths (space, path) values (?, ?)", (space, path))
                self._saved_paths.add((space, path))

    def _find_row(self, space: int, id: str) -> tuple[Any, ...] | None:
        """Return place, version, terms, length and speaker of an item."""
        return self._connection.execute(
            "select place, version, terms, length, speaker from records where space = ? and id = ?", (space, id)
        ).fetchone()

    def _insert(self, put: Put, space: int) -> None:
        terms = put.terms or ()
        seq = self._connection.execute(
            """
            update spaces
            set next_seq = next_seq + 1, items = items + 1, words = words + ?
            where id = ?
            returning next_seq""",
            (len(terms), space),
        ).get
        if seq > MAX_SEQ:
            raise BadInput(f"one scope holds at most {MAX_SEQ + 1:,} items over its life; start another")
        place = encode_place(space, seq)
        values = encode_item(put.item, terms, 1 if put.vectors is None else len(put.vectors))
        accesses = (put.item.access_count, to_optional_micros(put.item.last_accessed))
        self._connection.execute(_INSERT_RECORD, (place, space, put.item.id, *accesses, *values))
        index_terms(self._connection, space, place, terms)
        if put.vectors is not None:
            self._insert_vectors(self._get_vector_table(put.model).generation, place, put.vectors)

    def _replace(self, put: Put, space: int, row: tuple[Any, ...]) -> None:
        """Update a stored item. Its terms and vectors stay if the write has none."""
        place, _, stored_terms, length, speaker = row
        old = tuple(stored_terms.split())
        new = old if put.terms is None else put.terms
        values = encode_item(put.item, new, None if put.vectors is None else len(put.vectors))
        self._connection.execute(_UPDATE_RECORD, (*values, place))
        is_rewritten = speaker != (put.item.turn.speaker if put.item.turn else None)
        if new != old:
            unindex_terms(self._connection, space, place, old)
            index_terms(self._connection, space, place, new)
            is_rewritten = True
        if put.vectors is not None:
            table = self._get_vector_table(put.model)
            self._delete_vectors(place)
            self._insert_vectors(table.generation, place, put.vectors)
            is_rewritten = True
        if is_rewritten:
            self._connection.execute(
                "update spaces set rewrites = rewrites + 1, words = words + ? where id = ?", (len(new) - length, space)
            )

    def _delete(self, delete: Delete) -> None:
        space = self.get_or_create_space(delete.space)
        row = self._find_row(space, delete.id)
        if delete.expect is not None:
            _check_version(delete.id, row[1] if row else None, delete.expect)
        if row is None:
            return
        place, _, terms, length, _ = row
        self._connection.execute("delete from records where place = ?", (place,))
        unindex_terms(self._connection, space, place, tuple(terms.split()))
        self._delete_vectors(place)
        self._connection.execute(
            "update spaces set rewrites = rewrites + 1, items = items - 1, words = words - ? where id = ?",
            (length, space),
        )

    def _embed(self, embed: Embed) -> None:
        space = self.get_or_create_space(embed.space)
        table = load_active_table(self._connection)
        if table is None or _read_meta(self._connection, "preparing") != json.dumps(asdict(embed.model)):
            raise Conflict(f"{embed.model.name!r} is not being prepared; call `find_unembedded` with it first")
        row = self._find_row(space, embed.id)
        if row is not None and embed.expect in (None, row[1]):
            place, generation = row[0], table.other_generation
            self._connection.execute(DELETE_VECTORS[generation], get_vector_range(place, place))
            self._insert_vectors(generation, place, embed.vectors)

    def _get_vector_table(self, model: Model | None) -> SqliteVectorTable:
        """Return the active table. Raises `EmbeddingModelMismatch` if it belongs to another model."""
        if model is None:
            raise BadInput("a Put with vectors must name the model that made them; got model=None")
        if self._vector_table is None:
            self._vector_table = adopt_model(self._connection, model)
        if self._vector_table.model != model:
            raise build_model_mismatch(self._vector_table.model, model)
        return self._vector_table

    def _insert_vectors(self, generation: str, place: int, vectors: Vectors) -> None:
        rows = [(place << PART_BITS | part, row.tobytes()) for part, row in enumerate(pack_vectors(vectors))]
        self._connection.executemany(_INSERT_VECTOR[generation], rows)

    def _delete_vectors(self, place: int) -> None:
        for statement in DELETE_VECTORS.values():
            self._connection.execute(statement, get_vector_range(place, place))


def _check_version(id: str, version: int | None, expected: int) -> None:
    if version != expected:
        state = f"is at version {version}" if version else "is not there"
        raise Conflict(f"item {id!r} {state}, not at version {expected}; read it again")
