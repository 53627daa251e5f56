"""How importance fades: towards a floor, by half in every half-life, and slower for what is used."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from recollect.values import MemoryItem

# A smaller change is not worth a write; it is made up for later, since the clock then still runs from where it was.
LEAST_CHANGE = 0.01


def faded(item: MemoryItem, half_life: timedelta, floor: float, now: datetime) -> float:
    """An item's importance at a moment. Keyed and pinned ones do not fade, and nothing falls below the floor.

    Two steps are one: what has faded from noon to one and from one to two has faded from noon to two.
    """
    span = now - fading_since(item)
    if item.key is not None or item.pinned or item.importance <= floor or span <= timedelta():
        return item.importance
    return floor + (item.importance - floor) * math.exp2(-(span / slowed(half_life, item.access_count)))


def is_worth_writing(item: MemoryItem, importance: float) -> bool:
    return abs(item.importance - importance) >= LEAST_CHANGE


def fading_since(item: MemoryItem) -> datetime:
    """Since when importance has not been looked at: the last fading, use or arrival."""
    moments = (item.created_at, item.learned_at, item.last_accessed, item.decayed_at)
    return max(moment for moment in moments if moment is not None)


def slowed(half_life: timedelta, accesses: int) -> timedelta:
    """Every doubling of use adds a half-life: 1 access two, 3 accesses three, 100 accesses nearly eight.

    Use counts for less the more of it there is, as with practice: otherwise what is in every prompt could never fade.
    """
    return half_life * (1.0 + math.log2(1 + accesses))
