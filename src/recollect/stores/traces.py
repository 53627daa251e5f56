"""Keyed hashes of deleted bytes, to search files for them. The key allows to test a guess, not to read the bytes.

A piece has 23 bytes. It is stored as the hashes of the 16-byte windows at its first eight offsets and the hash of the
whole piece. A scan reads the window at every eighth byte, so it meets one of the eight wherever the piece lies; the
hash of the whole decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_STRIDE = 8
_WINDOW = 16
_HASHES_PER_PIECE = _STRIDE + 1
PIECE_BYTES = _WINDOW + _STRIDE - 1
MAX_PIECES = 4096
"""Maximum number of pieces of one deletion; a larger deletion is sampled evenly."""
KEPT_PIECES = 64
"""Number of pieces kept after an erasure is complete, for a later verification."""

# A block of this size stays in the cache of a processor.
_BLOCK_BYTES = 1 << 18
_BITS = np.uint8(1) << np.arange(_STRIDE, dtype=np.uint8)
_WORD_OFFSETS = np.concatenate([np.arange(at, at + 8) for at in (0, 8, PIECE_BYTES - 8)])
# A table of 2^20 flags rejects 99 % of the windows before the exact comparison.
_TABLE_BITS = 20


def select_pieces(data: bytes) -> Iterator[bytes]:
    """Yield the beginning, the middle and the end of `data`; nothing if it is shorter than a piece."""
    if len(data) < PIECE_BYTES:
        return
    last = len(data) - PIECE_BYTES
    for start in dict.fromkeys((0, last // 2, last)):
        piece = data[start : start + PIECE_BYTES]
        if len(set(piece)) > 4:  # blanks, zeros and rulers occur in every file
            yield piece


class DeletionTraces:
    """Pieces to search for, hashed with a key."""

    def __init__(self, key: bytes, hashes: Hashes, of: int) -> None:
        self._key = key
        self._rows = hashes.reshape(-1, _HASHES_PER_PIECE)
        self.total = of
        """Number of pieces of the deletion."""
        self._windows, which = np.unique(self._rows[:, :_STRIDE], return_inverse=True)
        # One bit per offset at which the window occurs: hundreds of pieces can share a window.
        self._offsets = np.zeros(len(self._windows), np.uint8)
        np.bitwise_or.at(self._offsets, which.ravel(), np.tile(_BITS, len(self._rows)))
        self._pieces = np.argsort(self._rows[:, _STRIDE], kind="stable")
        self._wholes = self._rows[self._pieces, _STRIDE]
        self._table = np.zeros(1 << _TABLE_BITS, bool)
        self._table[_compute_slots(self._windows)] = True

    @classmethod
    def from_pieces(cls, key: bytes, pieces: Sequence[bytes]) -> DeletionTraces:
        distinct = list(dict.fromkeys(pieces))
        sample = [distinct[index] for index in _sample_evenly(len(distinct), MAX_PIECES)]
        windows = [piece[offset : offset + _WINDOW] for piece in sample for offset in range(_STRIDE)]
        words = np.frombuffer(b"".join(windows), "<u8").reshape(-1, 2)
        short = _hash_word_pairs(key, words[:, 0], words[:, 1]).reshape(-1, _STRIDE)
        whole = _hash_pieces(key, np.frombuffer(b"".join(sample), np.uint8), np.arange(len(sample)) * PIECE_BYTES)
        return cls(key, np.hstack([short, whole[:, None]]).ravel(), len(distinct))

    @classmethod
    def from_bytes(cls, key: bytes, packed: bytes) -> DeletionTraces:
        of = int.from_bytes(packed[:8], "little")
        return cls(key, np.frombuffer(packed[8:], "<u8").astype(np.uint64), of)

    @property
    def as_bytes(self) -> bytes:
        return self.total.to_bytes(8, "little") + self._rows.astype("<u8").tobytes()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def sample(self) -> DeletionTraces:
        return self.select(_sample_evenly(len(self), KEPT_PIECES))

    def merge(self, other: DeletionTraces) -> DeletionTraces:
        """Return the union of both."""
        rows = np.unique(np.concatenate([self._rows, other._rows]), axis=0)
        return DeletionTraces(self._key, rows.ravel(), self.total + other.total)

    def find_in(self, chunks: Iterable[bytes]) -> set[int]:
        """Return the numbers of the pieces that occur in a stream of bytes."""
        found = np.zeros(len(self), bool)
        data = b""
        for chunk in chunks:
            data += chunk
            for start in range(0, len(data), _BLOCK_BYTES):
                found[self._find_in_block(data, start)] = True
            # A piece can cross the border of two chunks.
            data = data[max(len(data) // _STRIDE * _STRIDE - 2 * PIECE_BYTES // _STRIDE * _STRIDE, 0) :]
        return set(np.flatnonzero(found).tolist())

    def select(self, pieces: Collection[int]) -> DeletionTraces:
        """Return a subset of the pieces, renumbered in order."""
        return DeletionTraces(self._key, self._rows[sorted(pieces)].ravel(), self.total)

    def _find_in_block(self, data: bytes, start: int) -> NDArray[np.int64]:
        """Return the pieces in one block: a window gives the start of a candidate, and the whole hash confirms it."""
        end = min(start + _BLOCK_BYTES + _WINDOW, len(data)) // _STRIDE * _STRIDE
        if not len(self) or end - start < _WINDOW:
            return np.empty(0, np.int64)
        words = np.frombuffer(data, "<u8", (end - start) // _STRIDE, start)
        seen = _hash_word_pairs(self._key, words[:-1], words[1:])
        places = np.flatnonzero(self._table[_compute_slots(seen)])
        at, same = _find_in_sorted(self._windows, seen[places])
        places, offsets = places[same], self._offsets[at[same]]
        begins = np.concatenate(
            [start + places[offsets & bit != 0] * _STRIDE - offset for offset, bit in enumerate(_BITS)]
        )
        begins = begins[(begins >= 0) & (begins + PIECE_BYTES <= len(data))]
        wholes = _hash_pieces(self._key, np.frombuffer(data, np.uint8), begins)
        at, same = _find_in_sorted(self._wholes, wholes)
        return self._pieces[at[same]]


def _sample_evenly(count: int, most: int) -> Sequence[int]:
    """Return at most `most` indexes, spread evenly over `count`."""
    return range(count) if count <= most else [at * count // most for at in range(most)]


def _compute_slots(hashes: Hashes) -> NDArray[np.int64]:
    return (hashes >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)


def _find_in_sorted(known: Hashes, seen: Hashes) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the position of each hash in the sorted `known`, and whether it is there."""
    at = np.minimum(np.searchsorted(known, seen), len(known) - 1)
    return at, known[at] == seen


def _hash_pieces(key: bytes, data: NDArray[np.uint8], begins: NDArray[np.int64]) -> Hashes:
    """Return the hashes of the pieces at these offsets: three words each, the last one overlapping."""
    words = data[begins[:, None] + _WORD_OFFSETS].view("<u8")
    return _hash_word_pairs(key, _hash_word_pairs(key, words[:, 0], words[:, 1]), words[:, 2])


def _hash_word_pairs(key: bytes, first: NDArray[np.uint64], second: NDArray[np.uint64]) -> Hashes:
    """Return keyed hashes of pairs of words. Fast, and useless without the key; not collision-resistant."""
    a, b, c = (
        np.uint64(int.from_bytes(part, "little") | 1)
        for digest in [hashlib.sha256(b"traces" + key).digest()]
        for part in (digest[:8], digest[8:16], digest[16:24])
    )
    mixed = first.astype(np.uint64, copy=False) * a
    mixed ^= mixed >> np.uint64(31)
    mixed += second.astype(np.uint64, copy=False) * b
    mixed ^= mixed >> np.uint64(29)
    mixed *= c
    return mixed
