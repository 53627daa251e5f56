"""Turns of a dialogue: who said an item, in which session, at which place and when, as callers happen to say it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from recollect.clock import aware
from recollect.errors import BadInput

# Metadata says the same thing under many names; the first that is there counts. The documentation names the first.
# Words that say something else as often ("name", "thread", "from") are left alone, and none of this is looked for
# unless there is a session: the date of a wedding is not when it was told.
_SESSION = ("session", "session_id", "conversation_id", "thread_id", "chat_id")
_POSITION = ("position", "turn", "turn_index", "turn_id", "message_index", "seq")
_SPEAKER = ("speaker", "role", "author", "sender")
_TIME = ("at", "time", "timestamp", "date", "datetime", "created_at", "session_date", "date_time")

_TIME_FORMS = (
    "%Y/%m/%d (%a) %H:%M",
    "%Y/%m/%d %H:%M",
    "%Y/%m/%d",
    "%I:%M %p on %d %B, %Y",
    "%d %B %Y",
    "%d %B, %Y",
    "%B %d, %Y",
)


@dataclass(frozen=True, slots=True)
class Said:
    """What is known of the dialogue an item comes from; the position may be left to the store's order."""

    session: str | None = None
    position: float | None = None
    speaker: str | None = None
    at: datetime | None = None


def said(metadata: Mapping[str, Any], given: Said) -> Said:
    """Arguments first, then metadata under its usual names; without a session there is only the time given."""
    session = _text(given.session if given.session is not None else _first(metadata, _SESSION))
    if session is None:
        return Said(at=aware(given.at) if given.at is not None else None)
    return Said(
        session=session,
        position=given.position if given.position is not None else _number(_first(metadata, _POSITION)),
        speaker=_text(given.speaker if given.speaker is not None else _first(metadata, _SPEAKER)),
        at=aware(given.at) if given.at is not None else moment(_first(metadata, _TIME)),
    )


def moment(value: Any) -> datetime | None:
    """A time as people write it in metadata; None when it is not one that we know."""
    if isinstance(value, datetime):
        return aware(value)
    if isinstance(value, int | float):
        return _from_epoch(float(value)) if _is_finite(value) else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    try:
        return aware(datetime.fromisoformat(text))
    except OverflowError:  # the year 1 or 9999, moved out of the calendar by its time zone
        return None
    except ValueError:
        pass
    for form in _TIME_FORMS:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None


def _from_epoch(seconds: float) -> datetime | None:
    """Seconds, or milliseconds when that many seconds would lie centuries ahead."""
    if seconds > 1e11:
        seconds /= 1000.0
    # Small numbers are turn numbers or years, not moments of the seventies.
    return datetime.fromtimestamp(seconds, UTC) if 3e8 < seconds < 1e11 else None


def _first(metadata: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if metadata.get(name) is not None:
            return metadata[name]
    return None


def _text(value: Any) -> str | None:
    if isinstance(value, bool) or value is None or isinstance(value, Mapping | list | tuple):
        return None
    # A name is one line, so that it cannot pose as several where it is shown.
    return " ".join(str(value).split()) or None


def _number(value: Any) -> float | None:
    return float(value) if _is_finite(value) else None


def checked_position(value: float | None) -> float | None:
    if value is not None and not _is_finite(value):
        raise BadInput(f"a position is a finite number, not {value!r:.80}")
    return None if value is None else float(value)


def _is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold; a whole number may be too large for one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
