"""Importance without a language model: lasting statements score higher than small talk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.language.importance import score_importance


@pytest.mark.parametrize(
    ("weighty", "light"),
    [
        ("Remember: never deploy on Fridays.", "We deployed something."),
        ("I am allergic to peanuts.", "I had lunch."),
        ("Actually, we moved the launch to 4 May.", "The launch is planned."),
        ("The export failed with an error at 10,000 rows.", "The export is running."),
        ("It rained in the morning.", "Thanks!"),
        ("It rained in the morning.", "ok"),
        ("The shop is open.", "Is the shop open?"),
    ],
)
def test_lasting_statement_scores_higher(weighty: str, light: str):
    assert score_importance(weighty) > score_importance(light)


@given(st.text())
def test_score_is_deterministic_and_between_0_and_1(text: str):
    assert 0.0 <= score_importance(text) <= 1.0
    assert score_importance(text) == score_importance(text)


def test_length_does_not_change_the_score():
    assert score_importance("It rained. " * 10_000) == score_importance("It rained. ")
