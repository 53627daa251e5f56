"""Dates and periods that a text names, worked out from the day on which it was said."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache

from recollect.language.analysis import MONTHS

_DAY = timedelta(days=1)
_WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Period:
    """The days from `start` up to `end`."""

    start: date
    end: date

    def overlaps(self, other: Period) -> bool:
        return self.start < other.end and other.start < self.end

    def widen(self, before: int, after: int) -> Period:
        """Return the period with a margin in days."""
        return Period(self.start - timedelta(days=before), self.end + timedelta(days=after))


_WEEKDAYS = {name: at for at, name in enumerate("monday tuesday wednesday thursday friday saturday sunday".split())}
_WEEKDAYS |= {name[:3]: at for name, at in _WEEKDAYS.items()}
_WEEKDAYS |= {"tues": 1, "weds": 2, "thur": 3, "thurs": 3}
_MONTH_NUMBERS = {name.lower(): at for at, name in enumerate(MONTHS, 1)}
_MONTH_NUMBERS |= {name[:3]: at for name, at in _MONTH_NUMBERS.items()} | {"sept": 9}
_ORDINAL_NAMES = """
    first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth
    sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third twenty-fourth
    twenty-fifth twenty-sixth twenty-seventh twenty-eighth twenty-ninth thirtieth thirty-first"""
_ORDINALS = {name: at for at, name in enumerate(_ORDINAL_NAMES.split(), 1)}
_NUMBERS = {
    name: at for at, name in enumerate("one two three four five six seven eight nine ten eleven twelve".split(), 1)
} | {"a": 1, "an": 1, "couple of": 2, "a couple of": 2, "few": 3, "a few": 3}
_UNIT_DAYS = {"day": 1, "night": 1, "week": 7, "fortnight": 14, "month": 30, "year": 365}


def _any(names: dict[str, int]) -> str:
    return "|".join(sorted(names, key=len, reverse=True))


_MONTH, _WEEKDAY, _ORDINAL, _NUMBER = map(_any, (_MONTH_NUMBERS, _WEEKDAYS, _ORDINALS, _NUMBERS))
_DAY_NUMBER = rf"(?P<day>(?<![\d:.,£$€])(?:[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?(?![\d:%]|[.,]\d)|\b(?:{_ORDINAL}))"
# A weekday before a date belongs to it.
_WITH_WEEKDAY = rf"(?:\b(?:{_WEEKDAY}),? (?:the )?)?"
_YEAR = r"(?:,? (?P<year>(?:19|20)\d\d))?"

# A fast check, because most texts name no time.
_HINT = re.compile(
    rf"\d|\b(?:{_WEEKDAY}|{_MONTH}|today|tonight|yesterday|tomorrow|ago|days?|weekend|week|month|year|fortnight|morning|"
    rf"evening|afternoon|night)\b",
    re.IGNORECASE,
)
_MAX_CHARACTERS = 4000
_MAX_PERIODS = 16


def find_periods(text: str, said_on: date, *, is_past: bool = False) -> tuple[Period, ...]:
    """Return the periods that a text names. A bare weekday is the next one; with `is_past`, the last one."""
    if not _HINT.search(text, 0, _MAX_CHARACTERS):
        return ()
    return _find_periods(text[:_MAX_CHARACTERS], said_on, is_past)


@lru_cache(maxsize=8192)
def _find_periods(text: str, said_on: date, is_past: bool) -> tuple[Period, ...]:
    taken: list[tuple[int, int]] = []
    found: dict[Period, None] = {}
    for pattern, resolve in _RULES:
        for match in pattern.finditer(text):
            if any(start < match.end() and match.start() < end for start, end in taken):
                continue
            try:
                period = resolve(match, said_on, is_past)
            except (ValueError, OverflowError):  # for example, 31 February
                continue
            if period is not None:
                taken.append(match.span())
                found[period] = None
    return tuple(found)[:_MAX_PERIODS]


def _build_day(day: date) -> Period:
    return Period(day, day + _DAY)


def _build_month(year: int, month: int) -> Period:
    start = date(year, month, 1)
    return Period(start, (start + timedelta(days=32)).replace(day=1))


def _start_week(day: date) -> date:
    return day - timedelta(days=day.weekday())


def _parse_day(text: str) -> int:
    return _ORDINALS.get(text.lower()) or int(re.sub(r"\D", "", text))


def _find_nearest_year(said_on: date, month: int, day: int = 15) -> int:
    """Return the year in which a date is closest to the day on which it was said."""

    def measure(year: int) -> float:
        try:
            return abs((date(year, month, day) - said_on).days)
        except ValueError:
            return float("inf")

    return min((said_on.year - 1, said_on.year, said_on.year + 1), key=measure)


def _resolve_date(match: re.Match[str], said_on: date, _: bool) -> Period:
    month, day = _MONTH_NUMBERS[match["month"].lower()], _parse_day(match["day"])
    year = int(match["year"]) if match["year"] else _find_nearest_year(said_on, month, day)
    return _build_day(date(year, month, day))


def _resolve_iso_date(match: re.Match[str], *_: object) -> Period:
    if match["day"]:
        return _build_day(date(int(match["year"]), int(match["month"]), int(match["day"])))
    return _build_month(int(match["year"]), int(match["month"]))


def _resolve_week_of(match: re.Match[str], said_on: date, is_past: bool) -> Period:
    start = _start_week(_resolve_date(match, said_on, is_past).start)
    return Period(start, start + _WEEK)


def _resolve_week_of_month(match: re.Match[str], said_on: date, _: bool) -> Period:
    month = _MONTH_NUMBERS[match["month"].lower()]
    number = 5 if match["nth"].lower() == "last" else _ORDINALS[match["nth"].lower()]
    whole = _build_month(_find_nearest_year(said_on, month), month)
    start = whole.end - _WEEK if number >= 5 else whole.start + (number - 1) * _WEEK
    return Period(start, start + _WEEK)


def _resolve_weekday_of_month(match: re.Match[str], said_on: date, _: bool) -> Period:
    month, nth = _MONTH_NUMBERS[match["month"].lower()], match["nth"].lower()
    weekday, days = (5, 2) if match["weekday"].lower() == "weekend" else (_WEEKDAYS[match["weekday"].lower()], 1)
    whole = _build_month(_find_nearest_year(said_on, month), month)
    if nth == "last":
        start = whole.end - _WEEK + timedelta(days=(weekday - whole.end.weekday()) % 7)
    else:
        start = whole.start + timedelta(days=(weekday - whole.start.weekday()) % 7) + (_ORDINALS[nth] - 1) * _WEEK
    return Period(start, start + timedelta(days=days))


def _resolve_month(match: re.Match[str], said_on: date, _: bool) -> Period:
    month = _MONTH_NUMBERS[match["month"].lower()]
    return _build_month(int(match["year"]) if match["year"] else _find_nearest_year(said_on, month), month)


def _resolve_ago(match: re.Match[str], said_on: date, _: bool) -> Period:
    number, unit = match["number"].lower(), match["unit"].lower()
    count = _NUMBERS.get(number) or int(number)
    day = said_on - timedelta(days=count * _UNIT_DAYS[unit])
    slack = 0 if unit in ("day", "night") else 3 if unit in ("week", "fortnight") else 15 * min(count, 12)
    slack = min(slack, 1) if match["exact"] else slack
    return _build_day(day).widen(slack, slack)


def _resolve_in(match: re.Match[str], said_on: date, _: bool) -> Period:
    number, unit = match["number"].lower(), match["unit"].lower()
    count = _NUMBERS.get(number) or int(number)
    day = said_on + timedelta(days=count * _UNIT_DAYS[unit])
    slack = {"day": 0, "night": 0, "week": 3, "fortnight": 3}.get(unit, 15)
    return _build_day(day).widen(slack, slack)


_RELATIVE_DAYS = {
    "the day before yesterday": -2, "yesterday": -1, "last night": -1, "today": 0, "tonight": 0, "this morning": 0,
    "this afternoon": 0, "this evening": 0, "tomorrow": 1, "the day after tomorrow": 2,
}  # fmt: skip


def _resolve_relative_day(match: re.Match[str], said_on: date, _: bool) -> Period:
    return _build_day(said_on + timedelta(days=_RELATIVE_DAYS[match[0].lower()]))


def _resolve_relative_period(match: re.Match[str], said_on: date, _: bool) -> Period:
    step = {"last": -1, "past": -1, "previous": -1, "this": 0, "next": 1, "coming": 1}[match["which"].lower()]
    match match["unit"].lower():
        case "week":
            start = _start_week(said_on) + step * _WEEK
            return Period(start, start + _WEEK)
        case "weekend":
            start = _start_week(said_on) + step * _WEEK + timedelta(days=5)
            return Period(start, start + timedelta(days=2))
        case "month":
            month = said_on.year * 12 + said_on.month - 1 + step
            return _build_month(month // 12, month % 12 + 1)
        case _:
            return Period(date(said_on.year + step, 1, 1), date(said_on.year + step + 1, 1, 1))


def _resolve_weekday(match: re.Match[str], said_on: date, is_past: bool) -> Period | None:
    which, weekday = (match["which"] or "").lower(), _WEEKDAYS[match["weekday"].lower()]
    if match["weekday"].lower() in ("sat", "sun", "mon", "wed", "fri") and match["weekday"][0].islower() and not which:
        return None  # "sat down", "the sun"
    ahead = (weekday - said_on.weekday()) % 7
    if which in ("last", "past") or (is_past and not which):
        return _build_day(said_on - timedelta(days=(7 - ahead) or 7))
    if which == "next":
        return Period(said_on + timedelta(days=ahead or 7), said_on + timedelta(days=(ahead or 7) + 8))
    return _build_day(said_on + timedelta(days=ahead))


def _resolve_day_number(match: re.Match[str], said_on: date, is_past: bool) -> Period:
    day = _parse_day(match["day"])
    month = said_on.replace(day=1)
    for _ in range(3):
        try:
            found = month.replace(day=day)
        except ValueError:
            found = None
        if found is not None and (found <= said_on if is_past else found >= said_on):
            return _build_day(found)
        month = (month - _DAY).replace(day=1) if is_past else (month + timedelta(days=32)).replace(day=1)
    raise ValueError(day)


_Resolve = Callable[[re.Match[str], date, bool], Period | None]

_UNIT = "(?P<unit>day|night|week|fortnight|month|year)s?"
_COUNT = rf"(?P<number>\d{{1,3}}|{_NUMBER})"
_OF_MONTH = rf"(?: of)? (?P<month>{_MONTH})\b\.?{_YEAR}"
_NTH = rf"\b(?P<nth>{_ORDINAL}|last)"
_BEFORE_MONTH = "in|during|of|since|by|until|till|before|after|early|late|mid|this|last|next"
# In "the first time" and "the 5th of", the number is not that of a day alone.
_NOT_A_DAY = "(?! (?:time|one|week|day|half|of|thing|two|three))"
_DAY_OF_MONTH = rf"(?P<day>(?:[12]\d|3[01]|[1-9])(?:st|nd|rd|th)|{_ORDINAL})"

# Most specific first; a match is not matched again by later patterns.
_RULES: tuple[tuple[re.Pattern[str], _Resolve], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), resolve)
    for pattern, resolve in (
        (r"(?<![\w-])(?P<year>(?:19|20)\d\d)-(?P<month>\d\d)(?:-(?P<day>\d\d))?(?![\w-])", _resolve_iso_date),
        (rf"\bweek (?:of|from|starting) (?:the )?{_DAY_NUMBER}{_OF_MONTH}", _resolve_week_of),
        (rf"{_NTH} week (?:of|in) (?P<month>{_MONTH})\b", _resolve_week_of_month),
        (rf"{_NTH} (?P<weekday>{_WEEKDAY}|weekend) (?:of|in) (?P<month>{_MONTH})\b", _resolve_weekday_of_month),
        (rf"{_WITH_WEEKDAY}{_DAY_NUMBER}{_OF_MONTH}", _resolve_date),
        (rf"{_WITH_WEEKDAY}\b(?P<month>{_MONTH})\b\.? (?:the )?{_DAY_NUMBER}{_YEAR}", _resolve_date),
        (rf"\b{_COUNT} {_UNIT} ago(?P<exact> today)?\b", _resolve_ago),
        (rf"\bin {_COUNT} {_UNIT}\b", _resolve_in),
        ("|".join(rf"\b{name}\b" for name in _RELATIVE_DAYS), _resolve_relative_day),
        (
            r"\b(?P<which>last|past|previous|this|next|coming) (?P<unit>weekend|week|month|year)\b",
            _resolve_relative_period,
        ),
        (rf"{_WITH_WEEKDAY}\bthe {_DAY_OF_MONTH}\b{_NOT_A_DAY}", _resolve_day_number),
        (rf"\b(?P<which>last|past|this|next|coming)? ?\b(?P<weekday>{_WEEKDAY})\b", _resolve_weekday),
        (rf"\b(?:{_BEFORE_MONTH}) (?P<month>{_MONTH})\b{_YEAR}", _resolve_month),
        (rf"\b(?P<month>{_MONTH}) (?P<year>(?:19|20)\d\d)\b", _resolve_month),
    )
)

_IS_QUESTION = re.compile(
    r"\?\s*$|^\W*(?:what|when|where|who|whom|whose|which|how|did|do|does|am|is|are|was|were|have|has)\b", re.IGNORECASE
)
_ABOUT_FUTURE = re.compile(
    r"\b(?:due|coming up|upcoming|calendar|appointments?|have to|need to|scheduled?|planned|plans?|deadlines?|"
    r"happening|what's on|what is on|on for|still to do|to do|ahead|will|going to)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class AskedTime:
    """The periods that a question names, and whether it asks about what lies ahead of them."""

    periods: tuple[Period, ...]
    is_about_future: bool

    def score(self, text: str, said_on: date) -> float:
        """Return how well a text fits, from 0 to 1: what it is about counts more than when it was said."""
        about = find_periods(text, said_on)
        if any(period.overlaps(asked) for asked in self.periods for period in about):
            return 1.0
        if self.is_about_future:
            return 0.0
        said = _build_day(said_on)
        if any(said.overlaps(asked) for asked in self.periods):
            return 0.9
        return 0.4 if any(said.overlaps(asked.widen(0, 1)) for asked in self.periods) else 0.0


def find_asked_time(question: str, asked_on: date) -> AskedTime | None:
    """Return the time that a question asks about; None if it names none."""
    if not _IS_QUESTION.search(question):  # the day of a task is not when its facts were said
        return None
    ahead = bool(_ABOUT_FUTURE.search(question))
    periods = find_periods(question, asked_on, is_past=not ahead)
    if not periods:
        return None
    return AskedTime(periods, ahead or all(period.start > asked_on for period in periods))
