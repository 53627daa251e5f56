"""Clock type and time conversions. All time comes from a clock argument; the default reads the system time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

Clock = Callable[[], datetime]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def system_clock() -> datetime:
    """Return the system time in UTC."""
    return datetime.now(UTC)


def to_utc(moment: datetime) -> datetime:
    """Return the time in UTC; a naive time is taken as UTC."""
    if moment.tzinfo is UTC:
        return moment
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def to_micros(moment: datetime) -> int:
    """Return the microseconds since 1970, the stored form of times."""
    return (to_utc(moment) - _EPOCH) // _MICROSECOND


@lru_cache(maxsize=8192)  # the items of a batch share a timestamp
def from_micros(micros: int) -> datetime:
    """Return the time of a stored timestamp."""
    return _EPOCH + timedelta(microseconds=micros)
