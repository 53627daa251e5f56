"""Writing items: what a space held is read once, changed as the writes say, and written back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from recollect.clock import to_micros
from recollect.errors import Conflict
from recollect.stores.ops import Delete, Embed, Put, RecordWrite, Touch
from recollect.stores.postgres.journey import Values
from recollect.stores.postgres.models import Models
from recollect.stores.postgres.plan import Plan
from recollect.stores.postgres.rows import dumped_rows, item_values, micros
from recollect.stores.postgres.spaces import Numbered
from recollect.stores.postgres.text import given, handle, kept
from recollect.stores.vectors import packed
from recollect.stores.where import paths_of
from recollect.values import MemoryItem, Space

_ROW = """
    place bigint, handle text, id text, version bigint, access_count bigint, last_accessed bigint, content text,
    metadata text, importance float8, created_at bigint, valid_from bigint, valid_to bigint, superseded_by text,
    expires_at bigint, source text, trust float8, key text, key_handle text, session text, session_handle text,
    position float8, speaker text, derived_from text, by_user text, by_agent text, by_session text, pinned
    boolean, decayed_at bigint, learned_at bigint, terms text, length int, passages int
"""

_INSERT = f"""
    added{{n}} as (
        insert into recollect.records (
            tenant, space,
            place, handle, id, version, access_count, last_accessed, content, metadata, importance,
            created_at, valid_from, valid_to, superseded_by, expires_at, source, trust, key, key_handle,
            session, session_handle, position, speaker, derived_from, by_user, by_agent, by_session,
            pinned, decayed_at, learned_at, terms, length, passages
        )
        select %(tenant{{n}})s, %(space{{n}})s, new.*
        from json_to_recordset(%(rows{{n}})s::json) as new ({_ROW})
    )
"""  # noqa: S608 - a constant list of columns

_UPDATE = f"""
    changed{{n}} as (
        update recollect.records r
        set
            version = new.version, access_count = new.access_count, last_accessed = new.last_accessed,
            content = new.content, metadata = new.metadata, importance = new.importance, created_at =
            new.created_at, valid_from = new.valid_from, valid_to = new.valid_to, superseded_by =
            new.superseded_by, expires_at = new.expires_at, source = new.source, trust = new.trust, key =
            new.key, key_handle = new.key_handle, session = new.session, session_handle =
            new.session_handle, position = new.position, speaker = new.speaker, derived_from =
            new.derived_from, by_user = new.by_user, by_agent = new.by_agent, by_session = new.by_session,
            pinned = new.pinned, decayed_at = new.decayed_at, learned_at = new.learned_at, terms =
            new.terms, length = new.length, passages = new.passages
        from json_to_recordset(%(rows{{n}})s::json) as new ({_ROW})
        where r.tenant = %(tenant{{n}})s and r.space = %(space{{n}})s and r.place = new.place
    )
"""  # noqa: S608 - a constant list of columns

_TOUCH = """
    touched{n} as (
        update recollect.records r
        set access_count = new.access_count, last_accessed = new.last_accessed
        from json_to_recordset(%(rows{n})s::json) as new (place bigint, access_count bigint, last_accessed bigint)
        where r.tenant = %(tenant{n})s and r.space = %(space{n})s and r.place = new.place
    )
"""

_DROP = """
    dropped{n} as (
        delete from recollect.records
        where tenant = %(tenant{n})s and space = %(space{n})s and place = any(%(places{n})s)
    )
"""

_UNWORD = """
    unworded{n} as (
        delete from recollect.postings
        where tenant = %(tenant{n})s and space = %(space{n})s and place = any(%(places{n})s)
    )
"""

_WORD = """
    worded{n} as (
        insert into recollect.postings (tenant, space, term, place, count, length)
        select %(tenant{n})s, %(space{n})s, word.term, word.place, word.count, word.length
        from json_to_recordset(%(rows{n})s::json) as word (term text, place bigint, count int, length int)
    )
"""

_UNPLACE = """
    unplaced{n} as (
        delete from recollect.vectors
        where tenant = %(tenant{n})s and space = %(space{n})s and generation = any(%(generations{n})s::"char"[])
            and place = any(%(places{n})s)
    )
"""

_PLACE = """
    placed{n} as (
        insert into recollect.vectors (tenant, space, generation, place, part, data)
        select %(tenant{n})s, %(space{n})s, new.generation::"char", new.place, new.part, new.data
        from unnest(%(generations{n})s::text[], %(places{n})s::bigint[], %(parts{n})s::bigint[],
            %(data{n})s::halfvec[]) as new (generation, place, part, data)
    )
"""

_PATH = """
    noted{n} as (
        insert into recollect.paths (tenant, space, handle, path)
        select %(tenant{n})s, %(space{n})s, new.handle, new.path
        from unnest(%(handles{n})s::text[], %(paths{n})s::text[]) as new (handle, path)
        on conflict do nothing
    )
"""

_COUNT = """
    counted{n} as (
        update recollect.spaces
        set next_seq = next_seq + %(places{n})s, items = items + %(items{n})s, words = words + %(words{n})s
        where tenant = %(tenant{n})s and id = %(space{n})s
    )
"""

_ADDING = {_INSERT, _WORD, _PLACE, _PATH, _COUNT}
_BOTH = ["a", "b"]
Rows = NDArray[np.float16]


@dataclass(slots=True)
class Draft:
    """An item as the batch leaves it."""

    place: int
    version: int = 0
    access_count: int = 0
    last_accessed: int | None = None
    terms: tuple[str, ...] = ()
    passages: int = 1
    stored: bool = False
    item: MemoryItem | None = None
    touched: bool = False
    reworded: bool = False
    vectors: Rows | None = None
    prepared: Rows | None = None


@dataclass(slots=True)
class Shelf:
    """One space's items that a batch is about."""

    space: Space
    number: Numbered
    drafts: dict[str, Draft] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    new: int = 0
    items: int = 0
    words: int = 0

    @classmethod
    def of(cls, space: Space, number: Numbered, rows: Iterable[Sequence[Any]]) -> Shelf:
        shelf = cls(space, number)
        for id, place, version, access_count, last_accessed, terms, passages in rows:
            words = tuple(given(terms).split())
            shelf.drafts[given(id)] = Draft(place, version, access_count, last_accessed, words, passages, stored=True)
        return shelf

    def apply(self, write: RecordWrite, models: Models) -> Models:
        """Do as a write says, or refuse it; the models as they are after it."""
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
                    draft.prepared = packed(write.vectors)
        return models

    def _put(self, put: Put, models: Models) -> Models:
        draft = self.drafts.get(put.item.id)
        self._expect(put.item.id, draft, put.expect, absent=0)
        if put.vectors is not None:
            assert put.model is not None
            models.check(put.model)
            models = Models(put.model, models.generation, models.preparing)
        if draft is None:
            draft = self._added(put.item)
        draft.version += 1
        draft.item = put.item
        if put.terms is not None and put.terms != draft.terms:
            self.words += len(put.terms) - len(draft.terms)
            draft.terms, draft.reworded = tuple(put.terms), True
        if put.vectors is not None:
            draft.vectors, draft.prepared, draft.passages = packed(put.vectors), None, len(put.vectors)
        self.paths.update(paths_of(put.item.metadata))
        return models

    def _added(self, item: MemoryItem) -> Draft:
        self.new += 1
        self.items += 1
        place = self.number.next_seq + self.new
        draft = Draft(place, access_count=item.access_count, last_accessed=micros(item.last_accessed))
        self.drafts[item.id] = draft
        return draft

    def _delete(self, delete: Delete) -> None:
        draft = self.drafts.get(delete.id)
        self._expect(delete.id, draft, delete.expect, absent=None)
        if draft is None:
            return
        del self.drafts[delete.id]
        self.items -= 1
        self.words -= len(draft.terms)
        if draft.stored:
            self.gone.append(draft.place)

    def _touch(self, touch: Touch) -> None:
        at = to_micros(touch.at)
        for id in touch.ids:
            if draft := self.drafts.get(id):
                draft.access_count += 1
                draft.last_accessed = max(draft.last_accessed if draft.last_accessed is not None else at, at)
                draft.touched = True

    def _expect(self, id: str, draft: Draft | None, expect: int | None, *, absent: int | None) -> None:
        if expect is None or expect == (draft.version if draft else absent):
            return
        at = f"is at version {draft.version}" if draft else "is not there"
        raise Conflict(f"item {id!r} {at}, not at version {expect}; read it again")

    def plan(self, plan: Plan, models: Models) -> None:
        """Note what has to be written for all that was applied."""
        self._plan_rows(plan)
        self._plan_words(plan)
        self._plan_vectors(plan, models)
        if self.paths:
            handles = [handle(path) for path in self.paths]
            self._add(plan, _PATH, {"handles": handles, "paths": [kept(path) for path in self.paths]}, "paths")
        if self.new or self.items or self.words:
            self._add(plan, _COUNT, {"places": self.new, "items": self.items, "words": self.words}, "space")

    def _plan_rows(self, plan: Plan) -> None:
        if self.gone:
            self._add(plan, _DROP, {"places": self.gone}, "changed", "added", "touched")
        changed = [draft for draft in self.drafts.values() if draft.item is not None]
        touched = [draft for draft in self.drafts.values() if draft.item is None and draft.touched]
        for name, part, rows in (
            ("changed", _UPDATE, [_values(draft) for draft in changed if draft.stored]),
            ("added", _INSERT, [_values(draft) for draft in changed if not draft.stored]),
            ("touched", _TOUCH, [_accesses(draft) for draft in touched]),
        ):
            if rows:
                self._add(plan, part, {"rows": dumped_rows(rows)}, name)

    def _plan_words(self, plan: Plan) -> None:
        reworded = [draft for draft in self.drafts.values() if draft.reworded]
        stale = self.gone + [draft.place for draft in reworded if draft.stored]
        if stale:
            self._add(plan, _UNWORD, {"places": stale}, "words")
        counted = [
            {"term": handle(term), "place": draft.place, "count": count, "length": len(draft.terms)}
            for draft in reworded
            for term, count in Counter(draft.terms).items()
        ]
        if counted:
            self._add(plan, _WORD, {"rows": dumped_rows(counted)}, "words")

    def _plan_vectors(self, plan: Plan, models: Models) -> None:
        drafts = self.drafts.values()
        stale = self.gone + [draft.place for draft in drafts if draft.vectors is not None and draft.stored]
        if stale:
            self._add(plan, _UNPLACE, {"generations": _BOTH, "places": stale}, "vectors")
        early = [draft.place for draft in drafts if draft.prepared is not None]
        if early:
            self._add(plan, _UNPLACE, {"generations": [models.fresh], "places": early}, "vectors")
        placed = [
            (generation, draft.place, part, HalfVector(row))
            for draft in drafts
            for generation, rows in ((models.generation, draft.vectors), (models.fresh, draft.prepared))
            if rows is not None
            for part, row in enumerate(rows)
        ]
        if placed:
            columns = map(list, zip(*placed, strict=True))
            values = dict(zip(("generations", "places", "parts", "data"), columns, strict=True))
            self._add(plan, _PLACE, values, "vectors")

    def _add(self, plan: Plan, part: str, values: Values, *touches: str) -> None:
        about: Values = {"tenant": kept(self.space.tenant), "space": self.number.id}
        plan.changes |= part not in _ADDING
        plan.add(self.space.tenant, part, about | values, [(what, self.number.id) for what in touches])


def _values(draft: Draft) -> Values:
    assert draft.item is not None
    return {
        **item_values(draft.item),
        **_accesses(draft),
        "version": draft.version,
        "terms": kept(" ".join(draft.terms)),
        "length": len(draft.terms),
        "passages": draft.passages,
    }


def _accesses(draft: Draft) -> Values:
    return {"place": draft.place, "access_count": draft.access_count, "last_accessed": draft.last_accessed}
