"""Periods that a text names, from the day on which it was said."""

from __future__ import annotations

from datetime import date

import pytest

from recollect.language.dates import Period, find_asked_time, find_periods

TUESDAY = date(2026, 3, 17)


def day(text: str) -> Period:
    start = date.fromisoformat(text)
    return Period(start, date.fromordinal(start.toordinal() + 1))


def span(first: str, end: str) -> Period:
    return Period(date.fromisoformat(first), date.fromisoformat(end))


@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("on 2026-05-07 we met", day("2026-05-07")),
        ("it is on 9 May", day("2026-05-09")),
        ("it was on December 30th", day("2025-12-30")),
        ("Friday the 20th of March", day("2026-03-20")),
        ("Friday, 20 March 2027", day("2027-03-20")),
        ("the first of April", day("2026-04-01")),
        ("on the twenty-second of February", day("2026-02-22")),
        ("by the 20th", day("2026-03-20")),
        ("the 5th is fine", day("2026-04-05")),
        ("I saw him yesterday", day("2026-03-16")),
        ("the day after tomorrow", day("2026-03-19")),
        ("ten days ago", day("2026-03-07")),
        ("two weeks ago", span("2026-02-28", "2026-03-07")),
        ("two weeks ago today", span("2026-03-02", "2026-03-05")),
        ("in three days", day("2026-03-20")),
        ("this week", span("2026-03-16", "2026-03-23")),
        ("last weekend", span("2026-03-14", "2026-03-16")),
        ("next month", span("2026-04-01", "2026-05-01")),
        ("in June", span("2026-06-01", "2026-07-01")),
        ("the second week of February", span("2026-02-08", "2026-02-15")),
        ("the last Thursday of March", day("2026-03-26")),
        ("the week of 7 April", span("2026-04-06", "2026-04-13")),
        ("on Friday", day("2026-03-20")),
        ("last Saturday", day("2026-03-14")),
    ],
)
def test_period_is_resolved_from_the_day_of_the_text(text: str, period: Period):
    assert find_periods(text, TUESDAY) == (period,)


@pytest.mark.parametrize(
    "text",
    [
        "at 14:20",
        "14 people came",
        "it costs 30 EUR",
        "the sun was out and we sat down",
        "31 February",
        "for the 3rd time",
    ],
)
def test_other_numbers_and_words_name_no_period(text: str):
    assert not find_periods(text, TUESDAY)


def test_weekday_of_a_past_question_is_the_last_one():
    asked = find_asked_time("What did I do on Friday?", TUESDAY)
    assert asked is not None
    assert asked.periods == (day("2026-03-13"),)


def test_what_a_text_is_about_counts_more_than_when_it_was_said():
    asked = find_asked_time("What did I do on 9 March?", TUESDAY)
    assert asked is not None
    assert asked.score("we took the flowers up yesterday", date(2026, 3, 10)) == 1.0
    assert 0.0 < asked.score("The washing machine has died.", date(2026, 3, 9)) < 1.0
    assert asked.score("The washing machine has died.", date(2026, 3, 12)) == 0.0


def test_question_about_what_is_due_ignores_when_it_was_said():
    asked = find_asked_time("What is due this week?", TUESDAY)
    assert asked is not None
    assert asked.score("The audit ends on Thursday 19 March.", date(2026, 2, 1)) == 1.0
    assert asked.score("I am tired.", TUESDAY) == 0.0


def test_day_of_a_task_is_no_filter():
    assert find_asked_time("Plan Sunday lunch for both of us.", TUESDAY) is None


def test_very_long_text_is_bounded():
    assert len(find_periods("on 9 May and " * 100_000, TUESDAY)) <= 16
