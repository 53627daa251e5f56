"""Questions of a model about "the user" become those that the user would ask."""

from __future__ import annotations

import pytest

from recollect.recall.person import in_first_person


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("Where does the user live?", "Where does I live?"),
        ("What is the user's name?", "What is my name?"),
        ("user's job", "my job"),
        ("What do we know about the user?", "What do we know about me?"),
        ("The user likes what?", "I likes what?"),
        ("Is the user a vegetarian?", "Is I a vegetarian?"),
    ],
)
def test_the_user_is_who_says_i(asked: str, meant: str):
    assert in_first_person(asked) == meant


@pytest.mark.parametrize(
    "asked",
    [
        "Which columns has the user table?",
        "How many users are there?",
        "What is the user's id in the billing service?",
        "Where is the documentation of the user interface?",
        "Who is Ada?",
    ],
)
def test_what_is_about_something_else_stays(asked: str):
    assert in_first_person(asked) == asked
