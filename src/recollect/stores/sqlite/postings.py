"""What the words of a question say for the items of a space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recollect.stores.bm25 import Corpus, rarity
from recollect.stores.evidence import SCORE_STEPS
from recollect.stores.sqlite.cache import State
from recollect.stores.sqlite.highest import nth_highest
from recollect.stores.sqlite.lexicon import Column, Entries, Holders
from recollect.stores.sqlite.matrix import Allowed
from recollect.stores.sqlite.rows import place_of, seq_of

NO_ENTRIES = Entries([], np.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """The score of every item, by number within the space, and what each term adds to it."""

    space: int
    holders: Sequence[Holders]
    added: Sequence[Column]
    scores: Column
    weights: Column

    @classmethod
    def of(cls, state: State, entries: Entries) -> Postings:
        corpus = Corpus(state.items, state.words / state.items)
        weights = [rarity(corpus, len(holders.seqs)) for holders in entries.holders]
        # By number, in one array over the space: adding terms up needs no sorting, and most of it is one copy.
        scores = np.zeros(state.next_seq + 1)
        added = []
        for holders in entries.holders:
            adds = holders.adds(corpus, entries.lengths)
            scores[holders.seqs] += adds
            added.append(adds)
        return cls(state.id, entries.holders, added, scores, np.array(weights, np.float64))

    def best(self, allowed: Allowed, limit: int) -> tuple[NDArray[np.int64], Column]:
        """Places that have one of the terms and that a filter lets through, ascending, with their scores.

        All that may be among the `limit` best are there, with those that tie with the last of them.
        """
        if allowed.narrows:
            places, scores = self._at(np.flatnonzero(self.scores))
            mask = allowed.mask(places)
            return places[mask], scores[mask]
        least = nth_highest(self.scores, limit) - 2.0 / SCORE_STEPS if 0 < limit < len(self.scores) else 0.0
        return self._at(np.flatnonzero(self.scores > max(least, 0.0)))

    def _at(self, seqs: NDArray[np.intp]) -> tuple[NDArray[np.int64], Column]:
        return seqs + place_of(self.space, 0), self.scores[seqs]

    def parts(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """What each term says for each place, a row for each term; nothing where it has none of them."""
        parts = np.zeros((len(self.holders), len(places)))
        seqs = seq_of(places)
        for row, (holders, adds) in enumerate(zip(self.holders, self.added, strict=True)):
            if len(holders.seqs):
                at = holders.seqs.searchsorted(seqs)
                has = holders.seqs.take(at, mode="clip") == seqs
                np.multiply(adds.take(at, mode="clip"), has, out=parts[row])
        return parts
