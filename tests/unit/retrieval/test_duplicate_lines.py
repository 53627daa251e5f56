"""Detection of echoes: lines that only repeat another text."""

from __future__ import annotations

import pytest

from recollect.retrieval.sources import build_text_key, find_echoes

FACT = "Ada prefers metric units in every report."


@pytest.mark.parametrize(
    "text",
    [
        f"Based on memory: {FACT}",
        f"Based on memory: Based on memory: {FACT}",
        "Based on memory: " * 8 + FACT,
        f"As you told me earlier, {FACT} (2026-01-01)",
        f"Sure! I remember: {FACT}",
    ],
)
def test_framed_quotation_is_an_echo(text: str):
    assert find_echoes([build_text_key(text), build_text_key(FACT)]) == {0: 1}


@pytest.mark.parametrize(
    "text",
    [
        f"{FACT} But not in March.",
        "Ada prefers metric units in every report because of the auditors in Lisbon.",
        "Ada prefers metric units.",
        "Nobody knows.",
    ],
)
def test_text_with_additional_content_is_not_an_echo(text: str):
    assert find_echoes([build_text_key(FACT), build_text_key(text)]) == {}


def test_short_expression_is_not_an_echo():
    assert find_echoes([build_text_key("metric units"), build_text_key("Noted: metric units")]) == {}


def test_repeated_unknown_frame_has_one_key():
    assert build_text_key(f"Oracle speaks: Oracle speaks: {FACT}") == build_text_key(f"Oracle speaks: {FACT}")
    assert build_text_key("The cello is the best.") == "the cello is the best"


def test_echo_of_an_echo_maps_to_the_first_text():
    texts = [FACT, f"You said: {FACT}", f"I recall: You said: {FACT}"]
    assert find_echoes([build_text_key(text) for text in texts]) == {1: 0, 2: 0}


def test_echoes_among_many_texts_equal_those_of_pairs():
    facts = [
        f"{name} keeps the key number {number} in the hall." for number, name in enumerate("Ada Bob Cyd".split() * 9)
    ]
    echoes = [f"Based on memory: {fact}" for fact in facts[::3]] + ["Noted: the key number", "in the hall"]
    keys = [build_text_key(text) for text in [*echoes, *facts]]
    pairs = [(at, other) for at in range(len(keys)) for other in range(len(keys)) if at != other]
    assert find_echoes(keys) == {at: other for at, other in pairs if find_echoes([keys[at], keys[other]]) == {0: 1}}
    assert len(find_echoes(keys)) == 9
