"""Items in a store file: rows, full-text terms, vectors and access counts, and their writing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import apsw

from recollect.clock import from_micros, to_micros
from recollect.errors import BadInput, Conflict
from recollect.stores.base import get_space_names
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

# Places: the rowid of an item or entry is its space's id and its number in the space. That of a vector is the place of
# its item and the number of the passage.

SEQ_BITS = 28
MAX_SEQ = (1 << SEQ_BITS) - 1
PART_BITS = 6


def encode_place(space: int, seq: int) -> int:
    """Return the rowid of an item or entry."""
    return space << SEQ_BITS | seq


def get_place_range(space: int) -> tuple[int, int]:
    """Return the first and the last place of a space."""
    return encode_place(space, 0), encode_place(space, MAX_SEQ)


def get_vector_range(first_place: int, last_place: int) -> tuple[int, int]:
    """Return the first id of the places' vectors, and the first id after them."""
    return first_place << PART_BITS, (last_place + 1) << PART_BITS


# Rows

# An update changes these columns. The times come first, and `passages` last, because None keeps the stored number.
_TIME_COLUMNS = "created_at, valid_from, valid_to, expires_at, decayed_at, learned_at"
_ENCODED_COLUMNS = (
    *_TIME_COLUMNS.split(", "), "content", "importance", "superseded_by", "source", "trust", "key", "pinned",
    "metadata", "derived_from", "session", "position", "speaker", "by_user", "by_agent", "by_session", "terms",
    "length", "passages",
)  # fmt: skip
ITEM_COLUMNS = f"""
    id, content, importance, access_count, last_accessed, superseded_by, source, trust, key, pinned, version, metadata,
    derived_from, session, position, speaker, by_user, by_agent, by_session, {_TIME_COLUMNS}"""


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
    turn, scope = item.turn, item.scope
    times = item.created_at, item.valid_from, item.valid_to, item.expires_at, item.decayed_at, item.learned_at
    return (
        *[None if at is None else to_micros(at) for at in times],
        *(item.content, item.importance, item.superseded_by, item.source, item.trust, item.key, int(item.pinned)),
        *(dump_json(dict(item.metadata)), dump_json(list(item.derived_from))),
        *((turn.session, float(turn.position), turn.speaker) if turn else (None, None, None)),
        *(scope.user, scope.agent, scope.session, " ".join(terms), len(terms), passages),
    )


# Creating a scope validates it, and nearly all rows of one answer share theirs.
build_scope = lru_cache(maxsize=1024)(Scope)


def decode_item(space: Space, row: tuple[Any, ...]) -> MemoryItem:
    """Return the item of a row of `ITEM_COLUMNS`."""
    try:
        return MemoryItem(
            id=row[0], content=row[1], importance=row[2], access_count=row[3],
            last_accessed=from_optional_micros(row[4]), superseded_by=row[5], source=row[6], trust=row[7], key=row[8],
            pinned=bool(row[9]), version=row[10], metadata=load_metadata(row[11]),
            derived_from=decode_texts("derived_from", json.loads(row[12])) if row[12] != "[]" else (),
            turn=None if row[13] is None else Turn(row[13], row[14], row[15]),
            scope=build_scope(space.tenant, row[16], row[17], row[18]), tier=space.tier,
            created_at=from_micros(row[19]), valid_from=from_optional_micros(row[20]),
            valid_to=from_optional_micros(row[21]), expires_at=from_optional_micros(row[22]),
            decayed_at=from_optional_micros(row[23]), learned_at=from_optional_micros(row[24]),
        )  # fmt: skip
    except DECODE_ERRORS as error:
        raise build_corrupt_error(f"the row of item {row[0]!r:.80}", error) from error


def find_space_id(connection: apsw.Connection, space: Space) -> int:
    """Return the id of a space; 0, which no space has, if nothing was stored in it."""
    id: int | None = connection.execute(
        "select id from spaces where tenant = ? and tier = ? and user = ? and agent = ? and session = ?",
        get_space_names(space),
    ).get
    return id or 0


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


def replace_terms(connection: apsw.Connection, space: int, place: int, old: Sequence[str], new: Sequence[str]) -> None:
    """Replace the indexed terms of an item. `old` must be those that were indexed: the index stores no text."""
    if old:
        document = " ".join([encode_term(space, term) for term in old])
        connection.execute("insert into words (words, rowid, terms) values ('delete', ?, ?)", (place, document))
    if new:
        document = " ".join([encode_term(space, term) for term in new])
        connection.execute("insert into words (rowid, terms) values (?, ?)", (place, document))


# Vectors: two tables, called generations. One is active, the other is filled while a new model is prepared.


def build_for_each_generation(statement: str) -> dict[str, str]:
    """Return a constant statement for each of the two tables, by generation."""
    return {generation: statement.replace("VECTORS", f"vectors_{generation}") for generation in ("a", "b")}


_INSERT_VECTOR = build_for_each_generation("insert or replace into VECTORS (id, data) values (?, ?)")
DELETE_VECTORS = build_for_each_generation("delete from VECTORS where id >= ? and id < ?")
_DELETE_ALL_VECTORS = build_for_each_generation("delete from VECTORS")
_SELECT_MODELS = """
    select
        (select value from meta where name = 'model'),
        coalesce((select value from meta where name = 'generation'), 'a'),
        (select value from meta where name = 'preparing')"""
SELECT_UNEMBEDDED = build_for_each_generation(f"""
    select s.tenant, s.tier, s.user, s.agent, s.session, r.*
    from (
        select space, place, {ITEM_COLUMNS} from records
        where not exists (select 1 from VECTORS v where v.id = records.place << 6)
        order by place limit ?
    ) r
    join spaces s on s.id = r.space
    order by r.place""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class SqliteVectorTable:
    """The active model, the generation of its vectors, and the model whose vectors are in the other generation."""

    model: Model
    generation: str
    preparing: Model | None = None

    @property
    def other_generation(self) -> str:
        return "b" if self.generation == "a" else "a"


def load_active_table(connection: apsw.Connection) -> SqliteVectorTable | None:
    """Return the active table; None if the store has no model yet."""
    model, generation, preparing = connection.execute(_SELECT_MODELS).get
    if model is None:
        return None
    return SqliteVectorTable(parse_model(model), generation, None if preparing is None else parse_model(preparing))


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
    if table.preparing != model:
        connection.execute(_DELETE_ALL_VECTORS[table.other_generation])
        write_meta(connection, "preparing", json.dumps(asdict(model)))
    return table


def switch_model(connection: apsw.Connection, model: Model) -> None:
    """Activate the prepared model and delete the old vectors. Raises `Conflict` if an item lacks its new vectors."""
    table = load_active_table(connection)
    if table is not None and (table.model, table.preparing) == (model, None):
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


def write_meta(connection: apsw.Connection, name: str, value: str) -> None:
    connection.execute("insert or replace into meta (name, value) values (?, ?)", (name, value))


# Writing

_INSERT_RECORD = f"""
    insert into records (place, space, id, version, access_count, last_accessed, {", ".join(_ENCODED_COLUMNS)})
    values (?, ?, ?, 1, ?, ?, {"?, " * (len(_ENCODED_COLUMNS) - 1)} coalesce(?, 1))"""  # noqa: S608
_UPDATE_RECORD = f"""
    update records
    set version = version + 1, {", ".join(f"{name} = ?" for name in _ENCODED_COLUMNS[:-1])},
        passages = coalesce(?, passages)
    where place = ?"""  # noqa: S608

_ADD_ACCESS = """
    update records
    set access_count = access_count + ?1, last_accessed = max(coalesce(last_accessed, ?2), ?2)
    where space = ?3 and id = ?4"""
# Invalidates the cached copies of a space.
_COUNT_REWRITE = "update spaces set rewrites = rewrites + 1, items = items + ?, words = words + ? where id = ?"

# The id of an erased space and its fences are never reused.
_INSERT_SPACE = """
insert into spaces (id, tenant, tier, user, agent, session, next_seq)
select
    max(coalesce((select max(id) from spaces), 0), coalesce((select value + 0 from meta where name = 'last_space'), 0))
        + 1,
    ?1, ?2, ?3, ?4, ?5,
    iif(?2 = 'checkpoints', coalesce((select value + 0 from meta where name = 'last_fence'), 0), 0)
returning id"""


AccessCounts = Mapping[Space, Mapping[str, tuple[int, int]]]
"""Number of accesses by space and id, and the time of the last one in microseconds."""


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
                at = to_micros(write.at)
                self.add_accesses({write.space: {id: (times, at) for id, times in Counter(write.ids).items()}})
            case Embed():
                self._embed(write)

    def get_or_create_space(self, space: Space) -> int:
        if space not in self._space_ids:
            id = find_space_id(self._connection, space)
            self._space_ids[space] = id or self._connection.execute(_INSERT_SPACE, get_space_names(space)).get
        return self._space_ids[space]

    def add_accesses(self, accesses: AccessCounts) -> None:
        """Add to the stored counts; items that have been deleted meanwhile are skipped."""
        for space, counts in accesses.items():
            number = self.get_or_create_space(space)
            self._connection.executemany(_ADD_ACCESS, [(*access, number, id) for id, access in counts.items()])

    def _put(self, put: Put) -> None:
        """Store an item. The terms and vectors of a stored one stay if the write has none."""
        space = self.get_or_create_space(put.space)
        row = self._find_row(space, put.item.id)
        if put.expect is not None:
            _check_version(put.item.id, row[1] if row else 0, put.expect)
        old = tuple(row[2].split()) if row else ()
        new = old if put.terms is None else put.terms
        passages = None if put.vectors is None else len(put.vectors)
        values = encode_item(put.item, new, passages)
        if row is None:
            place = self._allocate_place(space, len(new))
            accesses = put.item.access_count, to_optional_micros(put.item.last_accessed)
            self._connection.execute(_INSERT_RECORD, (place, space, put.item.id, *accesses, *values))
        else:
            place, _, _, length, speaker = row
            self._connection.execute(_UPDATE_RECORD, (*values, place))
            if new != old or put.vectors is not None or speaker != (put.item.turn.speaker if put.item.turn else None):
                self._connection.execute(_COUNT_REWRITE, (0, len(new) - length, space))
        if new != old:
            replace_terms(self._connection, space, place, old, new)
        if put.vectors is not None and put.model is not None:
            if row is not None:
                self._delete_vectors(place)
            if self._vector_table is None or self._vector_table.model != put.model:
                self._vector_table = adopt_model(self._connection, put.model)
            self._insert_vectors(self._vector_table.generation, place, put.vectors)
        for path in iter_metadata_paths(put.item.metadata):
            if (space, path) not in self._saved_paths:
                self._connection.execute("insert or ignore into paths (space, path) values (?, ?)", (space, path))
                self._saved_paths.add((space, path))

    def _find_row(self, space: int, id: str) -> tuple[Any, ...] | None:
        """Return place, version, terms, length and speaker of an item."""
        return self._connection.execute(
            "select place, version, terms, length, speaker from records where space = ? and id = ?", (space, id)
        ).fetchone()

    def _allocate_place(self, space: int, terms: int) -> int:
        """Return the place of a new item with this number of terms, and count both."""
        seq = self._connection.execute(
            """
            update spaces
            set next_seq = next_seq + 1, items = items + 1, words = words + ?
            where id = ?
            returning next_seq""",
            (terms, space),
        ).get
        if seq > MAX_SEQ:
            raise BadInput(f"one scope holds at most {MAX_SEQ + 1:,} items over its life; start another")
        return encode_place(space, seq)

    def _delete(self, delete: Delete) -> None:
        space = self.get_or_create_space(delete.space)
        row = self._find_row(space, delete.id)
        if delete.expect is not None:
            _check_version(delete.id, row[1] if row else None, delete.expect)
        if row is None:
            return
        place, _, terms, length, _ = row
        self._connection.execute("delete from records where place = ?", (place,))
        replace_terms(self._connection, space, place, terms.split(), ())
        self._delete_vectors(place)
        self._connection.execute(_COUNT_REWRITE, (-1, -length, space))

    def _embed(self, embed: Embed) -> None:
        space = self.get_or_create_space(embed.space)
        table = load_active_table(self._connection)
        if table is None or table.preparing != embed.model:
            raise Conflict(f"{embed.model.name!r} is not being prepared; call `find_unembedded` with it first")
        row = self._find_row(space, embed.id)
        if row is not None and embed.expect in (None, row[1]):
            place, generation = row[0], table.other_generation
            self._connection.execute(DELETE_VECTORS[generation], get_vector_range(place, place))
            self._insert_vectors(generation, place, embed.vectors)

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
