"""Where batches end up: a collection for the items of each space, and one for its vectors in each generation."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence

from recollect.errors import StoreCorrupt
from recollect.stores.chroma.batch import Batch, Change, Models, Rows
from recollect.stores.chroma.cells import (
    ITEMS,
    PATHS,
    VECTORS,
    about,
    cell_id,
    dumped,
    items_of,
    kept_of,
    vector_id,
    vectors_of,
)
from recollect.stores.chroma.collections import Collections, Meta, Record
from recollect.stores.chroma.shelf import Shelf
from recollect.stores.vectors import unpacked
from recollect.values import Space


class Places:
    """Records here are added under the number of their batch and never changed.

    So it does no harm when two clients put the same batch here, or one comes late: of two states of an item the
    later batch's counts, and that one is gone is a record too, with no text in it.
    """

    def __init__(self, collections: Collections) -> None:
        self._collections = collections

    def put(self, batches: Sequence[Batch], models: Models) -> None:
        """Put some batches, in their order, into their places."""
        by_space: dict[Space, list[tuple[int, Change]]] = {}
        for batch in batches:
            for change in batch.changes:
                by_space.setdefault(change.space, []).append((batch.number, change))
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
            except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                raise StoreCorrupt(f"the record {record.id} in the collection {name!r} is damaged: {error}") from error
        return shelf

    def vectors(self, space: Space, generation: int) -> dict[str, Rows]:
        """All vectors of a space, by the names of their records."""
        return {one.id: _row(one) for one in self._collections.read(vectors_of(space, generation))}

    def vector_ids(self, space: Space, generation: int) -> set[str]:
        return set(self._collections.ids(vectors_of(space, generation)))

    def spaces(self) -> list[Space]:
        return [Space(*json.loads(str(meta["space"]))) for meta in self._collections.names(ITEMS).values()]

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
    number = int(record.meta["n"])
    if "cell" in record.meta:
        shelf.take(kept_of(record.text or "", json.loads(str(record.meta["cell"])), number))
    elif "paths" in record.meta:
        shelf.take_paths(json.loads(str(record.meta["paths"])), number)
    else:
        shelf.bury(str(record.meta["of"]), number)


def _records(of: str, number: int, rows: Rows) -> Iterator[Record]:
    for part, row in enumerate(rows):
        yield Record(vector_id(of, number, part), {"of": of, "v": base64.b64encode(row.tobytes()).decode()})


def _row(record: Record) -> Rows:
    data = base64.b64decode(str(record.meta["v"]))
    return unpacked(data, len(data) // 2)
