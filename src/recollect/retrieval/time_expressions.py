"""Time expressions of a query, such as `on 7 May`, `in June 2023` and `two weeks ago`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from recollect.language.analysis import MONTHS


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The time from `start` up to `end`; `is_yearly` if the query gives a month or a day without a year."""

    start: datetime
    end: datetime
    is_yearly: bool = False


_MONTH_NUMBERS = {name: number for number, name in enumerate(MONTHS, 1)}
_MONTH_NUMBERS |= {name[:3]: number for number, name in enumerate(MONTHS, 1)} | {"sept": 9}
_MONTH = "|".join(sorted(_MONTH_NUMBERS, key=len, reverse=True))
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"

# Most specific first; a match is not matched again by later patterns.
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

_COUNT_WORDS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_AGO = re.compile(rf"\b(\d{{1,4}}|{'|'.join(_COUNT_WORDS)}) (day|week|month|year)s? ago\b", re.IGNORECASE)
_LAST_PERIOD = re.compile(r"\b(?:last|this|past) (week|month|year)\b", re.IGNORECASE)
_TODAY_OR_YESTERDAY = re.compile(r"\b(today|yesterday)\b", re.IGNORECASE)
_DAYS_PER_UNIT = {"day": 1, "week": 7, "month": 30, "year": 365}

_FADING_DAYS = 14.0

# A fast check, because most queries name no time.
_TIME_HINT = re.compile(rf"\d|\b(?:ago|today|yesterday|week|month|year|{_MONTH})\b", re.IGNORECASE)


def find_times(question: str, now: datetime) -> tuple[TimeSpan, ...]:
    """Return all spans of time that a query names."""
    if not _TIME_HINT.search(question):
        return ()
    return (*_find_dates(question), *_find_relative_times(question, now))


def score_closeness(spans: tuple[TimeSpan, ...], at: datetime) -> float:
    """Return 1 for a time in a span, 0 before it, and less than 1 after it.

    People report events soon after they happen. After a span of one day the score falls from 1 to 0 over two weeks,
    after one of up to 31 days from 0.5 to 0. After a longer span it is 0.
    """
    best = 0.0
    for span in spans:
        days = (span.end - span.start) / timedelta(days=1)
        for start, end in _resolve_span(span, at.year):
            if start <= at < end:
                return 1.0
            if at >= end and days <= 31:
                late = 1.0 - (at - end) / timedelta(days=_FADING_DAYS)
                best = max(best, late if days <= 1 else late / 2.0)
    return best


def _find_dates(question: str) -> Iterator[TimeSpan]:
    taken: list[tuple[int, int]] = []
    for pattern in _DATES:
        for match in pattern.finditer(question):
            if any(start < match.end() and match.start() < end for start, end in taken):
                continue
            taken.append(match.span())
            part = match.groupdict()
            month = int(part["number"]) if part.get("number") else _MONTH_NUMBERS.get((part.get("month") or "").lower())
            span = _build_span(part.get("year"), month, part.get("day"))
            if span is not None:
                yield span


def _build_span(year: str | None, month: int | None, day: str | None) -> TimeSpan | None:
    # The year 2000 stands for "every year", because it has a 29 February.
    start_year = int(year) if year is not None else 2000
    try:
        start = datetime(start_year, month or 1, int(day or 1), tzinfo=UTC)
        if day is not None:
            end = start + timedelta(days=1)
        elif month is not None:
            end = (start + timedelta(days=32)).replace(day=1)
        else:
            end = start.replace(year=start_year + 1)
    except (ValueError, OverflowError):  # for example, 31 February
        return None
    return TimeSpan(start, end, is_yearly=year is None)


def _find_relative_times(question: str, now: datetime) -> Iterator[TimeSpan]:
    periods: list[tuple[int, int]] = []  # days ago, and length in days
    for match in _AGO.finditer(question):
        count = _COUNT_WORDS.get(match[1].lower()) or int(match[1])
        length = _DAYS_PER_UNIT[match[2].lower()]
        periods.append((count * length + length // 2, length))  # "two weeks ago" means 10 to 18 days ago
    for match in _LAST_PERIOD.finditer(question):
        length = _DAYS_PER_UNIT[match[1].lower()]
        periods.append((length + length // 2, length + length // 2 + 1))
    for match in _TODAY_OR_YESTERDAY.finditer(question):
        periods.append((int(match[1].lower() == "yesterday"), 1))
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for days, length in periods:
        with suppress(OverflowError):  # before year 1
            start = midnight - timedelta(days=days)
            yield TimeSpan(start, start + timedelta(days=length))


def _resolve_span(span: TimeSpan, year: int) -> Iterator[tuple[datetime, datetime]]:
    """Return the span; for a yearly span, those of the item's year and the year before."""
    if not span.is_yearly:
        yield span.start, span.end
        return
    for candidate in (year, year - 1):
        shift = candidate - span.start.year
        try:
            yield span.start.replace(year=candidate), span.end.replace(year=span.end.year + shift)
        except ValueError:  # 29 February in another year
            continue
