"""The vectors of one space in memory: compared with a question one and all, which is exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from recollect.stores.chroma.batch import Rows
from recollect.stores.chroma.order import best_first

Floats = NDArray[np.float64]

# What sums of float32 products of unit vectors may be off by; whoever is this close to the last is looked at again.
DOUBT = 1e-5
_SPARE = 1_000


class Matrix:
    """The passages of every item, one below the other. An item that changes is appended anew."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._rows = np.empty((64, dim), np.float32)
        self._used = 0
        self._ids: list[str] = []
        self._starts: list[int] = []
        self._entry: dict[str, tuple[int, int, int]] = {}
        """Of an item: its number, and where its passages begin and end."""

    def __len__(self) -> int:
        return len(self._entry)

    @property
    def bytes(self) -> int:
        return self._rows.nbytes

    @property
    def is_sparse(self) -> bool:
        return len(self._ids) > 2 * len(self._entry) + _SPARE

    def put(self, id: str, rows: Rows) -> None:
        self.drop(id)
        if not len(rows):
            return
        end = self._used + len(rows)
        if end > len(self._rows):
            wider = np.empty((max(2 * len(self._rows), end), self.dim), np.float32)
            wider[: self._used] = self._rows[: self._used]
            self._rows = wider
        self._rows[self._used : end] = rows
        self._entry[id] = (len(self._ids), self._used, end)
        self._ids.append(id)
        self._starts.append(self._used)
        self._used = end

    def drop(self, id: str) -> None:
        self._entry.pop(id, None)

    def best_first(self, query: NDArray[np.float32]) -> Iterator[tuple[str, float]]:
        """The items with their cosines, which are right to within `DOUBT`."""
        if not self._ids:
            return
        best = np.maximum.reduceat(self._rows[: self._used] @ query, self._starts)
        for number in best_first(best):
            id = self._ids[number]
            if (entry := self._entry.get(id)) is not None and entry[0] == number:
                yield id, float(best[number])

    def cosines(self, ids: Sequence[str], query: NDArray[np.float32]) -> dict[str, float]:
        """The exact ones, of those that have vectors."""
        wide = query.astype(np.float64)
        return {
            id: float((self._rows[start:end].astype(np.float64) @ wide).max())
            for id in ids
            if id in self._entry
            for _, start, end in [self._entry[id]]
        }

    def rows(self, id: str) -> Rows | None:
        entry = self._entry.get(id)
        return None if entry is None else self._rows[entry[1] : entry[2]].astype(np.float16)
