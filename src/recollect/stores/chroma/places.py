"""Where batches end up: a collection for the items of each space, and one for its vectors in each generation."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from recollect.stores.chroma import ledger
from recollect.stores.chroma.batch import Batch, Change, Models, Rows
from recollect.stores.chroma.cells import (
    ITEMS,
    PATHS,
    VECTORS,
    about,
    batch_of,
    cell_id,
    dumped,
    handle,
    items_of,
    kept_of,
    vector_id,
    vectors_of,
)
from recollect.stores.chroma.collections import Collections, Meta, Record
from recollect.stores.chroma.shelf import Shelf
from recollect.stores.damage import MISREAD, Misshapen, as_written, damaged, one_of, text, texts, whole
from recollect.stores.vectors import unpacked
from recollect.values import Space, Tier


class Places:
    """Records here are added under the number of their batch and never changed.

    So it does no harm when two clients put the same batch here, or one comes late: of two states of an item the
    later batch's counts, and that one is gone is a record too, with no text in it.
    """

    def __init__(self, collections: Collections) -> None:
        self._collections = collections

    def put(self, batches: Sequence[Batch], models: Models) -> None:
        """Put some batches, in their order, into their places."""
        ended = {space: one.number for one in batches if one.wiped is not None for space in one.wiped.spaces}
        by_space: dict[Space, list[tuple[int, Change]]] = {}
        for batch in batches:
            if batch.wiped is not None:
                ledger.note(self._collections, batch.number, batch.wiped)
            for change in batch.changes:
                if batch.number > ended.get(change.space, 0):
                    by_space.setdefault(change.space, []).append((batch.number, change))
        for space, number in ended.items():
            self._end(space, number)
        for space, changes in by_space.items():
            _Settling(self._collections, space, models, changes).run()
        self._drop_dead(batches, models)

    def read(self, space: Space) -> Shelf:
        """A space as far as it is in its place."""
        shelf = Shelf()
        name = items_of(space)
        for record in self._collections.read(name):
            try:
                _shelve(shelf, record)
            except MISREAD as error:
                raise damaged(f"the record {record.id!r:.80} in the collection {name!r}", error) from error
        return shelf

    def vectors(self, space: Space, generation: int) -> dict[str, Rows]:
        """All vectors of a space, by the names of their records."""
        return {one.id: _row(one) for one in self._collections.read(vectors_of(space, generation))}

    def vector_ids(self, space: Space, generation: int) -> set[str]:
        return set(self._collections.ids(vectors_of(space, generation)))

    def spaces(self) -> list[Space]:
        return [_space(name, meta) for name, meta in self._collections.names(ITEMS).items()]

    def clear_up(self, spaces: Iterable[Space], floor: int) -> None:
        """Take away what was put here too late: an item's state before a later one, or of a space that has ended."""
        ends = ledger.ends(self._collections)
        for space in spaces:
            if (number := ends.get(ledger.mark_of(self._collections, space), 0)) > 0:
                self._end(space, number)
            with as_written(f"the collection {items_of(space)!r}"):
                late = _late(self._collections.read(items_of(space)))
            self._collections.delete(items_of(space), late)
            kept = self.read(space).kept.values()
            named = {
                vector_id(handle(one.item.id), ref.batch, part)
                for one in kept
                for ref in one.refs.values()
                for part in range(ref.passages)
            }
            for name in self._collections.names(vectors_of(space, 0).removesuffix("0")):
                nobodys = {id for id in self._collections.ids(name) if batch_of(id) < floor} - named
                self._collections.delete(name, sorted(nobodys))

    def _end(self, space: Space, number: int) -> None:
        """Everything of a space that was written before a batch; with the last of it the name goes."""
        items = items_of(space)
        self._collections.delete(items, self._collections.ids(items, where={"n": {"$lte": number}}))
        left = bool(self._collections.ids(items))
        if not left:
            self._collections.drop(items)
        for vectors in self._collections.names(vectors_of(space, 0).removesuffix("0")):
            ids = self._collections.ids(vectors)
            if left:
                self._collections.delete(vectors, [id for id in ids if batch_of(id) <= number])
            else:
                self._collections.drop(vectors)

    def _drop_dead(self, batches: Iterable[Batch], models: Models) -> None:
        """Vectors of a model that answers no more, and is not being prepared, help nobody."""
        if all(batch.models == models for batch in batches):
            return
        newest = max(models.generation, models.fresh)
        for name in self._collections.names(VECTORS):
            generation = int(name.rpartition(".")[2])
            # A newer one may be that of a model which somebody else has just begun to prepare.
            if generation < newest and not models.lives(generation):
                self._collections.drop(name)


class _Settling:
    """The batches of one space on their way; only the last state of each item goes there."""

    def __init__(
        self, collections: Collections, space: Space, models: Models, changes: Sequence[tuple[int, Change]]
    ) -> None:
        self._collections = collections
        self._space = space
        self._models = models
        self._changes = changes

    def run(self) -> None:
        self._add_vectors()
        name = items_of(self._space)
        final = {cell.of: (number, cell) for number, change in self._changes for cell in change.cells}
        records = [
            cell.kept.record() if cell.kept is not None else Record(cell_id(of, number), {"of": of, "n": number}, "")
            for of, (number, cell) in final.items()
        ]
        paths = [(number, change) for number, change in self._changes if change.paths is not None]
        for number, change in paths[-1:]:
            assert change.paths is not None
            listed: Meta = {"of": PATHS, "n": number, "paths": dumped(sorted(change.paths))}
            records.append(Record(cell_id(PATHS, number), listed, ""))
        self._collections.add(name, records, about(self._space))
        stale = {cell_id(cell.of, cell.was) for _, change in self._changes for cell in change.cells if cell.was}
        stale |= {cell_id(PATHS, change.paths_were) for _, change in paths if change.paths_were}
        self._collections.delete(name, sorted(stale - {record.id for record in records}))
        self._delete_vectors()

    def _add_vectors(self) -> None:
        by_generation: dict[int, list[Record]] = {}
        lost = self._lost()
        for number, change in self._changes:
            for one in change.passages:
                if self._models.lives(one.generation):
                    found = _records(one.of, number, one.rows)
                    gone = lost.get(one.generation, set())
                    by_generation.setdefault(one.generation, []).extend(r for r in found if r.id not in gone)
        for generation, records in by_generation.items():
            self._collections.add(vectors_of(self._space, generation), records, about(self._space))

    def _delete_vectors(self) -> None:
        for generation, ids in self._lost().items():
            if self._models.lives(generation):
                self._collections.delete(vectors_of(self._space, generation), sorted(ids))

    def _lost(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for _, change in self._changes:
            for cell in change.cells:
                for generation, id in cell.lost:
                    found.setdefault(generation, set()).add(id)
        return found


def _shelve(shelf: Shelf, record: Record) -> None:
    number = whole("n", record.meta["n"])
    if "cell" in record.meta:
        shelf.take(kept_of(record.text or "", json.loads(text("cell", record.meta["cell"])), number))
    elif "paths" in record.meta:
        shelf.take_paths(texts("paths", json.loads(text("paths", record.meta["paths"]))), number)
    elif record.text:
        raise Misshapen("it has a text, and nothing besides")
    else:
        shelf.bury(text("of", record.meta["of"]), number)


def _records(of: str, number: int, rows: Rows) -> Iterator[Record]:
    for part, row in enumerate(rows):
        yield Record(vector_id(of, number, part), {"of": of, "v": base64.b64encode(row.tobytes()).decode()})


def _row(record: Record) -> Rows:
    with as_written(f"the vector {record.id!r:.80}"):
        data = base64.b64decode(text("v", record.meta["v"]), validate=True)
        return unpacked(data, len(data) // 2)


def _space(name: str, meta: Meta) -> Space:
    with as_written(f"what the collection {name!r} says of itself"):
        tenant, tier, user, agent, session = texts("space", json.loads(text("space", meta["space"])))
        return Space(tenant, one_of("tier", tier, get_args(Tier)), user, agent, session)


def _late(records: Sequence[Record]) -> list[str]:
    """Those of which a later state is there, too."""
    newest: dict[str, int] = {}
    for one in records:
        of = text("of", one.meta["of"])
        newest[of] = max(newest.get(of, 0), whole("n", one.meta["n"]))
    return [one.id for one in records if whole("n", one.meta["n"]) < newest[text("of", one.meta["of"])]]
