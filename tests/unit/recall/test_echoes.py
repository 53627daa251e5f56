"""What only repeats another text, and what says something of its own."""

from __future__ import annotations

import pytest

from recollect.recall.echoes import echoes, key

FACT = "Ada prefers metric units in every report."


@pytest.mark.parametrize(
    "said",
    [
        f"Based on memory: {FACT}",
        f"Based on memory: Based on memory: {FACT}",
        "Based on memory: " * 8 + FACT,
        f"As you told me earlier, {FACT} (2026-01-01)",
        f"Sure! I remember: {FACT}",
    ],
)
def test_a_quotation_with_a_frame_around_it_is_an_echo(said: str):
    assert echoes([key(said), key(FACT)]) == {0: 1}


@pytest.mark.parametrize(
    "said",
    [
        f"{FACT} But not in March.",
        "Ada prefers metric units in every report because of the auditors in Lisbon.",
        "Ada prefers metric units.",
        "Nobody knows.",
    ],
)
def test_what_adds_something_is_none(said: str):
    assert echoes([key(FACT), key(said)]) == {}


def test_a_short_expression_is_in_many_sentences():
    assert echoes([key("metric units"), key("Noted: metric units")]) == {}


def test_a_frame_that_nobody_has_heard_of_is_shown_once():
    assert key(f"Oracle speaks: Oracle speaks: {FACT}") == key(f"Oracle speaks: {FACT}")
    assert key("The cello is the best.") == "the cello is the best"


def test_an_echo_of_an_echo_stands_for_the_first():
    texts = [FACT, f"You said: {FACT}", f"I recall: You said: {FACT}"]
    assert echoes([key(text) for text in texts]) == {1: 0, 2: 0}


def test_among_many_texts_an_echo_is_found_as_it_is_among_two():
    facts = [
        f"{name} keeps the key number {number} in the hall." for number, name in enumerate("Ada Bob Cyd".split() * 9)
    ]
    said = [f"Based on memory: {fact}" for fact in facts[::3]] + ["Noted: the key number", "in the hall"]
    keys = [key(text) for text in [*said, *facts]]
    pairs = [(at, other) for at in range(len(keys)) for other in range(len(keys)) if at != other]
    assert echoes(keys) == {at: other for at, other in pairs if echoes([keys[at], keys[other]]) == {0: 1}}
    assert len(echoes(keys)) == 9
