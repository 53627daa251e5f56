"""Splitting of a query with two questions, and the question that no text covers."""

from __future__ import annotations

import pytest

from recollect.retrieval.query import find_uncovered, split_query


def test_independent_questions_are_split():
    both = ["Where do I live", "which units does Ada prefer"]
    assert split_query("Where do I live and which units does Ada prefer?") == both
    assert split_query("Where do I live? And which units does Ada prefer?") == both


@pytest.mark.parametrize(
    "question",
    [
        "Which units does Ada prefer?",
        "What do Ada and Bob eat?",
        "Which tool is fast and is written in Rust?",
        "Why and how?",
        "salt and pepper",
        "Who is Ada, and what does she prefer?",
        "What is A? What is the second? What is the third? What is the fourth?",
        "The log says: what failed and when it failed. " * 20,
    ],
)
def test_single_question_is_not_split(question: str):
    assert split_query(question) == []


def test_question_is_uncovered_until_a_text_has_half_its_terms():
    questions = ["Where do I live", "which units does Ada prefer"]
    assert find_uncovered(questions, ["Ada prefers metric units."]) == ["Where do I live"]
    assert find_uncovered(questions, ["Ada prefers metric units.", "I live in Lisbon."]) == []
    assert find_uncovered(questions, []) == questions
