"""One space's words in memory: how long each item is, and who holds the words that were asked for lately."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import apsw
import numpy as np
from numpy.typing import NDArray

from recollect.stores.bm25 import Corpus, contribution, rarity
from recollect.stores.sqlite import words
from recollect.stores.sqlite.cache import State
from recollect.stores.sqlite.rows import place_of, places_of, seq_of

Seqs = NDArray[np.int64]
Column = NDArray[np.float64]

# What a term takes besides its postings, counted as such: a name, two arrays and their places in the dictionary.
_OVERHEAD = 24

# A number, how often, and what that adds to a score.
_BYTES_EACH = 24

# Postings are kept while they are no more than so many to an item: more than most have words, so that of a space that
# is asked often all are, within the budget of the cache.
_KEPT_PER_ITEM = 32
_KEPT_AT_LEAST = 4096

# Of a space with so few words all are kept, so that a question with words of its own need not look for them.
_FEW_WORDS = 4096

_LENGTHS = """
    select place, length
    from records indexed by records_length
    where place > ? and place <= ?
    order by place
"""
_TERMS = "select place, length, terms from records where place > ? and place <= ? order by place"


@dataclass(slots=True, eq=False)
class Holders:
    """The items that have a term, by ascending number within their space, and how often each has it."""

    seqs: Seqs
    counts: Column
    _adds: tuple[Corpus, Column] | None = None

    def adds(self, corpus: Corpus, lengths: Column) -> Column:
        """What the term adds to the score of each; worked out again only when the corpus has changed."""
        known = self._adds
        if known is None or known[0] != corpus:
            weight = rarity(corpus, len(self.seqs))
            known = self._adds = (corpus, contribution(corpus, self.counts, lengths[self.seqs], weight))
        return known[1]

    def until(self, seq: int) -> Holders:
        """Those that a reader at an earlier moment may see."""
        if not len(self.seqs) or self.seqs[-1] <= seq:
            return self
        count = int(np.searchsorted(self.seqs, seq, side="right"))
        return Holders(self.seqs[:count], self.counts[:count])

    def extended(self, seqs: list[int], counts: list[int]) -> Holders:
        return Holders(
            np.concatenate([self.seqs, np.array(seqs, np.int64)]),
            np.concatenate([self.counts, np.array(counts, np.float64)]),
        )


_NOBODY = Holders(np.empty(0, np.int64), np.empty(0))


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """What the lexicon says about some terms; `lengths` is by number within the space."""

    holders: list[Holders]
    lengths: Column


class Lexicon:
    """Reads what was added since it was last asked, and starts again when something was changed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._state: State | None = None
        self._read = 0
        self._kept = 0
        self._lengths: Column = np.zeros(0)
        self._holders_of: OrderedDict[str, Holders] = OrderedDict()
        self._whole = False

    @property
    def bytes(self) -> int:
        return self._lengths.nbytes + _BYTES_EACH * self._kept

    def refresh(self, connection: apsw.Connection, state: State) -> None:
        if state == self._state:
            return
        if not state.extends(self._state):
            self._forget()
        if state.next_seq > self._read:
            self._read_on(connection, state)
        self._state = state

    def entries(self, connection: apsw.Connection, state: State, terms: Sequence[str]) -> Entries:
        """As of this connection's moment."""
        return Entries([self._holders(connection, state, term) for term in terms], self._lengths)

    def _holders(self, connection: apsw.Connection, state: State, term: str) -> Holders:
        known = self._holders_of.get(term)
        if known is not None:
            self._holders_of.move_to_end(term)
            return known.until(state.next_seq)
        if self._whole:
            return _NOBODY
        places, counts = words.holders(connection, state.id, term)
        found = Holders(seq_of(places), counts)
        # A reader at an earlier moment does not see all that has been read for the others.
        if state.next_seq == self._read:
            self._keep(term, found, state.items)
        return found

    def _keep(self, term: str, holders: Holders, items: int) -> None:
        self._holders_of[term] = holders
        self._kept += len(holders.seqs) + _OVERHEAD
        while self._kept > max(_KEPT_PER_ITEM * items, _KEPT_AT_LEAST):
            _, dropped = self._holders_of.popitem(last=False)
            self._kept -= len(dropped.seqs) + _OVERHEAD

    def _read_on(self, connection: apsw.Connection, state: State) -> None:
        """Take in the items from where we stopped; their words too, if there are postings to keep complete."""
        _, last = places_of(state.id)
        after = place_of(state.id, self._read)
        self._whole = state.words <= _FEW_WORDS
        with_words = self._whole or bool(self._holders_of)
        rows = connection.execute(_TERMS if with_words else _LENGTHS, (after, last)).fetchall()
        if state.next_seq >= len(self._lengths):
            room = np.zeros(max(state.next_seq + 1, min(2 * len(self._lengths), len(self._lengths) + 65_536)))
            room[: len(self._lengths)] = self._lengths
            self._lengths = room
        if rows:
            seqs = seq_of(np.fromiter((row[0] for row in rows), np.int64, len(rows)))
            self._lengths[seqs] = np.fromiter((row[1] for row in rows), np.float64, len(rows))
            if with_words:
                self._extend(seqs.tolist(), [str(row[2]) for row in rows])
        self._read = state.next_seq

    def _extend(self, seqs: list[int], texts: list[str]) -> None:
        added: dict[str, tuple[list[int], list[int]]] = {}
        for seq, text in zip(seqs, texts, strict=True):
            for term, count in Counter(text.split()).items():
                if self._whole or term in self._holders_of:
                    of_term = added.setdefault(term, ([], []))
                    of_term[0].append(seq)
                    of_term[1].append(count)
        for term, columns in added.items():
            known = self._holders_of.get(term)
            self._holders_of[term] = (known or _NOBODY).extended(*columns)
            self._kept += len(columns[0]) + (0 if known else _OVERHEAD)

    def _forget(self) -> None:
        self._read = 0
        self._kept = 0
        self._lengths = np.zeros(0)
        self._holders_of.clear()
        self._whole = False
