"""In-memory copies of the vectors and terms of single spaces, refreshed from the file before each use."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import apsw
import numpy as np
import simsimd
from numpy.typing import NDArray

from recollect.errors import BadVector
from recollect.stores.base import get_space_names
from recollect.stores.codec import VECTOR_DTYPE, DecodeError, detects_corruption
from recollect.stores.search import SCORE_SCALE, CorpusStats, FloatColumn, compute_bm25, compute_idf
from recollect.stores.sqlite.records import (
    MAX_SEQ,
    PART_BITS,
    build_for_each_generation,
    encode_place,
    encode_term,
    get_place_range,
    get_vector_range,
)
from recollect.types import Space

Places = NDArray[np.int64]
QueryVector = NDArray[np.float32]
Float16Rows = NDArray[np.float16]
Int8Codes = NDArray[np.int8]
AnyArray = NDArray[Any]

_SELECT_STATE = """
    select id, next_seq, rewrites, items, words,
        coalesce((select value from meta where name = 'generation'), 'a'),
        (select value from meta where name = 'model'),
        (select value from meta where name = 'wiped')
    from spaces
    where tenant = ? and tier = ? and user = ? and agent = ? and session = ?"""


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
    @detects_corruption("the row of a space")
    def read(cls, connection: apsw.Connection, space: Space) -> SpaceState | None:
        row = connection.execute(_SELECT_STATE, get_space_names(space)).fetchone()
        if row is None:
            return None
        counts = row[:5]
        # Arrays of these sizes are allocated, so damaged counts must not get through.
        if not all(type(count) is int for count in counts) or min(counts) < 0 or row[1] > MAX_SEQ:
            raise DecodeError("it counts more items than there can be, or less than none")
        return cls(*row)


E = TypeVar("E", "SqliteTermCache", "SqliteVectorMatrix")
V = TypeVar("V")


class SpaceCache(Generic[E]):
    """The most recently used copies, within a budget of bytes."""

    def __init__(self, budget: int, create_copy: Callable[[], E]) -> None:
        self.budget = budget
        self._create_copy: Callable[[], E] = create_copy
        self._entries: OrderedDict[int, E] = OrderedDict()
        self._total_bytes = 0
        self._wiped: str | None = None
        self._lock = threading.RLock()

    def read_fresh(self, connection: apsw.Connection, state: SpaceState, view: Callable[[E], V]) -> V:
        """Refresh the space's copy to the connection's snapshot, and return `view` of it.

        `view` runs under the copy's lock: a reader with an older snapshot may turn the copy back right afterwards.
        """
        with self._lock:
            if state.wiped != self._wiped:
                self.clear()
                self._wiped = state.wiped
            entry = self._entries.get(state.id)
            if entry is None:
                entry = self._entries[state.id] = self._create_copy()
            self._entries.move_to_end(state.id)
        with entry.lock:
            before = entry.state
            if before is not None and (before.rewrites, before.generation) != (state.rewrites, state.generation):
                entry.state = None
                entry.reset()  # otherwise rows were only added
            if before != state:
                entry.load_new_rows(connection, state)
                entry.state = state
            result = view(entry)
            size = entry.bytes
        with self._lock:
            if state.id in self._entries and self._entries[state.id] is entry:
                self._total_bytes += size - entry.counted_bytes
                entry.counted_bytes = size
            while self._total_bytes > self.budget and self._entries:
                self._total_bytes -= self._entries.popitem(last=False)[1].counted_bytes
        return result

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._total_bytes = 0


@dataclass(frozen=True, slots=True)
class AllowedPlaces:
    """The places that a filter lets through: either a list, or all but a list."""

    places: Places = field(default_factory=lambda: np.empty(0, np.int64))
    excluded: bool = True

    @property
    def is_narrow(self) -> bool:
        return not self.excluded or len(self.places) > 0

    def build_mask(self, places: Places) -> NDArray[np.bool_]:
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

_SELECT_POSTINGS = "select group_concat(doc) from occurrences where term = ?"
_SELECT_LENGTHS = """
    select place, length from records indexed by records_length
    where place > ? and place <= ?
    order by place"""
_SELECT_TERMS = "select place, length, terms from records where place > ? and place <= ? order by place"
# Jumps from each speaker to the next in the index, so that a space of many turns is not read completely.
_SELECT_SPEAKERS = """
    with recursive known (speaker) as (
        select min(speaker) from records where space = ?1 and speaker is not null
        union all
        select (select min(speaker) from records where space = ?1 and speaker > known.speaker) from known
        where known.speaker is not null
    )
    select speaker from known where speaker is not null"""


@dataclass(slots=True, eq=False)
class TermPostings:
    """The numbers of the items with a term, ascending, and how often each has it."""

    seqs: Places
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


def find_postings(connection: apsw.Connection, space: int, term: str) -> TermPostings:
    # For a term in thousands of items, one joined text is three times faster than a row per occurrence.
    joined = connection.execute(_SELECT_POSTINGS, (encode_term(space, term),)).get
    if not joined:
        return _NO_POSTINGS
    places, counts = np.unique(np.fromstring(str(joined), np.int64, sep=","), return_counts=True)
    return TermPostings(places & MAX_SEQ, counts.astype(np.float64))


class SqliteTermCache:
    """The lengths of a space's items, the postings of recently searched terms, and the speakers."""

    state: SpaceState | None = None
    counted_bytes = 0
    speakers: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset()

    @property
    def bytes(self) -> int:
        return self._lengths.nbytes + _POSTING_BYTES * self._cached_postings

    def get_postings(
        self, connection: apsw.Connection, state: SpaceState, terms: Sequence[str]
    ) -> tuple[list[TermPostings], FloatColumn]:
        """Return the terms' postings in the connection's snapshot, and the lengths of all items by their number."""
        return [self._get_postings(connection, state, term) for term in terms], self._lengths

    def reset(self) -> None:
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
        postings = find_postings(connection, state.id, term)
        # An older snapshot may lack postings of items that this copy has loaded.
        if state.next_seq == self._last_seq:
            self._postings_by_term[term] = postings
            self._cached_postings += len(postings.seqs) + _TERM_OVERHEAD
            while self._cached_postings > max(_MAX_POSTINGS_PER_ITEM * state.items, _MIN_CACHED_POSTINGS):
                _, evicted = self._postings_by_term.popitem(last=False)
                self._cached_postings -= len(evicted.seqs) + _TERM_OVERHEAD
        return postings

    def load_new_rows(self, connection: apsw.Connection, state: SpaceState) -> None:
        """Load the lengths of new items, and their terms if there are cached postings to keep complete."""
        # The recursive statement takes 50 µs, so its result is kept as long as the space does not change.
        self.speakers = frozenset(row[0] for row in connection.execute(_SELECT_SPEAKERS, (state.id,)))
        if state.next_seq <= self._last_seq:
            return
        after, last = encode_place(state.id, self._last_seq), encode_place(state.id, MAX_SEQ)
        self._is_complete = state.words <= _CACHE_ALL_TERMS_UP_TO
        with_terms = self._is_complete or bool(self._postings_by_term)
        rows = connection.execute(_SELECT_TERMS if with_terms else _SELECT_LENGTHS, (after, last)).fetchall()
        self._lengths = _grow(self._lengths, state.next_seq + 1)
        if rows:
            seqs = np.fromiter((row[0] for row in rows), np.int64, len(rows)) & MAX_SEQ
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
    columns: Sequence[tuple[Places, FloatColumn]]
    scores: FloatColumn
    weights: FloatColumn

    @classmethod
    def compute(cls, state: SpaceState, postings: Sequence[TermPostings], lengths: FloatColumn) -> TermScores:
        if not postings:
            return cls(state.id, (), np.empty(0), np.empty(0))
        corpus = CorpusStats(state.items, state.words / state.items)
        weights = [compute_idf(corpus, len(of_term.seqs)) for of_term in postings]
        # An array over the whole space needs no sorting to add the terms up.
        scores = np.zeros(state.next_seq + 1)
        columns = [(of_term.seqs, of_term.compute_contributions(corpus, lengths)) for of_term in postings]
        for seqs, added in columns:
            scores[seqs] += added
        return cls(state.id, columns, scores, np.array(weights, np.float64))

    def find_best(self, allowed: AllowedPlaces, limit: int) -> tuple[Places, FloatColumn]:
        """Return the allowed places with one of the terms, ascending, and their scores.

        The result contains at least the `limit` best, and all that tie with the last of them.
        """
        least = 0.0
        if not allowed.is_narrow and 0 < limit < len(self.scores):
            least = max(least, find_nth_highest(self.scores, limit) - 2.0 / SCORE_SCALE)
        seqs = np.flatnonzero(self.scores > least)
        if allowed.is_narrow:
            seqs = seqs[allowed.build_mask(seqs + encode_place(self.space, 0))]
        return seqs + encode_place(self.space, 0), self.scores[seqs]

    def compute_parts(self, places: Places) -> FloatColumn:
        """Return each term's contribution to each place: a row per term, 0 if the item lacks the term."""
        parts = np.zeros((len(self.columns), len(places)))
        wanted = places & MAX_SEQ
        for row, (seqs, added) in enumerate(self.columns):
            if len(seqs):
                at = seqs.searchsorted(wanted)
                is_found = seqs.take(at, mode="clip") == wanted
                np.multiply(added.take(at, mode="clip"), is_found, out=parts[row])
        return parts


# Vectors

# Above this, vectors are scanned as int8 codes, four times faster than float16, and the best are computed exactly.
_QUANTIZED_ABOVE_ROWS = 4096
# Above this, the float16 rows are not kept in memory, and the exact ones are read from the file.
_FLOATS_DROPPED_ABOVE_ROWS = 16_384
# Up to this, all vectors are computed exactly: scanning and selecting would cost more.
_EXACT_SCAN_ROWS = 64
_CHUNK_ROWS = 4096
_MIN_CANDIDATES = 256

# The error of a scan by the rounding of the query, and because processors sum in different widths.
_SCAN_ERROR = 2e-3
# Equal vectors have equal codes, so ties differ in the last bit at most.
_TIE_TOLERANCE = 1e-6

_SELECT_VECTORS_AFTER = build_for_each_generation(
    "select id, data from VECTORS where id > ? and id < ? order by id limit ?"
)
_SELECT_VECTORS_BY_ID = build_for_each_generation(
    "select id, data from VECTORS where id in (select value from json_each(?)) order by id"
)


class SqliteVectorMatrix:
    """The vectors of a space, one per row, ordered by their ids (`place << 6 | part`)."""

    state: SpaceState | None = None
    counted_bytes = 0

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset()

    @property
    def bytes(self) -> int:
        return self._ids.nbytes + self._rows.nbytes + self._codes.nbytes + self._scales.nbytes

    def load_new_rows(self, connection: apsw.Connection, state: SpaceState) -> None:
        first, end = get_vector_range(*get_place_range(state.id))
        after = int(self._ids[self._count - 1]) if self._count else first - 1
        for ids, rows in iterate_vectors(connection, state.generation, after, end):
            self._append(ids, rows)

    def scan(self, query: QueryVector) -> VectorScan:
        """Return approximate scores of all vectors. Raises `BadVector` if the query has another dimension."""
        assert self.state is not None
        # A reader with a newer snapshot may have added rows that this one must not see. Rows are only appended, so that
        # the slices stay valid.
        first_unseen = encode_place(self.state.id, self.state.next_seq + 1) << PART_BITS
        count = int(np.searchsorted(self._ids[: self._count], first_unseen))
        rows = None if self._count > _FLOATS_DROPPED_ABOVE_ROWS else self._rows[:count]
        max_error = _SCAN_ERROR
        if self._count > _QUANTIZED_ABOVE_ROWS:
            scores, max_error = _score_codes(query, self._codes[:count], self._scales[:count])
        elif count <= _EXACT_SCAN_ROWS:  # with equal scores every vector becomes a candidate
            scores = np.zeros(count, np.float32)
        else:
            scores = _score_rows(query, self._rows[:count])
        return VectorScan(self.state.generation, query, self._ids[:count], rows, scores, max_error, self._max_passages)

    def reset(self) -> None:
        self._count = 0
        self._max_passages = 1
        self._ids = np.empty(0, np.int64)
        self._rows: Float16Rows = np.empty((0, 0), VECTOR_DTYPE)
        self._codes: Int8Codes = np.empty((0, 0), np.int8)
        self._scales = np.empty(0, np.float32)

    def _append(self, ids: Places, rows: Float16Rows) -> None:
        before, total = self._count, self._count + len(ids)
        self._max_passages = max(self._max_passages, _get_max_passages(ids))
        self._ids = _append_rows(self._ids, before, ids)
        if total > _QUANTIZED_ABOVE_ROWS:
            if not len(self._codes):
                self._codes, self._scales = _quantize(self._rows[:before])
            codes, scales = _quantize(rows)
            self._codes = _append_rows(self._codes, before, codes)
            self._scales = _append_rows(self._scales, before, scales)
        is_small = total <= _FLOATS_DROPPED_ABOVE_ROWS
        self._rows = _append_rows(self._rows, before, rows) if is_small else np.empty((0, 0), VECTOR_DTYPE)
        self._count = total


@dataclass(frozen=True, slots=True)
class VectorScan:
    """Approximate scores of all vectors of a space for a query."""

    generation: str
    query: QueryVector
    ids: Places
    rows: Float16Rows | None
    """The vectors; None if they are not in memory."""
    rough_scores: NDArray[np.float32]
    max_error: float
    """Maximum difference between a score and the exact cosine."""
    max_passages: int
    """The most vectors of one item. So many times more candidates are taken, lest one item's passages fill them."""

    def find_best(self, connection: apsw.Connection, allowed: AllowedPlaces, limit: int) -> tuple[Places, FloatColumn]:
        """Return allowed places with their exact cosines, among them all that may be among the `limit` best."""
        ids, scores, rows = self.ids, self.rough_scores, self.rows
        if allowed.is_narrow:
            mask = allowed.build_mask(ids >> PART_BITS)
            ids, scores, rows = ids[mask], scores[mask], None if rows is None else rows[mask]
        if not len(ids):
            return np.empty(0, np.int64), np.empty(0)
        if rows is None:
            # Each candidate is read from the file, so only a fixed number of them, and their ties.
            wanted = max(4 * limit, _MIN_CANDIDATES) * self.max_passages
            ids = ids[_select_highest(scores, wanted, _TIE_TOLERANCE)]
            cosines = self._compute_dots(self._load_rows(connection, ids))
        else:
            selected = _select_highest(scores, limit * self.max_passages, self.max_error)
            ids, cosines = ids[selected], self._compute_dots(rows[selected])
        places = ids >> PART_BITS
        if self.max_passages > 1:  # of each item the best one
            places, firsts = np.unique(places, return_index=True)
            cosines = np.maximum.reduceat(cosines, firsts) if len(firsts) else cosines
        return places, cosines

    def compute_exact(self, connection: apsw.Connection, places: Places) -> FloatColumn:
        """Return the cosine of each place's best passage; NaN for a place without a vector."""
        starts = np.searchsorted(self.ids, places << PART_BITS)
        counts = np.searchsorted(self.ids, (places + 1) << PART_BITS) - starts
        cosines = np.full(len(places), np.nan)
        has_vectors = counts > 0
        if has_vectors.any():
            starts, counts = starts[has_vectors], counts[has_vectors]
            firsts = np.cumsum(counts) - counts
            is_flat = self.max_passages == 1
            at = starts if is_flat else np.repeat(starts - firsts, counts) + np.arange(int(counts.sum()))
            dots = self._compute_dots(self._load_rows(connection, self.ids[at]) if self.rows is None else self.rows[at])
            cosines[has_vectors] = dots if is_flat else np.maximum.reduceat(dots, firsts)
        return cosines

    def _load_rows(self, connection: apsw.Connection, ids: Places) -> Float16Rows:
        found = connection.execute(_SELECT_VECTORS_BY_ID[self.generation], (str(ids.tolist()),)).fetchall()
        found_ids, rows = _build_arrays(found)
        return rows[np.searchsorted(found_ids, ids)]

    def _compute_dots(self, rows: Float16Rows) -> FloatColumn:
        _check_dimension(self.query, rows)
        return rows.astype(np.float64) @ self.query.astype(np.float64)


def scan_vectors(
    cache: SpaceCache[SqliteVectorMatrix], connection: apsw.Connection, state: SpaceState, query: QueryVector
) -> VectorScan:
    """Scan all vectors of a space: in memory, or from the file if they do not fit into the cache."""
    row_bytes = 0 if state.items > _FLOATS_DROPPED_ABOVE_ROWS else VECTOR_DTYPE.itemsize
    code_bytes = 1 if state.items > _QUANTIZED_ABOVE_ROWS else 0
    if state.items * (16 + len(query) * (row_bytes + code_bytes)) <= cache.budget:  # with one passage per item
        return cache.read_fresh(connection, state, lambda matrix: matrix.scan(query))
    first, end = get_vector_range(*get_place_range(state.id))
    chunks = [(np.empty(0, np.int64), np.empty(0, np.float32))]
    for chunk_ids, rows in iterate_vectors(connection, state.generation, first - 1, end):
        chunks.append((chunk_ids, _score_rows(query, rows)))
    ids, scores = (np.concatenate(column) for column in zip(*chunks, strict=True))
    return VectorScan(state.generation, query, ids, None, scores, 0.0, _get_max_passages(ids))


def iterate_vectors(
    connection: apsw.Connection, generation: str, after: int, end: int
) -> Iterator[tuple[Places, Float16Rows]]:
    """Yield the stored vectors with ids between `after` and `end` in chunks, to bound the memory."""
    while rows := connection.execute(_SELECT_VECTORS_AFTER[generation], (after, end, _CHUNK_ROWS)).fetchall():
        ids, vectors = _build_arrays(rows)
        yield ids, vectors
        after = int(ids[-1])
        if len(rows) < _CHUNK_ROWS:
            return


def _build_arrays(rows: list[tuple[Any, ...]]) -> tuple[Places, Float16Rows]:
    ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    return ids, np.frombuffer(b"".join(row[1] for row in rows), VECTOR_DTYPE).reshape(len(rows), -1)


def _get_max_passages(ids: Places) -> int:
    return int((ids & ((1 << PART_BITS) - 1)).max(initial=0)) + 1


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
    return dots, 8.0 * spread + _SCAN_ERROR


def _quantize(rows: NDArray[np.floating]) -> tuple[Int8Codes, NDArray[np.float32]]:
    values = rows.astype(np.float32)
    scales = np.abs(values).max(axis=1, initial=0.0) / 127.0
    codes = np.rint(values / np.where(scales == 0.0, 1.0, scales)[:, np.newaxis]).astype(np.int8)
    return codes, scales.astype(np.float32)


def _grow(array: AnyArray, size: int) -> AnyArray:
    """Return the array with at least `size` rows. The capacity doubles, so that appending stays cheap."""
    if size <= len(array):
        return array
    grown = np.zeros((max(size, min(2 * len(array), len(array) + 65_536)), *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


def _append_rows(array: AnyArray, count: int, new: AnyArray) -> AnyArray:
    """Return `array` with `new` after its first `count` rows."""
    if not count:
        return new.copy()
    array = _grow(array, count + len(new))
    array[count : count + len(new)] = new
    return array


def _select_highest(scores: NDArray[np.float32], count: int, tolerance: float) -> NDArray[np.intp]:
    """Return the indexes of the `count` highest, and of all within `tolerance` of the last of them."""
    if count == 0 or count >= len(scores):
        return np.arange(min(count, len(scores)))
    return np.flatnonzero(scores >= find_nth_highest(scores, count) - tolerance)
