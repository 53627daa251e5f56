"""The time, as an argument: nothing in Recollect reads the machine's clock but through here."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

Clock = Callable[[], datetime]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def system_clock() -> datetime:
    """The machine's time, in UTC."""
    return datetime.now(UTC)


def aware(moment: datetime) -> datetime:
    """The same moment in UTC; a naive one is taken to be UTC already."""
    if moment.tzinfo is UTC:  # as nearly all of them
        return moment
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970: how stores keep time, exactly and sortably."""
    return (aware(moment) - _EPOCH) // _MICROSECOND


@lru_cache(maxsize=8192)  # many items share the moment of one write, and are read again and again
def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
