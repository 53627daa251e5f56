"""Traces: keyed hashes of pieces of what was deleted, to look for it by; whoever has the key can try a guess, no more.

A piece is 23 bytes long. It is kept as the hashes of the 16-byte windows at its first eight offsets, so that a look at
every eighth byte of a file meets one of them wherever the piece lies, and as the hash of the whole, which decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_STEP = 8
_WINDOW = 16
_ROW = _STEP + 1
PIECE = _WINDOW + _STEP - 1
MOST = 4096
"""So many pieces are looked for; of more, these are spread evenly over all."""
KEPT = 64
"""So many are kept of an erasure that is complete, to look again: a ledger outlives everybody it tells of."""

# One look at a file is at so many bytes, which stay in a processor's cache.
_CHUNK = 1 << 18
_BITS = np.uint8(1) << np.arange(_STEP, dtype=np.uint8)
_OF_WORDS = np.concatenate([np.arange(at, at + 8) for at in (0, 8, PIECE - 8)])
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
        self._windows, which = np.unique(self._rows[:, :_STEP], return_inverse=True)
        # By window, at which offsets of a piece it stands, a bit each: hundreds of pieces may share a beginning.
        self._offsets = np.zeros(len(self._windows), np.uint8)
        np.bitwise_or.at(self._offsets, which.ravel(), np.tile(_BITS, len(self._rows)))
        self._pieces = np.argsort(self._rows[:, _STEP], kind="stable")
        self._wholes = self._rows[self._pieces, _STEP]
        self._table = np.zeros(1 << _TABLE_BITS, bool)
        self._table[_slots(self._windows)] = True

    @classmethod
    def of_pieces(cls, key: bytes, pieces: Sequence[bytes]) -> Traces:
        distinct = list(dict.fromkeys(pieces))
        kept = [distinct[at] for at in _spread(len(distinct), MOST)]
        windows = [piece[at : at + _WINDOW] for piece in kept for at in range(_STEP)]
        words = np.frombuffer(b"".join(windows), "<u8").reshape(-1, 2)
        short = _hashed(key, words[:, 0], words[:, 1]).reshape(-1, _STEP)
        whole = _wholes(key, np.frombuffer(b"".join(kept), np.uint8), np.arange(len(kept)) * PIECE)
        return cls(key, np.hstack([short, whole[:, None]]).ravel(), len(distinct))

    @classmethod
    def unpacked(cls, key: bytes, packed: bytes) -> Traces:
        of = int.from_bytes(packed[:8], "little")
        return cls(key, np.frombuffer(packed[8:], "<u8").astype(np.uint64), of)

    @property
    def packed(self) -> bytes:
        return self.of.to_bytes(8, "little") + self._rows.astype("<u8").tobytes()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def few(self) -> Traces:
        return self.only(_spread(len(self), KEPT))

    def plus(self, other: Traces) -> Traces:
        """Both; a piece that both have is looked for once."""
        rows = np.unique(np.concatenate([self._rows, other._rows]), axis=0)
        return Traces(self._key, rows.ravel(), self.of + other.of)

    def found_in(self, chunks: Iterable[bytes]) -> set[int]:
        """The numbers of the pieces that a stream of bytes holds."""
        found = np.zeros(len(self), bool)
        data = b""
        for chunk in chunks:
            data += chunk
            for start in range(0, len(data), _CHUNK):
                found[self._look(data, start)] = True
            # What begins in one chunk may end in the next.
            data = data[max(len(data) // _STEP * _STEP - 2 * PIECE // _STEP * _STEP, 0) :]
        return set(np.flatnonzero(found).tolist())

    def only(self, pieces: Collection[int]) -> Traces:
        """Some of them, numbered anew in the order of their numbers."""
        return Traces(self._key, self._rows[sorted(pieces)].ravel(), self.of)

    def _look(self, data: bytes, start: int) -> NDArray[np.int64]:
        """The pieces that are here: a window tells where one would begin, and the whole of it whether it does."""
        end = min(start + _CHUNK + _WINDOW, len(data)) // _STEP * _STEP
        if not len(self) or end - start < _WINDOW:
            return np.empty(0, np.int64)
        words = np.frombuffer(data, "<u8", (end - start) // _STEP, start)
        seen = _hashed(self._key, words[:-1], words[1:])
        places = np.flatnonzero(self._table[_slots(seen)])
        at, same = _among(self._windows, seen[places])
        places, offsets = places[same], self._offsets[at[same]]
        begins = np.concatenate(
            [start + places[offsets & bit != 0] * _STEP - offset for offset, bit in enumerate(_BITS)]
        )
        begins = begins[(begins >= 0) & (begins + PIECE <= len(data))]
        wholes = _wholes(self._key, np.frombuffer(data, np.uint8), begins)
        at, same = _among(self._wholes, wholes)
        return self._pieces[at[same]]


def _spread(count: int, most: int) -> Sequence[int]:
    """Some of so many, from all over."""
    return range(count) if count <= most else [at * count // most for at in range(most)]


def _slots(hashes: Hashes) -> NDArray[np.int64]:
    return (hashes >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)


def _among(known: Hashes, seen: Hashes) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each would stand among those that are known, which are in order, and whether it does."""
    at = np.minimum(np.searchsorted(known, seen), len(known) - 1)
    return at, known[at] == seen


def _wholes(key: bytes, data: NDArray[np.uint8], begins: NDArray[np.int64]) -> Hashes:
    """The hashes of the pieces that begin in these places, each of three words, the last of which overlaps."""
    words = data[begins[:, None] + _OF_WORDS].view("<u8")
    return _hashed(key, _hashed(key, words[:, 0], words[:, 1]), words[:, 2])


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
