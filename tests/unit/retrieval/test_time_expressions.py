"""Times in questions, and the closeness of a memory to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from recollect.retrieval.time_expressions import find_times, score_closeness

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def closeness(question: str, at: datetime) -> float:
    return score_closeness(find_times(question, NOW), at)


@pytest.mark.parametrize(
    ("question", "inside"),
    [
        ("What happened on 7 May 2023?", datetime(2023, 5, 7, 9, tzinfo=UTC)),
        ("What happened on May 7th, 2023?", datetime(2023, 5, 7, 9, tzinfo=UTC)),
        ("the trip of 2023-05-07", datetime(2023, 5, 7, 9, tzinfo=UTC)),
        ("Where was she in June 2022?", datetime(2022, 6, 30, 23, tzinfo=UTC)),
        ("Where was she in June?", datetime(2021, 6, 2, tzinfo=UTC)),
        ("Whom did I meet on the 29th of February?", datetime(2024, 2, 29, 8, tzinfo=UTC)),
        ("the plans for 2024", datetime(2024, 8, 1, tzinfo=UTC)),
        ("What did I buy two weeks ago?", NOW - timedelta(days=14)),
        ("What did I eat yesterday?", NOW - timedelta(days=1)),
        ("last month's invoice", NOW - timedelta(days=25)),
    ],
)
def test_memory_of_the_named_time_is_inside(question: str, inside: datetime):
    assert closeness(question, inside) == 1.0


@pytest.mark.parametrize(
    ("question", "outside"),
    [
        ("What happened on 7 May 2023?", datetime(2023, 5, 6, tzinfo=UTC)),
        ("What happened on 7 May 2023?", datetime(2022, 5, 7, tzinfo=UTC)),
        ("Where was she in June 2022?", datetime(2022, 5, 31, tzinfo=UTC)),
        ("What did I eat yesterday?", NOW - timedelta(days=3)),
        ("May I come in?", NOW),
        ("What is the capital of France?", NOW),
    ],
)
def test_memory_of_another_time_is_outside(question: str, outside: datetime):
    assert closeness(question, outside) == 0.0


def test_closeness_fades_in_the_days_after():
    values = [closeness("What happened on 7 May 2023?", datetime(2023, 5, day, tzinfo=UTC)) for day in (7, 9, 14, 30)]
    assert values[0] == 1.0 > values[1] > values[2] > values[3] == 0.0


@pytest.mark.parametrize(
    "question",
    ["on 31 February 2023", "on 31 December 9999", "in December 9999", "in 0000", "9999 years ago", "on 2023-13-45"],
)
def test_impossible_time_is_ignored(question: str):
    assert closeness(question, NOW) == 0.0
