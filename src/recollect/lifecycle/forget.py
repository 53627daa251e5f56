"""Which items may go, and why: low, unused and old, and never what is keyed, pinned or was used lately."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from recollect.settings import Settings
from recollect.values import MemoryItem

# An item that was found at least so often has earned its place.
_USED = 2
# Where the metadata of an item names the later statement that has ended it.
ENDED_BY = "ended_by"


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings by which facts age and go."""

    half_life: timedelta
    floor: float
    below: float
    after: timedelta
    grace: timedelta
    lifetime: timedelta | None
    most: int | None

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        tier = settings.tier("semantic")
        return cls(
            half_life=timedelta(days=settings.half_life_days),
            floor=settings.importance_floor,
            below=settings.forget_below,
            after=timedelta(days=settings.forget_after_days),
            grace=timedelta(seconds=settings.purge_grace_seconds),
            lifetime=None if tier.ttl_seconds is None else timedelta(seconds=tier.ttl_seconds),
            most=tier.max_items,
        )


def why_expired(item: MemoryItem, rules: Rules, now: datetime) -> str | None:
    """The reason why an item's time is up, with some grace for clocks that disagree; None when it is not."""
    if item.expires_at is not None and item.expires_at + rules.grace <= now:
        return f"expired on {item.expires_at:%Y-%m-%d}"
    if rules.lifetime is None or item.pinned or item.created_at + rules.lifetime + rules.grace > now:
        return None
    return f"older than the {_days(rules.lifetime)} that facts are kept"


def why_forgotten(item: MemoryItem, rules: Rules, now: datetime) -> str | None:
    """The reason why an item may go, by its importance as it is now; None when it has to stay."""
    if item.key is not None or item.pinned or _last_seen(item) + rules.after > now:
        return None
    if is_copy(item):
        ended = item.valid_to or item.created_at
        return f"merged into {item.superseded_by}, {_days(now - ended)} ago" if ended + rules.after <= now else None
    if item.importance >= rules.below or item.access_count >= _USED:
        return None
    unused = "never used" if item.access_count == 0 else "used once"
    return f"importance {item.importance:.2f}, {unused}, not touched for {_days(now - _last_seen(item))}"


def is_copy(item: MemoryItem) -> bool:
    """Whether an item says what another one says. What was true until something else was is history, and no copy."""
    return item.superseded_by is not None and item.key is None and item.metadata.get(ENDED_BY) != item.superseded_by


def may_be_capped(item: MemoryItem) -> bool:
    return item.key is None and not item.pinned


def _last_seen(item: MemoryItem) -> datetime:
    """When an item came or was last used: importing an old diary must not be the end of it."""
    moments = (item.created_at, item.learned_at, item.last_accessed)
    return max(moment for moment in moments if moment is not None)


def _days(span: timedelta) -> str:
    return "1 day" if span.days == 1 else f"{span.days} days"
