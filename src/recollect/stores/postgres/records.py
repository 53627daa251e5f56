"""Writing items: what a space held is read once, changed as the writes say, and written back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from recollect.clock import to_micros
from recollect.errors import Conflict
from recollect.stores.ops import Delete, Embed, Put, RecordWrite, Touch
from recollect.stores.postgres.models import Models
from recollect.stores.postgres.plan import Plan
from recollect.stores.postgres.rows import item_values, micros
from recollect.stores.postgres.server import Values, Work
from recollect.stores.postgres.spaces import Numbered
from recollect.stores.postgres.text import given, handle, kept
from recollect.stores.vectors import packed
from recollect.stores.where import paths_of
from recollect.values import MemoryItem, Space

_HELD = """
    select id, place, version, access_count, last_accessed, terms, passages
    from recollect.records
    where tenant = %(tenant)s and space = %(space)s and handle = any(%(handles)s)
"""

_INSERT = """
    insert into recollect.records (
        tenant, space, place, handle, id, version, access_count, last_accessed, content, metadata, importance,
        created_at, valid_from, valid_to, superseded_by, expires_at, source, trust, key, key_handle, session,
        session_handle, position, speaker, derived_from, by_user, by_agent, by_session, pinned, decayed_at, learned_at,
        terms, length, passages
    )
    values (
        %(tenant)s, %(space)s, %(place)s, %(handle)s, %(id)s, %(version)s, %(access_count)s, %(last_accessed)s,
        %(content)s, %(metadata)s, %(importance)s, %(created_at)s, %(valid_from)s, %(valid_to)s, %(superseded_by)s,
        %(expires_at)s, %(source)s, %(trust)s, %(key)s, %(key_handle)s, %(session)s, %(session_handle)s, %(position)s,
        %(speaker)s, %(derived_from)s, %(by_user)s, %(by_agent)s, %(by_session)s, %(pinned)s, %(decayed_at)s,
        %(learned_at)s, %(terms)s, %(length)s, %(passages)s
    )
"""

_UPDATE = """
    update recollect.records
    set version = %(version)s, access_count = %(access_count)s, last_accessed = %(last_accessed)s,
        content = %(content)s, metadata = %(metadata)s, importance = %(importance)s, created_at = %(created_at)s,
        valid_from = %(valid_from)s, valid_to = %(valid_to)s, superseded_by = %(superseded_by)s,
        expires_at = %(expires_at)s, source = %(source)s, trust = %(trust)s, key = %(key)s,
        key_handle = %(key_handle)s, session = %(session)s, session_handle = %(session_handle)s,
        position = %(position)s, speaker = %(speaker)s, derived_from = %(derived_from)s, by_user = %(by_user)s,
        by_agent = %(by_agent)s, by_session = %(by_session)s, pinned = %(pinned)s, decayed_at = %(decayed_at)s,
        learned_at = %(learned_at)s, terms = %(terms)s, length = %(length)s, passages = %(passages)s
    where tenant = %(tenant)s and space = %(space)s and place = %(place)s
"""

_TOUCH = """
    update recollect.records
    set access_count = %(access_count)s, last_accessed = %(last_accessed)s
    where tenant = %(tenant)s and space = %(space)s and place = %(place)s
"""

_DROP = """
    delete from recollect.records
    where tenant = %(tenant)s and space = %(space)s and place = any(%(places)s)
"""

_UNWORD = """
    delete from recollect.postings
    where tenant = %(tenant)s and space = %(space)s and place = any(%(places)s)
"""

_WORD = """
    insert into recollect.postings (tenant, space, term, place, count, length)
    select %(tenant)s, %(space)s, word.term, word.place, word.count, word.length
    from unnest(%(terms)s::text[], %(places)s::bigint[], %(counts)s::int[], %(lengths)s::int[])
        as word (term, place, count, length)
"""

_UNPLACE = """
    delete from recollect.vectors
    where tenant = %(tenant)s and space = %(space)s and generation = any(%(generations)s::"char"[])
        and place = any(%(places)s)
"""

_PLACE = """
    insert into recollect.vectors (tenant, space, generation, place, part, data)
    values (%(tenant)s, %(space)s, %(generation)s, %(place)s, %(part)s, %(data)s)
"""

_PATH = """
    insert into recollect.paths (tenant, space, handle, path)
    select %(tenant)s, %(space)s, new.handle, new.path
    from unnest(%(handles)s::text[], %(paths)s::text[]) as new (handle, path)
    on conflict do nothing
"""

_COUNT = """
    update recollect.spaces
    set next_seq = next_seq + %(places)s, items = items + %(items)s, words = words + %(words)s
    where tenant = %(tenant)s and id = %(space)s
"""

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

    @property
    def _named(self) -> Values:
        return {"tenant": kept(self.space.tenant), "space": self.number.id}

    async def load(self, work: Work, ids: Iterable[str]) -> None:
        await work.about(self.space.tenant)
        rows = await work.rows(_HELD, {**self._named, "handles": [handle(id) for id in set(ids)]})
        for id, place, version, access_count, last_accessed, terms, passages in rows:
            words = tuple(given(terms).split())
            self.drafts[given(id)] = Draft(place, version, access_count, last_accessed, words, passages, stored=True)

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
        tenant = self.space.tenant
        if self.paths:
            handles = [handle(path) for path in self.paths]
            plan.add(tenant, _PATH, {**self._named, "handles": handles, "paths": [kept(path) for path in self.paths]})
        if self.new or self.items or self.words:
            plan.add(tenant, _COUNT, {**self._named, "places": self.new, "items": self.items, "words": self.words})

    def _plan_rows(self, plan: Plan) -> None:
        tenant, named = self.space.tenant, self._named
        if self.gone:
            plan.add(tenant, _DROP, {**named, "places": self.gone})
        changed = [draft for draft in self.drafts.values() if draft.item is not None]
        plan.add(tenant, _UPDATE, *(named | _values(draft) for draft in changed if draft.stored))
        plan.add(tenant, _INSERT, *(named | _values(draft) for draft in changed if not draft.stored))
        touched = [draft for draft in self.drafts.values() if draft.item is None and draft.touched]
        plan.add(tenant, _TOUCH, *(named | _accesses(draft) for draft in touched))

    def _plan_words(self, plan: Plan) -> None:
        reworded = [draft for draft in self.drafts.values() if draft.reworded]
        stale = self.gone + [draft.place for draft in reworded if draft.stored]
        if stale:
            plan.add(self.space.tenant, _UNWORD, {**self._named, "places": stale})
        counted = [
            (handle(term), draft.place, count, len(draft.terms))
            for draft in reworded
            for term, count in Counter(draft.terms).items()
        ]
        if counted:
            names = ("terms", "places", "counts", "lengths")
            columns = dict(zip(names, map(list, zip(*counted, strict=True)), strict=True))
            plan.add(self.space.tenant, _WORD, self._named | columns)

    def _plan_vectors(self, plan: Plan, models: Models) -> None:
        tenant, named = self.space.tenant, self._named
        drafts = self.drafts.values()
        stale = self.gone + [draft.place for draft in drafts if draft.vectors is not None and draft.stored]
        if stale:
            plan.add(tenant, _UNPLACE, {**named, "generations": _BOTH, "places": stale})
        early = [draft.place for draft in drafts if draft.prepared is not None]
        if early:
            plan.add(tenant, _UNPLACE, {**named, "generations": [models.fresh], "places": early})
        for draft in drafts:
            for generation, rows in ((models.generation, draft.vectors), (models.fresh, draft.prepared)):
                if rows is not None:
                    plan.add(tenant, _PLACE, *(named | one for one in _passages(draft.place, generation, rows)))


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


def _passages(place: int, generation: str, rows: Rows) -> Iterable[dict[str, Any]]:
    for part, row in enumerate(rows):
        yield {"generation": generation, "place": place, "part": part, "data": HalfVector(row)}
