"""References to the session in questions, on a labelled list, and small talk."""

from __future__ import annotations

import pytest

from recollect.retrieval.query import STRONG_REFERENCE, WEAK_REFERENCE, find_session_reference, is_small_talk
from tests.unit.retrieval.questions import (
    GENERAL_QUESTIONS,
    GENERAL_QUESTIONS_HELD_OUT,
    SESSION_QUESTIONS,
    SESSION_QUESTIONS_HELD_OUT,
)


@pytest.mark.parametrize("question", SESSION_QUESTIONS)
def test_question_about_the_session_is_a_reference(question: str):
    assert find_session_reference(question) is not None


@pytest.mark.parametrize("question", GENERAL_QUESTIONS)
def test_general_question_is_not_a_reference(question: str):
    assert find_session_reference(question) is None


def test_held_out_questions_are_classified():
    missed = [question for question in SESSION_QUESTIONS_HELD_OUT if find_session_reference(question) is None]
    mistaken = [question for question in GENERAL_QUESTIONS_HELD_OUT if find_session_reference(question) is not None]
    assert len(missed) <= 2, missed
    assert mistaken == []


def test_pronouns_are_a_weaker_reference_than_the_session():
    assert find_session_reference("Where were we?") == STRONG_REFERENCE
    assert find_session_reference("Can you fix that?") == WEAK_REFERENCE


def test_very_long_question_is_read_at_both_ends():
    assert find_session_reference("lava " * 5000 + "where were we?") is not None
    assert find_session_reference("lava " * 5000) is None


@pytest.mark.parametrize(
    "message",
    ["Understood.", "OK.", "Thanks!", "Great, thank you very much.", "Hi!", "Hello! How can I help you today?"],
)
def test_acknowledgement_is_small_talk(message: str):
    assert is_small_talk(message)


@pytest.mark.parametrize(
    "message",
    ["Hi, I'm Bob.", "No, use metric units.", "OK, the port is 8080.", "Good cello.", "Noted: Porto.", "thanks " * 50],
)
def test_message_with_content_is_not_small_talk(message: str):
    assert not is_small_talk(message)
