"""Times that a question names: `on 7 May`, `in June 2023`, `two weeks ago`, and how near a memory lies to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from recollect.words import MONTHS


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` up to `end`; `every_year` when the question gave a month or a day but no year."""

    start: datetime
    end: datetime
    every_year: bool = False

    @property
    def days(self) -> float:
        return (self.end - self.start) / timedelta(days=1)


_NUMBER_OF = {name: number for number, name in enumerate(MONTHS, 1)}
_NUMBER_OF |= {name[:3]: number for number, name in enumerate(MONTHS, 1)} | {"sept": 9}
_MONTH = "|".join(sorted(_NUMBER_OF, key=len, reverse=True))
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"

# Most specific first: what one of them has taken, the next ones leave alone.
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<![\w-])(?P<year>(?:19|20)\d\d)-(?P<number>\d\d)(?:-(?P<day>\d\d))?(?![\w-])",
        rf"\b{_DAY}(?: of)? (?P<month>{_MONTH})\b\.?,?(?: (?P<year>\d{{4}})\b)?",
        rf"\b(?P<month>{_MONTH})\b\.? {_DAY}\b(?:,? (?P<year>\d{{4}})\b)?",
        rf"\b(?P<month>{_MONTH})\b\.?,? (?:of )?(?P<year>\d{{4}})\b",
        rf"\b(?:in|during|of|since|by|early|late|mid|last|this|until|before|after) (?P<month>{_MONTH})\b",
        r"\b(?:in|during|of|since|by|until|before|after|from|year|summer|winter|spring|autumn|fall|early|late|mid|for)"
        r" (?P<year>(?:19|20)\d\d)(?![\w-])",
    )
)

_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_AGO = re.compile(rf"\b(\d{{1,4}}|{'|'.join(_COUNTS)}) (day|week|month|year)s? ago\b", re.IGNORECASE)
_LAST = re.compile(r"\b(?:last|this|past) (week|month|year)\b", re.IGNORECASE)
_NEAR_DAY = re.compile(r"\b(today|yesterday)\b", re.IGNORECASE)
_DAYS_IN = {"day": 1, "week": 7, "month": 30, "year": 365}

_FADING_DAYS = 14.0

# One quick look before the careful ones: most questions name no time.
_MAY_NAME_A_TIME = re.compile(rf"\d|\b(?:ago|today|yesterday|week|month|year|{_MONTH})\b", re.IGNORECASE)


def times_named(question: str, now: datetime) -> tuple[Span, ...]:
    """Every span of time that a question names."""
    if not _MAY_NAME_A_TIME.search(question):
        return ()
    return (*_dates(question), *_relative(question, now))


def closeness(spans: tuple[Span, ...], at: datetime) -> float:
    """1 inside a named span, falling to 0 over the two weeks after it.

    People tell what happened soon after it happened, so the days after a date count and those before it do not;
    the days after a whole month are looser evidence than those after a day.
    """
    best = 0.0
    for span in spans:
        for start, end in _placed(span, at.year):
            if start <= at < end:
                return 1.0
            if at >= end and span.days <= 31:
                late = 1.0 - (at - end) / timedelta(days=_FADING_DAYS)
                best = max(best, late if span.days <= 1 else late / 2.0)
    return best


def _dates(question: str) -> Iterator[Span]:
    taken: list[tuple[int, int]] = []
    for pattern in _DATES:
        for match in pattern.finditer(question):
            if any(start < match.end() and match.start() < end for start, end in taken):
                continue
            taken.append(match.span())
            part = match.groupdict()
            month = int(part["number"]) if part.get("number") else _NUMBER_OF.get((part.get("month") or "").lower())
            span = _span(part.get("year"), month, part.get("day"))
            if span is not None:
                yield span


def _span(year: str | None, month: int | None, day: str | None) -> Span | None:
    # A leap year stands for "every year", so that 29 February can be named.
    start_year = int(year) if year is not None else 2000
    try:
        start = datetime(start_year, month or 1, int(day or 1), tzinfo=UTC)
        if day is not None:
            end = start + timedelta(days=1)
        elif month is not None:
            end = (start + timedelta(days=32)).replace(day=1)
        else:
            end = start.replace(year=start_year + 1)
    except (ValueError, OverflowError):  # the thirty-first of February, the end of the calendar
        return None
    return Span(start, end, every_year=year is None)


def _relative(question: str, now: datetime) -> Iterator[Span]:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for match in _AGO.finditer(question):
        count = _COUNTS.get(match[1].lower()) or int(match[1])
        length = _DAYS_IN[match[2].lower()]
        # "Two weeks ago" is said of ten days ago as well as of eighteen.
        yield from _before(midnight, days=count * length + length // 2, length=length)
    for match in _LAST.finditer(question):
        length = _DAYS_IN[match[1].lower()]
        yield from _before(midnight, days=length + length // 2, length=length + length // 2 + 1)
    for match in _NEAR_DAY.finditer(question):
        yield from _before(midnight, days=int(match[1].lower() == "yesterday"), length=1)


def _before(midnight: datetime, *, days: int, length: int) -> Iterator[Span]:
    try:
        start = midnight - timedelta(days=days)
    except OverflowError:  # thousands of years ago
        return
    yield Span(start, start + timedelta(days=length))


def _placed(span: Span, year: int) -> Iterator[tuple[datetime, datetime]]:
    """The span itself, or the ones of the item's year and the year before."""
    if not span.every_year:
        yield span.start, span.end
        return
    for candidate in (year, year - 1):
        shift = candidate - span.start.year
        try:
            yield span.start.replace(year=candidate), span.end.replace(year=span.end.year + shift)
        except ValueError:  # 29 February in another year
            continue
