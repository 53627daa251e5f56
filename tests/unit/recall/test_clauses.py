"""Two questions in one: where they part, and which of them is still open."""

from __future__ import annotations

import pytest

from recollect.recall.clauses import clauses, uncovered


def test_questions_are_parted_where_each_could_stand_alone():
    both = ["Where do I live", "which units does Ada prefer"]
    assert clauses("Where do I live and which units does Ada prefer?") == both
    assert clauses("Where do I live? And which units does Ada prefer?") == both


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
def test_a_single_question_stays_whole(question: str):
    assert clauses(question) == []


def test_a_question_is_open_while_no_text_has_half_its_words():
    asked = ["Where do I live", "which units does Ada prefer"]
    assert uncovered(asked, ["Ada prefers metric units."]) == ["Where do I live"]
    assert uncovered(asked, ["Ada prefers metric units.", "I live in Lisbon."]) == []
    assert uncovered(asked, []) == asked
