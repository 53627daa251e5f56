"""Writing items: the row, its words and its vectors change together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import apsw

from recollect.clock import to_micros
from recollect.errors import BadInput, Conflict
from recollect.stores.admission import mismatch
from recollect.stores.ops import Delete, Embed, Model, Put, RecordWrite, Touch, Vectors
from recollect.stores.sqlite import generations, words
from recollect.stores.sqlite.accesses import Access
from recollect.stores.sqlite.rows import PART_BITS, SEQ_BITS, item_values, micros, parts_of, place_of, space_id
from recollect.stores.vectors import packed
from recollect.stores.where import paths_of
from recollect.values import Space

_INSERT = """
insert into records (
    place, space, id, version, access_count, last_accessed, content, metadata, importance, created_at, valid_from,
    valid_to, superseded_by, expires_at, source, trust, key, session, position, speaker, derived_from, by_user,
    by_agent, by_session, pinned, decayed_at, learned_at, terms, length, passages
)
values (?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

_UPDATE = """
update records
set version = version + 1, content = ?, metadata = ?, importance = ?, created_at = ?, valid_from = ?, valid_to = ?,
    superseded_by = ?, expires_at = ?, source = ?, trust = ?, key = ?, session = ?, position = ?, speaker = ?,
    derived_from = ?, by_user = ?, by_agent = ?, by_session = ?, pinned = ?, decayed_at = ?,
    learned_at = ?, terms = ?, length = ?, passages = coalesce(?, passages)
where place = ?
"""

# Neither the number of a space that was erased nor one of its fences is given again.
_MINT_SPACE = """
insert into spaces (id, tenant, tier, user, agent, session, next_seq)
select
    max(coalesce((select max(id) from spaces), 0), coalesce((select value + 0 from meta where name = 'last_space'), 0))
        + 1,
    ?1, ?2, ?3, ?4, ?5,
    iif(?2 = 'checkpoints', coalesce((select value + 0 from meta where name = 'last_fence'), 0), 0)
returning id
"""


class RecordWriter:
    """Applies record writes within one batch; remembers what it looked up until the batch ends."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._spaces: dict[Space, int] = {}
        self._paths: set[tuple[int, str]] = set()
        self._tables: generations.Tables | None = None

    def apply(self, write: RecordWrite) -> None:
        match write:
            case Put():
                self._put(write)
            case Delete():
                self._delete(write)
            case Touch():
                self._touch(write)
            case Embed():
                self._embed(write)

    def space(self, space: Space) -> int:
        """The id of a space, given now if it has none."""
        found = self._spaces.get(space)
        if found is None:
            found = space_id(self._connection, space)
            if found is None:
                found = int(self._connection.execute(_MINT_SPACE, parts_of(space)).get)
            self._spaces[space] = found
        return found

    def _put(self, put: Put) -> None:
        space = self.space(put.space)
        row = self._connection.execute(
            "select place, version, terms, length, speaker from records where space = ? and id = ?",
            (space, put.item.id),
        ).fetchone()
        if put.expect is not None and put.expect != (row[1] if row else 0):
            at = f"is at version {row[1]}" if row else "is not there"
            raise Conflict(f"item {put.item.id!r} {at}, not at version {put.expect}; read it again")
        if row is None:
            self._insert(put, space)
        else:
            self._replace(put, space, *row)
        self._note_paths(put, space)

    def _note_paths(self, put: Put, space: int) -> None:
        """Keep what filters may name."""
        for path in paths_of(put.item.metadata):
            if (space, path) not in self._paths:
                self._connection.execute("insert or ignore into paths (space, path) values (?, ?)", (space, path))
                self._paths.add((space, path))

    def _insert(self, put: Put, space: int) -> None:
        terms = put.terms or ()
        seq = self._connection.execute(
            """
            update spaces
            set next_seq = next_seq + 1, items = items + 1, words = words + ?
            where id = ?
            returning next_seq
            """,
            (len(terms), space),
        ).get
        if seq >> SEQ_BITS:
            raise BadInput(f"one scope holds at most {1 << SEQ_BITS:,} items over its life; start another")
        place = place_of(space, seq)
        passages = 1 if put.vectors is None else len(put.vectors)
        values = item_values(put.item, " ".join(terms), len(terms), passages)
        accesses = (put.item.access_count, micros(put.item.last_accessed))
        self._connection.execute(_INSERT, (place, space, put.item.id, *accesses, *values))
        words.index(self._connection, space, place, terms)
        if put.vectors is not None:
            self._store_vectors(self._active(put.model), place, put.vectors)

    def _replace(
        self, put: Put, space: int, place: int, _version: int, terms: str, length: int, speaker: str | None
    ) -> None:
        old = tuple(terms.split())
        new = old if put.terms is None else put.terms
        passages = None if put.vectors is None else len(put.vectors)
        values = item_values(put.item, " ".join(new), len(new), passages)
        self._connection.execute(_UPDATE, (*values, place))
        rewritten = speaker != (put.item.turn.speaker if put.item.turn else None)
        if new != old:
            words.unindex(self._connection, space, place, old)
            words.index(self._connection, space, place, new)
            rewritten = True
        if put.vectors is not None:
            tables = self._active(put.model)
            self._drop_vectors(place)
            self._store_vectors(tables, place, put.vectors)
            rewritten = True
        if rewritten:
            self._connection.execute(
                "update spaces set rewrites = rewrites + 1, words = words + ? where id = ?", (len(new) - length, space)
            )

    def _delete(self, delete: Delete) -> None:
        space = self.space(delete.space)
        if delete.expect is not None:
            self._expect(space, delete.id, delete.expect)
        row = self._connection.execute(
            "delete from records where space = ? and id = ? returning place, terms, length", (space, delete.id)
        ).fetchone()
        if row is None:
            return
        place, terms, length = row
        words.unindex(self._connection, space, place, tuple(terms.split()))
        self._drop_vectors(place)
        self._connection.execute(
            "update spaces set rewrites = rewrites + 1, items = items - 1, words = words - ? where id = ?",
            (length, space),
        )

    def _expect(self, space: int, id: str, version: int) -> None:
        found = self._connection.execute("select version from records where space = ? and id = ?", (space, id)).get
        if found != version:
            at = f"is at version {found}" if found is not None else "is not there"
            raise Conflict(f"item {id!r} {at}, not at version {version}; read it again")

    def _touch(self, touch: Touch) -> None:
        at = to_micros(touch.at)
        self.count(touch.space, {id: Access(times, at) for id, times in Counter(touch.ids).items()})

    def count(self, space: Space, accesses: Mapping[str, Access]) -> None:
        """Add accesses to what is counted already; items that have gone meanwhile are passed over."""
        number = self.space(space)
        self._connection.executemany(
            """
            update records
            set access_count = access_count + ?1, last_accessed = max(coalesce(last_accessed, ?2), ?2)
            where space = ?3 and id = ?4
            """,
            [(access.times, access.last, number, id) for id, access in accesses.items()],
        )

    def _embed(self, embed: Embed) -> None:
        space = self.space(embed.space)
        tables = generations.prepared(self._connection, embed.model)
        row = self._connection.execute(
            "select place, version from records where space = ? and id = ?", (space, embed.id)
        ).fetchone()
        if row is not None and embed.expect in (None, row[1]):
            self._connection.execute(tables.drop, _span(row[0]))
            self._store_vectors(tables, row[0], embed.vectors)

    def _active(self, model: Model | None) -> generations.Tables:
        """The tables to write a model's vectors to; another model than the store's is refused."""
        if model is None:
            raise BadInput("vectors need to say which model made them")
        if self._tables is None:
            self._tables = generations.adopt(self._connection, model)
        if self._tables.model != model:
            raise mismatch(self._tables.model, model)
        return self._tables

    def _store_vectors(self, tables: generations.Tables, place: int, vectors: Vectors) -> None:
        rows = packed(vectors)
        bindings: list[tuple[Any, ...]] = [(place << PART_BITS | part, row.tobytes()) for part, row in enumerate(rows)]
        self._connection.executemany(tables.insert, bindings)

    def _drop_vectors(self, place: int) -> None:
        for drop in generations.DROP.values():
            self._connection.execute(drop, _span(place))


def _span(place: int) -> tuple[int, int]:
    """The first id of a place's vectors, and the first that is not one of them."""
    return place << PART_BITS, (place + 1) << PART_BITS
