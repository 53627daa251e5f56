"""The words of one space in memory: who has which, and what BM25 makes of it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from recollect.stores.bm25 import Corpus, contribution, rarity
from recollect.stores.chroma.order import best_first

Floats = NDArray[np.float64]
Slots = NDArray[np.int64]

# Places of items that are gone are used up again by starting anew, which costs as much as loading them did.
_SPARE = 1_000


class Words:
    """Every item has a place, given once: an item that changes gets another, and its old place is empty."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._place: dict[str, int] = {}
        self._lengths = array("q")
        self._here = array("b")
        self._postings: dict[str, tuple[array[int], array[int]]] = {}
        self._total = 0

    def put(self, id: str, terms: Sequence[str]) -> None:
        self.drop(id)
        place = self._place[id] = len(self.ids)
        self.ids.append(id)
        self._lengths.append(len(terms))
        self._here.append(1)
        self._total += len(terms)
        for term, count in Counter(terms).items():
            places, counts = self._postings.setdefault(term, (array("q"), array("q")))
            places.append(place)
            counts.append(count)

    def drop(self, id: str) -> None:
        place = self._place.pop(id, None)
        if place is not None:
            self._here[place] = 0
            self._total -= self._lengths[place]

    @property
    def is_sparse(self) -> bool:
        """Whether most places are empty."""
        return len(self.ids) > 2 * len(self._place) + _SPARE

    def weigh(self, terms: Sequence[str]) -> Weighed:
        """What each of the terms says for each item."""
        items = len(self._place)
        corpus = Corpus(items, self._total / items if items else 0.0)
        here, lengths = np.array(self._here, np.bool_), np.array(self._lengths, np.float64)
        weights: list[float] = []
        said: list[tuple[Slots, Floats]] = []
        total = np.zeros(len(self.ids))
        for term in terms:
            places, counts = (np.array(one, np.int64) for one in self._postings.get(term, ((), ())))
            kept = here[places] if len(places) else np.zeros(0, np.bool_)
            places, counts = places[kept], counts[kept]
            weights.append(rarity(corpus, len(places)) if items else 0.0)
            parts = contribution(corpus, counts.astype(np.float64), lengths[places], weights[-1])
            total[places] += parts
            said.append((places, parts))
        return Weighed(self, total, said, tuple(weights), items)

    def places(self, ids: Sequence[str]) -> Slots:
        return np.array([self._place[id] for id in ids], np.int64)


class Weighed:
    """An answer about words, from which single items can be read."""

    def __init__(
        self, words: Words, total: Floats, said: list[tuple[Slots, Floats]], weights: tuple[float, ...], items: int
    ) -> None:
        self.total = total
        self.weights = weights
        self.items = items
        self._words = words
        self._said = said

    def best_first(self) -> Iterator[tuple[str, float]]:
        """Everybody of whom a word says something, with the sum of it."""
        found = np.flatnonzero(self.total)
        sums = self.total[found]
        for place in best_first(sums):
            yield self._words.ids[found[place]], float(sums[place])

    def parts(self, ids: Sequence[str]) -> Floats:
        """A row for each item, a column for each term."""
        table = np.zeros((len(ids), len(self._said)))
        if not ids:
            return table
        wanted = self._words.places(ids)
        for column, (places, parts) in enumerate(self._said):
            if len(places):
                at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
                table[:, column] = np.where(places[at] == wanted, parts[at], 0.0)
        return table
