"""A search, complete and checked: what a tier asks and recall answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from recollect.stores.where import Where

Mode = Literal["hybrid", "dense", "text"]


@dataclass(frozen=True, slots=True)
class Width:
    """So many are proposed by their meaning, as many by their words, and the turns within reach of each."""

    proposed: int
    reach: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is looked for, where, how much of it, and as of when."""

    text: str
    where: Where
    n: int
    min_relevance: float
    now: datetime
    """When the question is asked, or the moment it is asked about."""
    asked_at: datetime
    """When the access is counted."""
    mode: Mode = "hybrid"
    asks_again: Callable[[str], bool] | None = None
    """Which texts are the question itself: that it was asked before is no answer, and hides none."""
    width: Width | None = None
    """How many candidates are looked at; None: as the settings say."""
