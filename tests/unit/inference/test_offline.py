"""Importance without a language model: lasting statements weigh more than small talk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.inference.offline import importance_of


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
def test_what_lasts_weighs_more(weighty: str, light: str):
    assert importance_of(weighty) > importance_of(light)


@given(st.text())
def test_it_is_a_fraction_and_always_the_same(text: str):
    assert 0.0 <= importance_of(text) <= 1.0
    assert importance_of(text) == importance_of(text)


def test_length_is_not_importance():
    assert importance_of("It rained. " * 10_000) == importance_of("It rained. ")
