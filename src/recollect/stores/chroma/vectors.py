"""Which vectors answer for a space: all of them from memory where they fit, else those that Chroma's index finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from recollect.errors import StoreCorrupt
from recollect.stores.chroma.batch import Batch, Models, Rows
from recollect.stores.chroma.cells import Kept, handle, vector_id
from recollect.stores.chroma.matrix import Matrix
from recollect.stores.chroma.places import Places
from recollect.stores.chroma.search import Nearness
from recollect.stores.chroma.shelf import Shelf
from recollect.values import Space

Query = NDArray[np.float32]

# The index is asked for so many; where filters leave too few of them, all vectors are read after all.
_GENEROUS = 1_000


class Vectors:
    """The vectors of every space."""

    def __init__(self, places: Places, most_bytes: int) -> None:
        self._places = places
        self._most_bytes = most_bytes

    def of(self, space: Space, shelf: Shelf, models: Models, pending: Mapping[int, Batch]) -> Nearness:
        """How to compare; nothing is read before somebody asks."""

        def matrix() -> Matrix:
            if shelf.matrix is None:
                shelf.matrix = self._loaded(space, shelf, models, pending)
            return shelf.matrix

        if self._fits(shelf, models):
            return Nearness(lambda query: matrix().best_first(query), lambda ids, query: matrix().cosines(ids, query))
        large = _Indexed(self._places, space, shelf, models, _waiting(space, models, pending))
        return Nearness(large.best_first, large.cosines)

    def _fits(self, shelf: Shelf, models: Models) -> bool:
        if shelf.matrix is not None or models.active is None:
            return True
        # Few have more passages than one; and what is a little too much does no harm.
        return len(shelf.kept) * models.active.dim * 4 <= self._most_bytes

    def _loaded(self, space: Space, shelf: Shelf, models: Models, pending: Mapping[int, Batch]) -> Matrix:
        assert models.active is not None
        rows = {**self._places.vectors(space, models.generation), **_waiting(space, models, pending)}
        matrix = Matrix(models.active.dim)
        for id, kept in shelf.kept.items():
            if models.generation in kept.refs:
                matrix.put(id, _rows_of(kept, models.generation, rows))
        return matrix


class _Indexed:
    """A space whose vectors stay in Chroma."""

    def __init__(self, places: Places, space: Space, shelf: Shelf, models: Models, waiting: Mapping[str, Rows]) -> None:
        self._places = places
        self._space = space
        self._shelf = shelf
        self._models = models
        self._waiting = waiting

    def best_first(self, query: Query) -> Iterator[tuple[str, float]]:
        """What the index finds, exactly compared; then, if that was not enough, everything else."""
        near = self._places.near(self._space, self._models.generation, query, _GENEROUS)
        known = (self._shelf.id_of(one.partition("@")[0]) for one in (*near, *self._waiting))
        found = {id for id in known if id is not None}
        yield from _ranked(self.cosines(sorted(found), query))
        rest = [id for id in self._shelf.kept if id not in found]
        yield from _ranked(self.cosines(rest, query))

    def cosines(self, ids: Sequence[str], query: Query) -> dict[str, float]:
        generation, wide = self._models.generation, query.astype(np.float64)
        kept = {id: self._shelf.kept[id] for id in ids if generation in self._shelf.kept[id].refs}
        wanted = [name for one in kept.values() for name in _names(one, generation) if name not in self._waiting]
        rows = {**self._places.some_vectors(self._space, generation, wanted), **self._waiting}
        return {
            id: float((_rows_of(one, generation, rows).astype(np.float64) @ wide).max())
            for id, one in kept.items()
            if one.refs[generation].passages
        }


def _waiting(space: Space, models: Models, pending: Mapping[int, Batch]) -> dict[str, Rows]:
    """The vectors that are in the chain alone, by the names that they will have."""
    return {
        vector_id(one.of, number, part): row[None]
        for number, batch in pending.items()
        for change in batch.changes
        if change.space == space
        for one in change.passages
        if one.generation == models.generation
        for part, row in enumerate(one.rows)
    }


def _rows_of(kept: Kept, generation: int, rows: Mapping[str, Rows]) -> Rows:
    names = _names(kept, generation)
    missing = [name for name in names if name not in rows]
    if missing:
        raise StoreCorrupt(
            f"a vector of the item {kept.item.id!r} is missing from Chroma; somebody deleted its record. Write the "
            "item again, or all of them: recollect reembed"
        )
    return np.concatenate([rows[name] for name in names]) if names else np.empty((0, 1), np.float16)


def _names(kept: Kept, generation: int) -> list[str]:
    ref = kept.refs[generation]
    return [vector_id(handle(kept.item.id), ref.batch, part) for part in range(ref.passages)]


def _ranked(cosines: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    return sorted(cosines.items(), key=lambda pair: -pair[1])
