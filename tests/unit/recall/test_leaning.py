"""Whether a question leans on its session, on a labelled list, and which messages are nothing to lean on."""

from __future__ import annotations

import pytest

from recollect.recall.leaning import A_LITTLE, ON_THE_SESSION, is_bare, leans
from tests.unit.recall.questions import LEANING, LEANING_HELD_OUT, OF_THE_WORLD, OF_THE_WORLD_HELD_OUT


@pytest.mark.parametrize("question", LEANING)
def test_who_asks_about_the_session_or_names_nothing_else_leans_on_it(question: str):
    assert leans(question) is not None


@pytest.mark.parametrize("question", OF_THE_WORLD)
def test_a_question_about_the_world_leans_on_nothing(question: str):
    assert leans(question) is None


def test_most_of_the_questions_that_the_rules_were_not_written_with_are_told_apart():
    missed = [question for question in LEANING_HELD_OUT if leans(question) is None]
    taken = [question for question in OF_THE_WORLD_HELD_OUT if leans(question) is not None]
    assert len(missed) <= 2, missed
    assert taken == []


def test_pronouns_lean_less_than_speaking_of_the_session():
    assert leans("Where were we?") == ON_THE_SESSION
    assert leans("Can you fix that?") == A_LITTLE


def test_a_very_long_question_is_read_at_both_ends():
    assert leans("lava " * 5000 + "where were we?") is not None
    assert leans("lava " * 5000) is None


@pytest.mark.parametrize(
    "said", ["Understood.", "OK.", "Thanks!", "Great, thank you very much.", "Hi!", "Hello! How can I help you today?"]
)
def test_an_acknowledgement_is_bare(said: str):
    assert is_bare(said)


@pytest.mark.parametrize(
    "said",
    ["Hi, I'm Bob.", "No, use metric units.", "OK, the port is 8080.", "Good cello.", "Noted: Porto.", "thanks " * 50],
)
def test_what_says_something_is_not(said: str):
    assert not is_bare(said)
