"""In-memory copies of the vectors and terms of single spaces, refreshed from the file before each use."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import apsw
import numpy as np
import simsimd
from numpy.typing import NDArray

from recollect.errors import BadVector
from recollect.stores.codec import VECTOR_DTYPE, DecodeError, detects_corruption
from recollect.stores.search import SCORE_SCALE, CorpusStats, compute_bm25, compute_idf
from recollect.stores.sqlite import records
from recollect.stores.sqlite.records import (
    MAX_SEQ,
    PART_BITS,
    decode_seqs,
    encode_place,
    get_place_range,
    get_space_key,
    get_vector_range,
)
from recollect.types import Space

Ids = NDArray[np.int64]
Places = NDArray[np.int64]
FloatColumn = NDArray[np.float64]
QueryVector = NDArray[np.float32]
Float16Rows = NDArray[np.float16]
Int8Codes = NDArray[np.int8]

_SELECT_STATE = """
    select id, next_seq, rewrites, items, words,
        coalesce((select value from meta where name = 'generation'), 'a'),
        (select value from meta where name = 'model'),
        (select value from meta where name = 'wiped')
    from spaces
    where tenant = ? and tier = ? and user = ? and agent = ? and session = ?"""
_COUNT_COLUMNS = 5  # the integer columns that the statement starts with


@dataclass(frozen=True, slots=True)
class SpaceState:
    """The row of a space in one transaction: it tells what a cached copy lacks."""

    id: int
    next_seq: int
    rewrites: int
    items: int
    words: int
    generation: str
    model: str | None
    """The model of the vectors, as JSON."""
    wiped: str | None = None
    """The number of erasures so far; copies from before the last one must be dropped."""

    @classmethod
    def read(cls, connection: apsw.Connection, space: Space) -> SpaceState | None:
        row = connection.execute(_SELECT_STATE, get_space_key(space)).fetchone()
        return _decode_state(row) if row else None

    def is_extension_of(self, cached: SpaceState | None) -> bool:
        """Return whether a copy at state `cached` lacks nothing but new rows; otherwise it is loaded again."""
        return cached is not None and (self.rewrites, self.generation) == (cached.rewrites, cached.generation)


@detects_corruption("the row of a space")
def _decode_state(row: tuple[Any, ...]) -> SpaceState:
    counts = row[:_COUNT_COLUMNS]
    # Arrays of these sizes are allocated, so damaged counts must not get through.
    if not all(type(count) is int for count in counts) or min(counts) < 0 or row[1] > MAX_SEQ:
        raise DecodeError("it counts more items than there can be, or less than none")
    return SpaceState(*row)


E = TypeVar("E", "SqliteTermCache", "SqliteVectorMatrix")
V = TypeVar("V")


class SpaceCache(Generic[E]):
    """The most recently used copies, within a budget of bytes."""

    def __init__(self, budget: int, make: Callable[[], E]) -> None:
        self.budget = budget
        self._create_entry: Callable[[], E] = make
        self._entries: OrderedDict[int, E] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._total_bytes = 0
        self._wiped: str | None = None
        self._lock = threading.Lock()

    def read_fresh(self, connection: apsw.Connection, state: SpaceState, view: Callable[[E], V]) -> V:
        """Refresh the space's copy to the connection's snapshot, and return `view` of it.

        `view` runs under the copy's lock: a reader with an older snapshot may turn the copy back right afterwards.
        """
        with self._lock:
            if state.wiped != self._wiped:
                self._clear_entries()
                self._wiped = state.wiped
            entry = self._entries.get(state.id)
            if entry is None:
                entry = self._entries[state.id] = self._create_entry()
            self._entries.move_to_end(state.id)
        with entry.lock:
            entry.refresh(connection, state)
            result = view(entry)
            size = entry.bytes
        self._record_size(state.id, size)
        return result

    def clear(self) -> None:
        with self._lock:
            self._clear_entries()

    def _clear_entries(self) -> None:
        self._entries.clear()
        self._sizes.clear()
        self._total_bytes = 0

    def _record_size(self, space: int, size: int) -> None:
        """Record a copy's size, and evict the least recently used ones until the budget holds."""
        with self._lock:
            if space not in self._entries:
                return
            self._total_bytes += size - self._sizes.get(space, 0)
            self._sizes[space] = size
            while self._total_bytes > self.budget and self._entries:
                oldest, _ = self._entries.popitem(last=False)
                self._total_bytes -= self._sizes.pop(oldest, 0)


@dataclass(frozen=True, slots=True)
class AllowedPlaces:
    """The places that a filter lets through: either a list, or all but a list."""

    places: Places | None = None
    excluded: bool = False

    @property
    def is_narrow(self) -> bool:
        return self.places is not None and not (self.excluded and len(self.places) == 0)

    def build_mask(self, places: Places) -> NDArray[np.bool_]:
        assert self.places is not None
        return np.isin(places, self.places, invert=self.excluded)


_PEAK_ROWS = 16


def find_nth_highest(numbers: NDArray[np.floating], n: int) -> float:
    """Return the lowest of the `n` highest numbers; there must be at least `n`."""
    width = len(numbers) // _PEAK_ROWS
    if width > 2 * n:
        # Split into 16 rows, n columns reach the n-th highest of the columns' maxima, so nothing below it can be among
        # the n highest. For 100,000 scores that are mostly 0 this takes 0.2 ms, and a partition of all takes 1.6 ms.
        peaks = numbers[: _PEAK_ROWS * width].reshape(_PEAK_ROWS, width).max(axis=0)
        numbers = numbers[numbers >= np.partition(peaks, width - n)[width - n]]
    return float(np.partition(numbers, len(numbers) - n)[len(numbers) - n])


# Terms

# The size of a term without its postings, in postings: a name, two arrays and their dictionary entry.
_TERM_OVERHEAD = 24
_POSTING_BYTES = 24  # number, count and contribution
# Most items have fewer terms, so all postings of a space that is searched often are cached, within the cache's budget.
_MAX_POSTINGS_PER_ITEM = 32
_MIN_CACHED_POSTINGS = 4096
# In a space with so few term occurrences all are cached, so that new terms need no look into the index.
_CACHE_ALL_TERMS_UP_TO = 4096

_SELECT_LENGTHS = """
    select place, length
    from records indexed by records_length
    where place > ? and place <= ?
    order by place"""
_SELECT_TERMS = "select place, length, terms from records where place > ? and place <= ? order by place"


@dataclass(slots=True, eq=False)
class TermPostings:
    """The numbers of the items with a term, ascending, and how often each has it."""

    seqs: Ids
    counts: FloatColumn
    _contributions: tuple[CorpusStats, FloatColumn] | None = None

    def compute_contributions(self, corpus: CorpusStats, lengths: FloatColumn) -> FloatColumn:
        """Return what the term adds to each item's score. Cached until the corpus changes."""
        cached = self._contributions
        if cached is None or cached[0] != corpus:
            weight = compute_idf(corpus, len(self.seqs))
            cached = self._contributions = (corpus, compute_bm25(corpus, self.counts, lengths[self.seqs], weight))
        return cached[1]

    def clip_to(self, seq: int) -> TermPostings:
        """Return the postings that a reader with an older snapshot may see."""
        if not len(self.seqs) or self.seqs[-1] <= seq:
            return self
        count = int(np.searchsorted(self.seqs, seq, side="right"))
        return TermPostings(self.seqs[:count], self.counts[:count])

    def with_added(self, seqs: list[int], counts: list[int]) -> TermPostings:
        return TermPostings(
            np.concatenate([self.seqs, np.array(seqs, np.int64)]),
            np.concatenate([self.counts, np.array(counts, np.float64)]),
        )


_NO_POSTINGS = TermPostings(np.empty(0, np.int64), np.empty(0))


class SqliteTermCache:
    """The lengths of a space's items, and the postings of recently searched terms."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._state: SpaceState | None = None
        self._reset()

    @property
    def bytes(self) -> int:
        return self._lengths.nbytes + _POSTING_BYTES * self._cached_postings

    def refresh(self, connection: apsw.Connection, state: SpaceState) -> None:
        """Load what this process or another has committed since the last refresh."""
        if state == self._state:
            return
        if not state.is_extension_of(self._state):
            self._reset()
        if state.next_seq > self._last_seq:
            self._load_new_items(connection, state)
        self._state = state

    def get_postings(
        self, connection: apsw.Connection, state: SpaceState, terms: Sequence[str]
    ) -> tuple[list[TermPostings], FloatColumn]:
        """Return the terms' postings in the connection's snapshot, and the lengths of all items by their number."""
        return [self._get_postings(connection, state, term) for term in terms], self._lengths

    def _reset(self) -> None:
        self._last_seq = 0
        self._cached_postings = 0
        self._lengths: FloatColumn = np.zeros(0)
        self._postings_by_term: OrderedDict[str, TermPostings] = OrderedDict()
        self._is_complete = False

    def _get_postings(self, connection: apsw.Connection, state: SpaceState, term: str) -> TermPostings:
        cached = self._postings_by_term.get(term)
        if cached is not None:
            self._postings_by_term.move_to_end(term)
            return cached.clip_to(state.next_seq)
        if self._is_complete:
            return _NO_POSTINGS
        places, counts = records.find_postings(connection, state.id, term)
        postings = TermPostings(decode_seqs(places), counts)
        # An older snapshot may lack postings of items that this copy has loaded.
        if state.next_seq == self._last_seq:
            self._store_postings(term, postings, state.items)
        return postings

    def _store_postings(self, term: str, postings: TermPostings, items: int) -> None:
        """Cache the postings of a term, and evict those of the least recently used terms."""
        self._postings_by_term[term] = postings
        self._cached_postings += len(postings.seqs) + _TERM_OVERHEAD
        while self._cached_postings > max(_MAX_POSTINGS_PER_ITEM * items, _MIN_CACHED_POSTINGS):
            _, evicted = self._postings_by_term.popitem(last=False)
            self._cached_postings -= len(evicted.seqs) + _TERM_OVERHEAD

    def _load_new_items(self, connection: apsw.Connection, state: SpaceState) -> None:
        """Load the lengths of new items, and their terms if there are cached postings to keep complete."""
        _, last = get_place_range(state.id)
        after = encode_place(state.id, self._last_seq)
        self._is_complete = state.words <= _CACHE_ALL_TERMS_UP_TO
        with_terms = self._is_complete or bool(self._postings_by_term)
        rows = connection.execute(_SELECT_TERMS if with_terms else _SELECT_LENGTHS, (after, last)).fetchall()
        if state.next_seq >= len(self._lengths):
            grown = np.zeros(max(state.next_seq + 1, min(2 * len(self._lengths), len(self._lengths) + 65_536)))
            grown[: len(self._lengths)] = self._lengths
            self._lengths = grown
        if rows:
            seqs = decode_seqs(np.fromiter((row[0] for row in rows), np.int64, len(rows)))
            self._lengths[seqs] = np.fromiter((row[1] for row in rows), np.float64, len(rows))
            if with_terms:
                self._extend_postings(seqs.tolist(), [str(row[2]) for row in rows])
        self._last_seq = state.next_seq

    def _extend_postings(self, seqs: list[int], texts: list[str]) -> None:
        """Add new items to the postings of cached terms, or of all terms if the copy is complete."""
        added: dict[str, tuple[list[int], list[int]]] = {}
        for seq, text in zip(seqs, texts, strict=True):
            for term, count in Counter(text.split()).items():
                if self._is_complete or term in self._postings_by_term:
                    of_term = added.setdefault(term, ([], []))
                    of_term[0].append(seq)
                    of_term[1].append(count)
        for term, columns in added.items():
            cached = self._postings_by_term.get(term)
            self._postings_by_term[term] = (cached or _NO_POSTINGS).with_added(*columns)
            self._cached_postings += len(columns[0]) + (0 if cached else _TERM_OVERHEAD)


@dataclass(frozen=True, slots=True, eq=False)
class TermScores:
    """The score of every item by its number in the space, and what each term adds to it."""

    space: int
    postings: Sequence[TermPostings]
    contributions: Sequence[FloatColumn]
    scores: FloatColumn
    weights: FloatColumn

    @classmethod
    def compute(cls, state: SpaceState, postings: Sequence[TermPostings], lengths: FloatColumn) -> TermScores:
        corpus = CorpusStats(state.items, state.words / state.items)
        weights = [compute_idf(corpus, len(of_term.seqs)) for of_term in postings]
        # An array over the whole space needs no sorting to add the terms up.
        scores = np.zeros(state.next_seq + 1)
        contributions = []
        for of_term in postings:
            added = of_term.compute_contributions(corpus, lengths)
            scores[of_term.seqs] += added
            contributions.append(added)
        return cls(state.id, postings, contributions, scores, np.array(weights, np.float64))

    def find_best(self, allowed: AllowedPlaces, limit: int) -> tuple[Places, FloatColumn]:
        """Return the allowed places with one of the terms, ascending, and their scores.

        The result contains at least the `limit` best, and all that tie with the last of them.
        """
        if allowed.is_narrow:
            places, scores = self._get_places(np.flatnonzero(self.scores))
            mask = allowed.build_mask(places)
            return places[mask], scores[mask]
        least = find_nth_highest(self.scores, limit) - 2.0 / SCORE_SCALE if 0 < limit < len(self.scores) else 0.0
        return self._get_places(np.flatnonzero(self.scores > max(least, 0.0)))

    def compute_parts(self, places: Places) -> FloatColumn:
        """Return each term's contribution to each place: a row per term, 0 if the item lacks the term."""
        parts = np.zeros((len(self.postings), len(places)))
        seqs = decode_seqs(places)
        for row, (of_term, added) in enumerate(zip(self.postings, self.contributions, strict=True)):
            if len(of_term.seqs):
                at = of_term.seqs.searchsorted(seqs)
                is_found = of_term.seqs.take(at, mode="clip") == seqs
                np.multiply(added.take(at, mode="clip"), is_found, out=parts[row])
        return parts

    def _get_places(self, seqs: NDArray[np.intp]) -> tuple[Places, FloatColumn]:
        return seqs + encode_place(self.space, 0), self.scores[seqs]


# Vectors

# Above this, vectors are scanned as int8 codes, four times faster than float16, and the best are computed exactly.
_QUANTIZED_ABOVE_ROWS = 4096
# Above this, the float16 rows are not kept in memory, and the exact ones are read from the file.
_FLOATS_DROPPED_ABOVE_ROWS = 16_384
# Up to this, all vectors are computed exactly: scanning and selecting would cost more.
_EXACT_SCAN_ROWS = 64
_CHUNK_ROWS = 4096
_MIN_CANDIDATES = 256

# The error of a float16 scan: the query is rounded, and processors sum in different widths.
_FLOAT16_ERROR = 2e-3
# Equal vectors have equal codes, so ties differ in the last bit at most.
_TIE_TOLERANCE = 1e-6

_SELECT_VECTORS_AFTER = records.build_for_each_generation(
    "select id, data from VECTORS where id > ? and id < ? order by id limit ?"
)
_SELECT_VECTORS_BY_ID = records.build_for_each_generation(
    "select id, data from VECTORS where id in (select value from json_each(?))"
)


class SqliteVectorMatrix:
    """The vectors of a space, one per row, ordered by their ids (`place << 6 | part`)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._state: SpaceState | None = None
        self._view: VectorView | None = None
        self._reset()

    @property
    def bytes(self) -> int:
        return self._ids.nbytes + self._rows.nbytes + self._codes.nbytes + self._scales.nbytes

    def refresh(self, connection: apsw.Connection, state: SpaceState) -> None:
        """Load what this process or another has committed since the last refresh."""
        if state == self._state:
            return
        if not state.is_extension_of(self._state):
            self._reset()
        first, end = get_vector_range(*get_place_range(state.id))
        after = int(self._ids[self._count - 1]) if self._count else first - 1
        for ids, rows in iterate_vectors(connection, state.generation, after, end):
            self._append(ids, rows)
        self._state, self._view = state, None

    def get_view(self) -> VectorView:
        """Return the current rows. New rows are only appended after them, so the view stays valid."""
        if self._view is not None:
            return self._view
        assert self._state is not None
        # A reader with a newer snapshot may have added rows that this one must not see.
        first_unseen = encode_place(self._state.id, self._state.next_seq + 1) << PART_BITS
        count = int(np.searchsorted(self._ids[: self._count], first_unseen))
        has_codes = len(self._codes) > 0
        self._view = VectorView(
            self._state.generation,
            self._ids[:count],
            self._rows[:count] if len(self._rows) or not has_codes else None,
            self._codes[:count] if has_codes else None,
            self._scales[:count],
        )
        return self._view

    def _reset(self) -> None:
        self._count = 0
        self._ids = np.empty(0, np.int64)
        self._rows: Float16Rows = np.empty((0, 0), VECTOR_DTYPE)
        self._codes: Int8Codes = np.empty((0, 0), np.int8)
        self._scales = np.empty(0, np.float32)

    def _append(self, ids: Ids, rows: Float16Rows) -> None:
        """Append vectors in the representation that their new number requires."""
        before, total = self._count, self._count + len(ids)
        if total > _QUANTIZED_ABOVE_ROWS:
            if not len(self._codes):
                self._codes, self._scales = _quantize(self._rows[:before])
            codes, scales = _quantize(rows)
            self._codes = _append_rows(self._codes, before, codes)
            self._scales = _append_rows(self._scales, before, scales)
        if total > _FLOATS_DROPPED_ABOVE_ROWS:
            self._rows = np.empty((0, 0), VECTOR_DTYPE)
        else:
            self._rows = _append_rows(self._rows, before, rows)
        self._ids = _append_rows(self._ids, before, ids)
        self._count = total


@dataclass(frozen=True)
class VectorView:
    """A space's vectors at one snapshot, as far as they are in memory: float16 rows, int8 codes, or both."""

    generation: str
    ids: Ids
    rows: Float16Rows | None = None
    codes: Int8Codes | None = None
    scales: NDArray[np.float32] | None = None

    @cached_property
    def max_passages(self) -> int:
        """The most vectors of one item. So many times more candidates are taken, lest one item's passages fill them."""
        return int((self.ids & ((1 << PART_BITS) - 1)).max(initial=0)) + 1

    def scan(self, query: QueryVector) -> VectorScan:
        """Return approximate scores of all vectors. Raises `BadVector` if the query has another dimension."""
        if self.codes is not None and self.scales is not None:
            return VectorScan(self, query, *_score_codes(query, self.codes, self.scales))
        assert self.rows is not None
        if len(self.ids) <= _EXACT_SCAN_ROWS:  # with equal scores every vector becomes a candidate
            return VectorScan(self, query, np.zeros(len(self.ids), np.float32), _FLOAT16_ERROR)
        return VectorScan(self, query, _score_rows(query, self.rows), _FLOAT16_ERROR)


@dataclass(frozen=True, slots=True)
class VectorScan:
    """Approximate scores of all vectors of a space for a query."""

    view: VectorView
    query: QueryVector
    rough_scores: NDArray[np.float32]
    max_error: float
    """Maximum difference between a score and the exact cosine."""

    def find_best(self, connection: apsw.Connection, allowed: AllowedPlaces, limit: int) -> tuple[Places, FloatColumn]:
        """Return allowed places with their exact cosines, among them all that may be among the `limit` best."""
        ids, scores, rows = self.view.ids, self.rough_scores, self.view.rows
        if allowed.is_narrow:
            mask = allowed.build_mask(ids >> PART_BITS)
            ids, scores, rows = ids[mask], scores[mask], None if rows is None else rows[mask]
        if not len(ids):
            return np.empty(0, np.int64), np.empty(0, np.float64)
        if rows is None:
            # Each candidate is read from the file, so only a fixed number of them, and their ties.
            wanted = max(4 * limit, _MIN_CANDIDATES) * self.view.max_passages
            best = ids[_select_highest(scores, wanted, _TIE_TOLERANCE)]
            ids, exact_rows = _load_vectors(connection, self.view.generation, best)
        else:
            selected = _select_highest(scores, limit * self.view.max_passages, self.max_error)
            ids, exact_rows = ids[selected], rows[selected]
        cosines = self._compute_dots(exact_rows)
        order = np.argsort(-cosines, kind="stable")
        places, cosines = ids[order] >> PART_BITS, cosines[order]
        if self.view.max_passages == 1:
            return places, cosines
        first = np.sort(np.unique(places, return_index=True)[1])
        return places[first], cosines[first]

    def compute_exact(self, connection: apsw.Connection, places: Places) -> FloatColumn:
        """Return the cosine of each place's best passage; NaN for a place without a vector."""
        ids = self.view.ids
        starts = np.searchsorted(ids, places << PART_BITS)
        counts = np.searchsorted(ids, (places + 1) << PART_BITS) - starts
        cosines = np.full(len(places), np.nan)
        has_vectors = counts > 0
        if not has_vectors.any():
            return cosines
        starts, counts = starts[has_vectors], counts[has_vectors]
        if self.view.max_passages == 1:
            cosines[has_vectors] = self._compute_dots(self._get_rows(connection, starts))
            return cosines
        firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        at = np.repeat(starts - firsts, counts) + np.arange(int(counts.sum()))
        cosines[has_vectors] = np.maximum.reduceat(self._compute_dots(self._get_rows(connection, at)), firsts)
        return cosines

    def _get_rows(self, connection: apsw.Connection, at: NDArray[np.intp]) -> Float16Rows:
        """Return the vectors at these positions, from memory or from the file, in the same order."""
        if self.view.rows is not None:
            return self.view.rows[at]
        ids = self.view.ids[at]
        found, loaded = _load_vectors(connection, self.view.generation, ids)
        order = np.argsort(found)
        return loaded[order[np.searchsorted(found[order], ids)]]

    def _compute_dots(self, rows: Float16Rows) -> FloatColumn:
        if len(rows):
            _check_dimension(self.query, rows)
        return rows.astype(np.float64) @ self.query.astype(np.float64)


def scan_from_file(connection: apsw.Connection, state: SpaceState, query: QueryVector) -> VectorScan:
    """Scan a space that does not fit into the cache, from the file, with 12 bytes of memory per vector."""
    first, end = get_vector_range(*get_place_range(state.id))
    ids, scores = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for chunk_ids, rows in iterate_vectors(connection, state.generation, first - 1, end):
        ids.append(chunk_ids)
        scores.append(_score_rows(query, rows))
    return VectorScan(VectorView(state.generation, np.concatenate(ids)), query, np.concatenate(scores), _FLOAT16_ERROR)


def estimate_vector_bytes(state: SpaceState, dim: int) -> int:
    """Return the memory that a space's vectors need with one passage per item."""
    row_bytes = 0 if state.items > _FLOATS_DROPPED_ABOVE_ROWS else VECTOR_DTYPE.itemsize
    code_bytes = 1 if state.items > _QUANTIZED_ABOVE_ROWS else 0
    return state.items * (16 + dim * (row_bytes + code_bytes))


def iterate_vectors(
    connection: apsw.Connection, generation: str, after: int, end: int
) -> Iterator[tuple[Ids, Float16Rows]]:
    """Yield the stored vectors with ids between `after` and `end` in chunks, to bound the memory."""
    while rows := connection.execute(_SELECT_VECTORS_AFTER[generation], (after, end, _CHUNK_ROWS)).fetchall():
        ids, vectors = _build_arrays(rows)
        yield ids, vectors
        after = int(ids[-1])
        if len(rows) < _CHUNK_ROWS:
            return


def _build_arrays(rows: list[tuple[Any, ...]]) -> tuple[Ids, Float16Rows]:
    ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    return ids, np.frombuffer(b"".join(row[1] for row in rows), VECTOR_DTYPE).reshape(len(rows), -1)


def _load_vectors(connection: apsw.Connection, generation: str, ids: Ids) -> tuple[Ids, Float16Rows]:
    rows = connection.execute(_SELECT_VECTORS_BY_ID[generation], (str(ids.tolist()),)).fetchall()
    return _build_arrays(rows) if rows else (np.empty(0, np.int64), np.empty((0, 1), VECTOR_DTYPE))


def _check_dimension(query: QueryVector, rows: Float16Rows | Int8Codes) -> None:
    if rows.shape[1] != len(query):
        raise BadVector(
            f"a vector has {len(query)} dimensions where {rows.shape[1]} are stored; is it the right embedder?"
        )


def _score_rows(query: QueryVector, rows: Float16Rows) -> NDArray[np.float32]:
    if not len(rows):
        return np.empty(0, np.float32)
    _check_dimension(query, rows)
    dots = np.asarray(simsimd.cdist(query[np.newaxis].astype(VECTOR_DTYPE), rows, metric="dot"))
    return np.asarray(dots[0], np.float32)


def _score_codes(
    query: QueryVector, codes: Int8Codes, scales: NDArray[np.float32]
) -> tuple[NDArray[np.float32], float]:
    """Return approximate scores and their error: eight standard deviations of uniform rounding errors."""
    _check_dimension(query, codes)
    code, scale = _quantize(query[np.newaxis])
    dots = np.asarray(simsimd.cdist(code, codes, metric="dot"))[0].astype(np.float32)
    dots *= scales
    dots *= scale
    spread = (float(scales.max(initial=0.0)) + float(scale[0])) / math.sqrt(12.0)
    return dots, 8.0 * spread + _FLOAT16_ERROR


def _quantize(rows: NDArray[np.floating]) -> tuple[Int8Codes, NDArray[np.float32]]:
    values = rows.astype(np.float32)
    scales = np.abs(values).max(axis=1, initial=0.0) / 127.0
    codes = np.rint(values / np.where(scales == 0.0, 1.0, scales)[:, np.newaxis]).astype(np.int8)
    return codes, scales.astype(np.float32)


def _append_rows(array: NDArray[np.generic], count: int, new: NDArray[np.generic]) -> NDArray:  # type: ignore[type-arg]
    """Return `array` with `new` after its first `count` rows. The capacity doubles, so that appending stays cheap."""
    total = count + len(new)
    if total > len(array) or array.dtype != new.dtype:
        grown = np.empty((max(total, min(2 * count, count + 65_536)), *new.shape[1:]), new.dtype)
        if count:
            grown[:count] = array[:count]
        array = grown
    array[count:total] = new
    return array


def _select_highest(scores: NDArray[np.float32], count: int, tolerance: float) -> NDArray[np.intp]:
    """Return the indexes of the `count` highest, and of all within `tolerance` of the last of them."""
    if count == 0 or count >= len(scores):
        return np.arange(min(count, len(scores)))
    return np.flatnonzero(scores >= find_nth_highest(scores, count) - tolerance)
