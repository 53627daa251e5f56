"""How many words each item of a space has, in memory: what BM25 needs for every item that a term is in."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import apsw
import numpy as np
from numpy.typing import NDArray

from recollect.stores.sqlite.cache import State
from recollect.stores.sqlite.rows import places_of

_SINCE = """
    select place, length
    from records indexed by records_length
    where place > ? and place <= ?
    order by place
"""


class Lengths:
    """The lengths of one space's items, by place."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._state: State | None = None
        self._places = np.empty(0, np.int64)
        self._lengths = np.empty(0, np.float32)

    @property
    def bytes(self) -> int:
        return self._places.nbytes + self._lengths.nbytes

    def refresh(self, connection: apsw.Connection, state: State) -> None:
        if state == self._state:
            return
        if not state.extends(self._state):
            self._places, self._lengths = np.empty(0, np.int64), np.empty(0, np.float32)
        first, last = places_of(state.id)
        after = int(self._places[-1]) if len(self._places) else first - 1
        rows = connection.execute(_SINCE, (after, last)).fetchall()
        if rows:
            new = np.array(rows, np.int64)
            self._places = np.concatenate([self._places, new[:, 0]])
            self._lengths = np.concatenate([self._lengths, new[:, 1].astype(np.float32)])
        self._state = state

    def view(self) -> View:
        return View(self._places, self._lengths)


@dataclass(frozen=True, slots=True)
class View:
    """A space's lengths at one moment."""

    places: NDArray[np.int64]
    lengths: NDArray[np.float32]

    def of(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """The lengths of places that are known to exist; one not known yet counts as empty."""
        if not len(self.places):
            return np.zeros(len(places))
        at = np.minimum(np.searchsorted(self.places, places), len(self.places) - 1)
        return np.where(self.places[at] == places, self.lengths[at], 0.0).astype(np.float64)
