"""One space's vectors in memory: exact while small, compact with an exact second look when large."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apsw
import numpy as np
import simsimd
from numpy.typing import NDArray

from recollect.errors import BadVector
from recollect.stores.sqlite.cache import State
from recollect.stores.sqlite.highest import nth_highest
from recollect.stores.sqlite.rows import PART_BITS, place_of, places_of
from recollect.stores.vectors import STORED

# A byte a dimension is four times faster to scan than two, and needs a second look at the best.
_CODED_ABOVE = 4096
# Up to here the vectors themselves are at hand for that; above, they are read from the file.
_COMPACT_ABOVE = 16_384
# Of so few every one is looked at exactly: a first look, and the search for those it left out, cost more.
_FEW = 64
_CHUNK = 4096
_CANDIDATES = 256

# How far the first look may be off: a query rounded to float16, summed in whatever width the processor has.
_DOUBT = 2e-3
# Equal vectors have equal codes; this only has to bridge their last bit.
_TIE = 1e-6

Rows = NDArray[np.float16]
Codes = NDArray[np.int8]

# Two statements each instead of a table name put together at run time.
_ROWS = {
    "a": "select id, data from vectors_a where id > ? and id <= ? order by id limit ?",
    "b": "select id, data from vectors_b where id > ? and id <= ? order by id limit ?",
}
_EXACT = {
    "a": "select id, data from vectors_a where id in (select value from json_each(?))",
    "b": "select id, data from vectors_b where id in (select value from json_each(?))",
}


class Matrix:
    """The vectors of one space, a row each; `ids` are `place << 6 | part`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._state: State | None = None
        self._view: View | None = None
        self._forget()

    @property
    def bytes(self) -> int:
        return self._ids.nbytes + self._rows.nbytes + self._codes.nbytes + self._scales.nbytes

    def refresh(self, connection: apsw.Connection, state: State) -> None:
        if state == self._state:
            return
        if not state.extends(self._state):
            self._forget()
        first, last = places_of(state.id)
        after = int(self._ids[self._count - 1]) if self._count else (first << PART_BITS) - 1
        for ids, rows in chunks(connection, state.generation, after, ((last + 1) << PART_BITS) - 1):
            self._append(ids, rows)
        self._state, self._view = state, None

    def view(self) -> View:
        """What is there now. Rows are only ever added behind these, so the view stays true."""
        if self._view is None:
            self._view = self._seen()
        return self._view

    def _seen(self) -> View:
        assert self._state is not None
        generation = self._state.generation
        # A reader at a later moment may have added rows that this one must not see yet.
        unseen = place_of(self._state.id, self._state.next_seq + 1) << PART_BITS
        count = int(np.searchsorted(self._ids[: self._count], unseen))
        coded = len(self._codes) > 0
        return View(
            generation,
            self._ids[:count],
            self._rows[:count] if len(self._rows) or not coded else None,
            self._codes[:count] if coded else None,
            self._scales[:count],
            _passages(self._ids[:count]),
        )

    def _forget(self) -> None:
        self._count = 0
        self._ids = np.empty(0, np.int64)
        self._rows: Rows = np.empty((0, 0), STORED)
        self._codes: Codes = np.empty((0, 0), np.int8)
        self._scales = np.empty(0, np.float32)

    def _append(self, ids: NDArray[np.int64], rows: Rows) -> None:
        before, total = self._count, self._count + len(ids)
        if total > _CODED_ABOVE:
            if not len(self._codes):
                self._codes, self._scales = _compact(self._rows[:before])
            codes, scales = _compact(rows)
            self._codes, self._scales = _grown(self._codes, before, codes), _grown(self._scales, before, scales)
        if total > _COMPACT_ABOVE:
            self._rows = np.empty((0, 0), STORED)
        else:
            self._rows = _grown(self._rows, before, rows)
        self._ids = _grown(self._ids, before, ids)
        self._count = total


@dataclass(frozen=True, slots=True)
class View:
    """A space's vectors at one moment: themselves, codes of them, or both."""

    generation: str
    ids: NDArray[np.int64]
    rows: Rows | None
    codes: Codes | None
    scales: NDArray[np.float32]
    passages: int
    """How many vectors the longest item has."""

    def scan(self, query: NDArray[np.float32]) -> Scan:
        if self.codes is not None:
            _check_length(query, self.codes)
            rough, doubt = _rough_of_codes(query, self.codes, self.scales)
            return Scan(self.generation, self.ids, rough, self.rows, doubt, self.passages)
        assert self.rows is not None
        if len(self.ids):
            _check_length(query, self.rows)
        # Where all seem alike, none is passed over.
        rough = _rough(query, self.rows) if len(self.ids) > _FEW else np.zeros(len(self.ids), np.float32)
        return Scan(self.generation, self.ids, rough, self.rows, _DOUBT, self.passages)


@dataclass(frozen=True, slots=True)
class Scan:
    """A first look at every vector of a space, and the rows for a second one if they are at hand."""

    generation: str
    ids: NDArray[np.int64]
    rough: NDArray[np.float32]
    rows: Rows | None
    doubt: float
    """How far the first look may be off."""
    passages: int
    """How many vectors the longest item has, so that its passages cannot crowd others out."""

    def best(
        self, connection: apsw.Connection, query: NDArray[np.float32], allowed: Allowed, limit: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Places and their exact cosine: all that can be among the `limit` best, and a few more."""
        ids, rough, rows = self.ids, self.rough, self.rows
        if allowed.narrows:
            mask = allowed.mask(ids >> PART_BITS)
            ids, rough, rows = ids[mask], rough[mask], None if rows is None else rows[mask]
        if not len(ids):
            return np.empty(0, np.int64), np.empty(0, np.float64)
        passages = self.passages
        if rows is None:
            # All that are in doubt may be very many, and each is read from the file: enough, and what ties with them.
            wanted = max(4 * limit, _CANDIDATES) * passages
            ids, exact = _look_up(connection, self.generation, ids[_highest(rough, wanted, _TIE)])
        else:
            best = _highest(rough, limit * passages, self.doubt)
            ids, exact = ids[best], rows[best]
        return _best_of_places(ids >> PART_BITS, exact.astype(np.float64) @ query.astype(np.float64), passages)

    def exact(
        self, connection: apsw.Connection, query: NDArray[np.float32], places: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The exact cosine of each place, by its best passage; NaN for a place without a vector."""
        starts = np.searchsorted(self.ids, places << PART_BITS)
        counts = np.searchsorted(self.ids, (places + 1) << PART_BITS) - starts
        cosines = np.full(len(places), np.nan)
        has = counts > 0
        if not has.any():
            return cosines
        starts, counts = starts[has], counts[has]
        if self.passages == 1:
            cosines[has] = self._dots(connection, query, starts)
            return cosines
        firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        at = np.repeat(starts - firsts, counts) + np.arange(int(counts.sum()))
        cosines[has] = np.maximum.reduceat(self._dots(connection, query, at), firsts)
        return cosines

    def _dots(
        self, connection: apsw.Connection, query: NDArray[np.float32], at: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        rows = self.rows[at] if self.rows is not None else self._looked_up(connection, self.ids[at])
        return rows.astype(np.float64) @ query.astype(np.float64)

    def _looked_up(self, connection: apsw.Connection, ids: NDArray[np.int64]) -> NDArray[np.float16]:
        found, rows = _look_up(connection, self.generation, ids)
        order = np.argsort(found)
        return rows[order[np.searchsorted(found[order], ids)]]


def streamed(connection: apsw.Connection, state: State, query: NDArray[np.float32]) -> Scan:
    """The same look at a space that is larger than the cache: read from the file, twelve bytes a vector held."""
    first, last = places_of(state.id)
    ids, rough = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for some, rows in chunks(connection, state.generation, (first << PART_BITS) - 1, ((last + 1) << PART_BITS) - 1):
        _check_length(query, rows)
        ids.append(some)
        rough.append(_rough(query, rows))
    every = np.concatenate(ids)
    return Scan(state.generation, every, np.concatenate(rough), None, _DOUBT, _passages(every))


def bytes_needed(state: State, dim: int) -> int:
    """What a space's vectors take in memory; items of several passages take more."""
    rows = 0 if state.items > _COMPACT_ABOVE else STORED.itemsize
    codes = 1 if state.items > _CODED_ABOVE else 0
    return state.items * (16 + dim * (rows + codes))


class Allowed:
    """Which places a filter lets through: some, or all but some."""

    def __init__(self, places: NDArray[np.int64] | None = None, *, excluded: bool = False) -> None:
        self._places = places
        self._excluded = excluded

    @property
    def narrows(self) -> bool:
        return self._places is not None and not (self._excluded and len(self._places) == 0)

    def mask(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        assert self._places is not None
        return np.isin(places, self._places, invert=self._excluded)


def chunks(
    connection: apsw.Connection, generation: str, after: int, last: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float16]]]:
    """The stored vectors after an id, in order, some thousand at a time so that memory stays bounded."""
    while rows := connection.execute(_ROWS[generation], (after, last, _CHUNK)).fetchall():
        ids, vectors = _arrays(rows)
        yield ids, vectors
        after = int(ids[-1])
        if len(rows) < _CHUNK:
            return


def _arrays(rows: list[tuple[Any, ...]]) -> tuple[NDArray[np.int64], NDArray[np.float16]]:
    ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    return ids, np.frombuffer(b"".join(row[1] for row in rows), STORED).reshape(len(rows), -1)


def _check_length(query: NDArray[np.float32], rows: Rows | Codes) -> None:
    if rows.shape[1] != len(query):
        raise BadVector(
            f"a vector has {len(query)} dimensions where {rows.shape[1]} are stored; is it the right embedder?"
        )


def _look_up(
    connection: apsw.Connection, generation: str, ids: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float16]]:
    rows = connection.execute(_EXACT[generation], (str(ids.tolist()),)).fetchall()
    return _arrays(rows) if rows else (np.empty(0, np.int64), np.empty((0, 1), STORED))


def _rough(query: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
    if not len(rows):
        return np.empty(0, np.float32)
    dots = np.asarray(simsimd.cdist(query[np.newaxis].astype(STORED), rows, metric="dot"))
    return np.asarray(dots[0], np.float32)


def _rough_of_codes(
    query: NDArray[np.float32], codes: Codes, scales: NDArray[np.float32]
) -> tuple[NDArray[np.float32], float]:
    """The scores by codes, and how far they may be off: rounding errs evenly, so by eight standard deviations."""
    code, scale = _compact(query[np.newaxis])
    dots = np.asarray(simsimd.cdist(code, codes, metric="dot"))[0].astype(np.float32)
    dots *= scales
    dots *= scale
    spread = (float(scales.max(initial=0.0)) + float(scale[0])) / math.sqrt(12.0)
    return dots, 8.0 * spread + _DOUBT


def _compact(rows: NDArray[np.floating]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    values = rows.astype(np.float32)
    scales = np.abs(values).max(axis=1, initial=0.0) / 127.0
    codes = np.rint(values / np.where(scales == 0.0, 1.0, scales)[:, np.newaxis]).astype(np.int8)
    return codes, scales.astype(np.float32)


def _grown(held: NDArray[np.generic], count: int, new: NDArray[np.generic]) -> NDArray:  # type: ignore[type-arg]
    """`held` with `new` after its first `count` rows; doubles its room, so that adding one by one stays cheap."""
    total = count + len(new)
    if total > len(held) or held.dtype != new.dtype:
        room = np.empty((max(total, min(2 * count, count + 65_536)), *new.shape[1:]), new.dtype)
        if count:
            room[:count] = held[:count]
        held = room
    held[count:total] = new
    return held


def _passages(ids: NDArray[np.int64]) -> int:
    return int((ids & ((1 << PART_BITS) - 1)).max(initial=0)) + 1


def _highest(scores: NDArray[np.float32], count: int, doubt: float) -> NDArray[np.intp]:
    """The `count` highest, and all that come within `doubt` of the last of them."""
    if count == 0 or count >= len(scores):
        return np.arange(min(count, len(scores)))
    return np.flatnonzero(scores >= nth_highest(scores, count) - doubt)


def _best_of_places(
    places: NDArray[np.int64], scores: NDArray[np.float64], passages: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    order = np.argsort(-scores, kind="stable")
    places, scores = places[order], scores[order]
    if passages == 1:
        return places, scores
    first = np.sort(np.unique(places, return_index=True)[1])
    return places[first], scores[first]
