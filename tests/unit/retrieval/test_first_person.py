"""Rewriting of questions about "the user" in first person."""

from __future__ import annotations

import pytest

from recollect.retrieval.query import rewrite_in_first_person


@pytest.mark.parametrize(
    ("query", "rewritten"),
    [
        ("Where does the user live?", "Where does I live?"),
        ("What is the user's name?", "What is my name?"),
        ("user's job", "my job"),
        ("What do we know about the user?", "What do we know about me?"),
        ("The user likes what?", "I likes what?"),
        ("Is the user a vegetarian?", "Is I a vegetarian?"),
    ],
)
def test_the_user_is_rewritten_in_first_person(query: str, rewritten: str):
    assert rewrite_in_first_person(query) == rewritten


@pytest.mark.parametrize(
    "query",
    [
        "Which columns has the user table?",
        "How many users are there?",
        "What is the user's id in the billing service?",
        "Where is the documentation of the user interface?",
        "Who is Ada?",
    ],
)
def test_other_questions_are_unchanged(query: str):
    assert rewrite_in_first_person(query) == query
