"""From writes to a batch: every rule of a write is decided here, against spaces as they are, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from recollect.clock import aware
from recollect.errors import Conflict, Unsupported
from recollect.stores.admission import mismatch
from recollect.stores.chroma.batch import Cell, Change, Models, Passages, Rows, Wiped
from recollect.stores.chroma.cells import Kept, Ref, as_stored, handle, vector_id
from recollect.stores.chroma.shelf import Shelf
from recollect.stores.ops import Delete, Embed, Model, Put, Touch, Write
from recollect.stores.vectors import packed
from recollect.stores.where import paths_of
from recollect.values import Space


@dataclass(slots=True)
class _Space:
    """What becomes of one space."""

    shelf: Shelf
    drafts: dict[str, Kept | None] = field(default_factory=dict)
    rows: dict[tuple[str, int], Rows] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)

    def held(self, id: str) -> Kept | None:
        return self.drafts[id] if id in self.drafts else self.shelf.kept.get(id)


class Resolving:
    """One batch in the making; it has the number that it will have if nobody else takes it."""

    def __init__(self, number: int, models: Models, shelf: Callable[[Space], Shelf]) -> None:
        self.number = number
        self.models = models
        self._shelf = shelf
        self.wiped: Wiped | None = None
        self._spaces: dict[Space, _Space] = {}
        self._tidied: set[Space] = set()

    def apply(self, writes: Sequence[Write]) -> None:
        for write in writes:
            match write:
                case Put():
                    self._put(write)
                case Delete():
                    self._delete(write)
                case Touch():
                    self._touch(write)
                case Embed():
                    self._embed(write)
                case _:
                    raise Unsupported(
                        f"Chroma keeps records alone, and this is {type(write).__name__}; name another store for "
                        "conversation, episodes and checkpoints"
                    )

    def wipe(self, spaces: Sequence[Space], writes: Sequence[Write]) -> dict[Space, list[Kept]]:
        """Everything of some spaces, and single writes; what of it was there before and will not be, by space.

        What may be filtered by is then what the items that are left carry: a path may be a name.
        """
        self.apply(writes)
        for space in spaces:
            whole = self._of(space)
            whole.drafts |= dict.fromkeys(whole.shelf.kept, None)
        self._tidied |= self._spaces.keys()
        return {
            name: [held for id, held in space.shelf.kept.items() if id in space.drafts and space.drafts[id] is None]
            for name, space in self._spaces.items()
        }

    def adopt(self, model: Model) -> None:
        if self.models.active is None:
            self.models = replace(self.models, active=model, generation=2 * self.number)
        elif self.models.active != model:
            raise mismatch(self.models.active, model)

    def prepare(self, model: Model) -> None:
        if self.models.active is None:
            self.adopt(model)
        if self.models.preparing != model:
            # Odd, since one batch may adopt a model and prepare it: what it answers with is not what is prepared.
            self.models = replace(self.models, preparing=model, fresh=2 * self.number + 1)

    def switch(self, model: Model, lacking: Callable[[Models], bool]) -> None:
        if self.models.active == model and self.models.preparing is None:
            return
        self.prepare(model)
        if lacking(self.models):
            raise Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
        self.models = Models(model, self.models.fresh)

    @property
    def changes(self) -> tuple[Change, ...]:
        found = (self._change(space, what) for space, what in self._spaces.items())
        return tuple(change for change in found if change is not None)

    def _put(self, put: Put) -> None:
        space, id = self._of(put.space), put.item.id
        held = space.held(id)
        if put.expect is not None and put.expect != (held.item.version if held else 0):
            raise _stale(id, held, put.expect)
        item = as_stored(put.item, held.item if held else None)
        terms = held.terms if held else ()
        refs = held.refs if held else MappingProxyType({})
        if put.terms is not None:
            terms = tuple(put.terms)
        if put.vectors is not None:
            assert put.model is not None
            self.adopt(put.model)
            generation = self.models.generation
            space.rows[id, generation] = packed(put.vectors)
            # Those of a model in preparation were of what the item said before.
            refs = MappingProxyType({generation: Ref(self.number, len(put.vectors))})
        space.drafts[id] = Kept(item, self.number, terms, refs)
        space.paths.update(paths_of(put.item.metadata))

    def _delete(self, delete: Delete) -> None:
        space = self._of(delete.space)
        held = space.held(delete.id)
        if delete.expect is not None and (held is None or held.item.version != delete.expect):
            raise _stale(delete.id, held, delete.expect)
        if held is not None:
            space.drafts[delete.id] = None

    def _touch(self, touch: Touch) -> None:
        space, at = self._of(touch.space), aware(touch.at)
        for id in touch.ids:
            held = space.held(id)
            if held is not None:
                last = max(held.item.last_accessed or at, at)
                item = replace(held.item, access_count=held.item.access_count + 1, last_accessed=last)
                space.drafts[id] = replace(held, item=item, at=self.number)

    def _embed(self, embed: Embed) -> None:
        if self.models.preparing != embed.model:
            raise Conflict(
                f"{embed.model.name!r} is not being prepared (any more); ask `unembedded` what there is to do"
            )
        space = self._of(embed.space)
        held = space.held(embed.id)
        if held is None or embed.expect not in (None, held.item.version):
            return
        fresh = self.models.fresh
        space.rows[embed.id, fresh] = packed(embed.vectors)
        refs = {**held.refs, fresh: Ref(self.number, len(embed.vectors))}
        space.drafts[embed.id] = replace(held, at=self.number, refs=MappingProxyType(refs))

    def _of(self, space: Space) -> _Space:
        if space not in self._spaces:
            self._spaces[space] = _Space(self._shelf(space))
        return self._spaces[space]

    def _change(self, name: Space, space: _Space) -> Change | None:
        cells = [
            self._cell(id, space.shelf, draft)
            for id, draft in space.drafts.items()
            if draft is not None or id in space.shelf.kept
        ]
        passages = [
            Passages(handle(id), generation, rows)
            for (id, generation), rows in space.rows.items()
            if (draft := space.drafts[id]) is not None and draft.refs.get(generation) == (self.number, len(rows))
        ]
        wanted = space.shelf.paths | space.paths if name not in self._tidied else _paths_left(space)
        more = wanted != space.shelf.paths
        if not cells and not more:
            return None
        paths = wanted if more else None
        return Change(name, tuple(cells), tuple(passages), paths, space.shelf.paths_at if more else 0)

    def _cell(self, id: str, shelf: Shelf, draft: Kept | None) -> Cell:
        of, held = handle(id), shelf.kept.get(id)
        if held is None:
            return Cell(of, draft, shelf.written.get(of, 0))  # the grave of one that was here before
        named = draft.refs if draft is not None else {}
        lost = (
            (generation, vector_id(of, ref.batch, part))
            for generation, ref in held.refs.items()
            if named.get(generation) != ref
            for part in range(ref.passages)
        )
        return Cell(of, draft, held.at, tuple(lost))


def _paths_left(space: _Space) -> frozenset[str]:
    left = {**space.shelf.kept, **space.drafts}
    return frozenset(path for kept in left.values() if kept is not None for path in paths_of(kept.item.metadata))


def _stale(id: str, held: Kept | None, expect: int) -> Conflict:
    at = f"is at version {held.item.version}" if held else "is not there"
    return Conflict(f"item {id!r} {at}, not at version {expect}; read it again")
