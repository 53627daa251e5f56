"""Traces: keyed hashes of pieces of what was deleted, by which it can be looked for and by which nothing can be read.

A piece is 23 bytes long. It is kept as the hashes of the 16-byte windows at its first eight offsets, so that a look at
every eighth byte of a file meets one of them wherever the piece lies, and as the hash of the whole, which decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_STEP = 8
_WINDOW = 16
_ROW = _STEP + 1
PIECE = _WINDOW + _STEP - 1
MOST = 4096
"""So many pieces are looked for; of more, these are spread evenly over all."""

# One look at a file is at so many bytes, which stay in a processor's cache.
_CHUNK = 1 << 18
# A table of answers in front of the exact comparison: it is passed by one in a hundred windows.
_TABLE_BITS = 20


def pieces_of(data: bytes) -> Iterator[bytes]:
    """The beginning, the middle and the end of some bytes; nothing of what is too short to be told from chance."""
    if len(data) < PIECE:
        return
    last = len(data) - PIECE
    for start in dict.fromkeys((0, last // 2, last)):
        piece = data[start : start + PIECE]
        if len(set(piece)) > 4:  # blanks, zeros and rulers are everybody's
            yield piece


class Traces:
    """What is looked for, under one key."""

    def __init__(self, key: bytes, hashes: Hashes, of: int) -> None:
        self._key = key
        self._rows = hashes.reshape(-1, _ROW)
        self.of = of
        """How many pieces there were to begin with."""
        flat = self._rows[:, :_STEP].ravel()
        order = np.argsort(flat, kind="stable")
        self._sorted, self._order = flat[order], order
        self._table = np.zeros(1 << _TABLE_BITS, bool)
        self._table[(flat >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)] = True

    @classmethod
    def of_pieces(cls, key: bytes, pieces: Sequence[bytes]) -> Traces:
        distinct = list(dict.fromkeys(pieces))
        kept = distinct if len(distinct) <= MOST else [distinct[at * len(distinct) // MOST] for at in range(MOST)]
        windows = [piece[at : at + _WINDOW] for piece in kept for at in range(_STEP)]
        words = np.frombuffer(b"".join(windows), "<u8").reshape(-1, 2)
        short = _hashed(key, words[:, 0], words[:, 1]).reshape(-1, _STEP)
        whole = np.array([_whole(key, piece) for piece in kept], np.uint64).reshape(-1, 1)
        return cls(key, np.hstack([short, whole]).ravel(), len(distinct))

    @classmethod
    def unpacked(cls, key: bytes, packed: bytes) -> Traces:
        of = int.from_bytes(packed[:8], "little")
        return cls(key, np.frombuffer(packed[8:], "<u8").astype(np.uint64), of)

    @property
    def packed(self) -> bytes:
        return self.of.to_bytes(8, "little") + self._rows.astype("<u8").tobytes()

    def __len__(self) -> int:
        return len(self._rows)

    def plus(self, other: Traces) -> Traces:
        """Both; a piece that both have is looked for once."""
        rows = np.unique(np.concatenate([self._rows, other._rows]), axis=0)
        return Traces(self._key, rows.ravel(), self.of + other.of)

    def found_in(self, chunks: Iterable[bytes]) -> set[int]:
        """The numbers of the pieces that a stream of bytes holds."""
        found: set[int] = set()
        data = b""
        for chunk in chunks:
            data += chunk
            for start in range(0, len(data), _CHUNK):
                for piece, begins in self._look(data, start):
                    if piece not in found and self._is_whole(data, begins, piece):
                        found.add(piece)
            # What begins in one chunk may end in the next.
            data = data[max(len(data) // _STEP * _STEP - 2 * PIECE // _STEP * _STEP, 0) :]
        return found

    def _look(self, data: bytes, start: int) -> Iterator[tuple[int, int]]:
        """Pieces that may be here, each with the place where it would begin."""
        end = min(start + _CHUNK + _WINDOW, len(data)) // _STEP * _STEP
        if not len(self._sorted) or end - start < _WINDOW:
            return
        words = np.frombuffer(data, "<u8", (end - start) // _STEP, start)
        seen = _hashed(self._key, words[:-1], words[1:])
        places = np.flatnonzero(self._table[(seen >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)])
        low = np.searchsorted(self._sorted, seen[places])
        high = np.searchsorted(self._sorted, seen[places], side="right")
        for place, first, last in zip(places.tolist(), low.tolist(), high.tolist(), strict=True):
            for at in self._order[first:last].tolist():
                piece, offset = divmod(at, _STEP)
                yield piece, start + place * _STEP - offset

    def _is_whole(self, data: bytes, begins: int, piece: int) -> bool:
        """Whether it is the piece itself, and not a few words that others use too."""
        there = data[max(begins, 0) : begins + PIECE]
        return len(there) == PIECE and _whole(self._key, there) == int(self._rows[piece, _STEP])


def _whole(key: bytes, piece: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(piece, digest_size=8, key=key[:64]).digest(), "little")


def _hashed(key: bytes, first: NDArray[np.uint64], second: NDArray[np.uint64]) -> Hashes:
    """A keyed hash of pairs of words. It has to be quick; that it tells nothing to whoever lacks the key is enough."""
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
