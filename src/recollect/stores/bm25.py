"""BM25 within one space, exactly: the same numbers from every store that can count words."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# The usual values. On LoCoMo k1 from 0.6 to 2 and b from 0.2 to 0.9 move R@10 by less than a point; a b of 0.4 lets
# an assistant's long answers win over a user's short turns.
K1 = 1.2
B = 0.75


class Corpus(NamedTuple):
    """What BM25 has to know of a space besides the postings."""

    items: int
    mean_length: float


def rarity(corpus: Corpus, holders: int) -> float:
    """The weight of a term that `holders` of the items contain; never negative, so a common word cannot hurt."""
    return math.log1p((corpus.items - holders + 0.5) / (holders + 0.5))


def contribution(
    corpus: Corpus,
    counts: NDArray[np.float64],
    lengths: NDArray[np.float64],
    weight: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    """What one term adds to the score of each item that has it; or several, with a row of counts and a weight each."""
    mean = corpus.mean_length or 1.0
    return weight * counts * (K1 + 1.0) / (counts + K1 * (1.0 - B + B * lengths / mean))
