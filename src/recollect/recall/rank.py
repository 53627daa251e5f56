"""The order of hits: the evidence first; importance, recency and trust may only settle what is close."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from recollect.clock import to_micros
from recollect.stores.evidence import Brief

_DAY = 86_400 * 1_000_000


@dataclass(frozen=True, slots=True)
class Nudges:
    """The most that each can move a score, on a scale where finding every word of the query is 1."""

    importance: float = 0.03
    recency: float = 0.02
    distrust: float = 0.10
    half_life_days: float = 30.0


def nudge(briefs: Sequence[Brief], now: datetime, nudges: Nudges = Nudges()) -> NDArray[np.float64]:
    """What to add to each score: bounded, so that nothing buries a clear hit."""
    importance = np.array([brief.importance for brief in briefs])
    trust = np.array([brief.trust for brief in briefs])
    age = np.maximum(to_micros(now) - np.array([brief.created_at for brief in briefs], np.float64), 0.0) / _DAY
    return (
        nudges.importance * (2.0 * importance - 1.0)
        + nudges.recency * np.exp2(-age / nudges.half_life_days)
        - nudges.distrust * (1.0 - trust)
    )


class Order:
    """Best first; equal scores by newest, then by id, so that the answer is the same every time."""

    def __init__(self, briefs: Sequence[Brief]) -> None:
        self._ties = [(-brief.created_at, brief.id) for brief in briefs]

    def of(self, scores: NDArray[np.float64]) -> list[int]:
        keys = list(zip((-scores.round(9)).tolist(), self._ties, strict=True))
        return sorted(range(len(keys)), key=keys.__getitem__)
