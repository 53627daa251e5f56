"""What a ranking is worth: recall and NDCG, the fraction of the evidence rather than any of it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from statistics import fmean


def recall_at(k: int, ranking: Sequence[Hashable], wanted: AbstractSet[Hashable]) -> float:
    """The fraction of what is wanted that stands among the first k."""
    return len(wanted & set(ranking[:k])) / len(wanted)


def ndcg_at(k: int, ranking: Sequence[Hashable], wanted: AbstractSet[Hashable]) -> float:
    """Discounted gain with one point for each wanted item, against the best possible order."""
    gain = sum(1.0 / math.log2(place + 2) for place, one in enumerate(ranking[:k]) if one in wanted)
    return gain / sum(1.0 / math.log2(place + 2) for place in range(min(k, len(wanted))))


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies; nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
