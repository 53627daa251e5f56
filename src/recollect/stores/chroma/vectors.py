"""Which vectors answer for a space: all of them, read once when a search first asks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recollect.errors import StoreCorrupt
from recollect.stores.chroma.batch import Batch, Models, Rows
from recollect.stores.chroma.cells import Kept, handle, vector_id
from recollect.stores.chroma.matrix import Matrix
from recollect.stores.chroma.places import Places
from recollect.stores.chroma.search import Nearness
from recollect.stores.chroma.shelf import Shelf
from recollect.stores.damage import Misshapen, as_written, damaged
from recollect.values import Space


def nearness(places: Places, space: Space, shelf: Shelf, models: Models, pending: Mapping[int, Batch]) -> Nearness:
    """How to compare with a space's vectors; nothing is read before somebody asks."""

    def matrix() -> Matrix:
        if shelf.matrix is None:
            shelf.matrix = _loaded(places, space, shelf, models, pending)
        return shelf.matrix

    return Nearness(
        lambda query: matrix().best_first(query),
        lambda ids, query: matrix().cosines(ids, query),
        lambda id: matrix().rows(id),
    )


def _loaded(places: Places, space: Space, shelf: Shelf, models: Models, pending: Mapping[int, Batch]) -> Matrix:
    assert models.active is not None
    rows = {**places.vectors(space, models.generation), **waiting(space, models.generation, pending)}
    matrix = Matrix(models.active.dim)
    for id, kept in shelf.kept.items():
        if models.generation in kept.refs:
            found = _rows_of(kept, models.generation, rows)
            if len(found) and found.shape[1] != models.active.dim:
                raise damaged(f"a vector of the item {id!r:.80}", Misshapen(f"it has not {models.active.dim} numbers"))
            matrix.put(id, found)
    return matrix


def waiting(space: Space, generation: int, pending: Mapping[int, Batch]) -> dict[str, Rows]:
    """The vectors that are in the chain alone, by the names that they will have."""
    return {
        vector_id(one.of, number, part): row[None]
        for number, batch in pending.items()
        for change in batch.changes
        if change.space == space
        for one in change.passages
        if one.generation == generation
        for part, row in enumerate(one.rows)
    }


def _rows_of(kept: Kept, generation: int, rows: Mapping[str, Rows]) -> Rows:
    names = _names(kept, generation)
    missing = [name for name in names if name not in rows]
    if missing:
        raise StoreCorrupt(
            f"a vector of the item {kept.item.id!r} is missing from Chroma; somebody deleted its record. Write the "
            "item again, or all of them (recollect reembed), or restore a backup"
        )
    with as_written(f"a vector of the item {kept.item.id!r:.80}"):
        return np.concatenate([rows[name] for name in names]) if names else np.empty((0, 1), np.float16)


def _names(kept: Kept, generation: int) -> list[str]:
    ref = kept.refs[generation]
    return [vector_id(handle(kept.item.id), ref.batch, part) for part in range(ref.passages)]
