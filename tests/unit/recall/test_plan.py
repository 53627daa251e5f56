"""A plan says what a question looks for, and takes the names of speakers out of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.recall import plan as planning
from recollect.recall.plan import forget, plan
from recollect.words import analyse
from tests.unit.recall.scene import NOW


def planned(query: str, *speakers: str):
    return plan(query, speakers, NOW)


def test_the_words_that_matter_come_once_and_stemmed():
    assert planned("When were the dogs running? Running dogs!").terms == ("dog", "run")


def test_a_named_speaker_is_known_and_not_searched_for():
    asked = planned("Where did Caroline's brother go camping?", "Caroline", "Melanie")
    assert asked.named == {"Caroline"}
    assert "carolin" not in asked.terms
    assert "Caroline" not in asked.embedded
    assert {"brother", "camp"} <= set(asked.terms)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("what did caroline say", {"Caroline Smith"}),
        ("what did Caroline Smith say", {"Caroline Smith"}),
        ("what did Carol say", set()),
        ("what did Al say", {"Al"}),
        ("also all", set()),
        ("did Caroline’s boat sink", {"Caroline Smith"}),
        ("is (bob) there?", {"(bob)"}),
    ],
)
def test_names_are_whole_words(query: str, named: set[str]):
    assert planned(query, "Caroline Smith", "Al", "(bob)").named == named


def test_a_question_that_is_only_a_name_is_about_the_name():
    asked = planned("Caroline?", "Caroline")
    assert asked.named == {"Caroline"}
    assert "Caroline" in asked.embedded


@pytest.mark.parametrize(
    ("query", "role"),
    [
        ("What did I say about my knee?", "user"),
        ("What did you recommend for the trip?", "assistant"),
        ("Which hotel was mentioned?", None),
    ],
)
def test_the_side_asked_about_is_noticed_where_there_are_sides(query: str, role: str | None):
    assert planned(query, "user", "assistant").role == role
    assert planned(query, "Ada", "Bob").role is None


def test_roles_are_not_names():
    assert planned("which user wrote to the assistant?", "user", "assistant").named == frozenset()


def test_a_long_question_is_cut_to_what_it_is_about():
    assert 0 < len(planned(" ".join(f"word{n}" for n in range(5000))).terms) <= 100


@given(st.text(min_size=1), st.lists(st.text(max_size=20), max_size=4))
def test_any_question_and_any_names_make_a_plan(query: str, speakers: list[str]):
    asked = planned(query, *speakers)
    assert set(asked.terms) <= set(analyse(query))
    assert len(set(asked.terms)) == len(asked.terms)
    assert asked.named <= set(speakers)
    assert asked.embedded.strip() or not query.strip()


@pytest.mark.parametrize(
    ("speaker", "question"),
    [
        ("The Narrator", "What is the port of the database?"),
        ("Customer Support", "Which customer has an unpaid invoice?"),
        ("Data Team", "Where is the data stored?"),
        ("Mark", "How do we mark the trail?"),
        ("Rose", "where is the rose garden"),
        ("Will", "Will it rain?".lower()),
    ],
)
def test_an_ordinary_word_is_not_taken_for_a_name(speaker: str, question: str):
    asked = plan(question, [speaker], NOW)
    assert asked.named == frozenset()
    assert asked.embedded == question


@pytest.mark.parametrize(
    ("speaker", "question"),
    [
        ("Caroline", "What did Caroline paint?"),
        ("Caroline", "what did caroline paint"),
        ("Caroline Reyes", "What did Caroline paint?"),
        ("Caroline Reyes", "What did Caroline Reyes's sister paint?"),
        ("Mark", "What did Mark paint?"),
        ("bo_7", "What did bo_7 paint?"),
    ],
)
def test_a_name_is(speaker: str, question: str):
    asked = plan(question, [speaker, "Somebody Else"], NOW)
    assert asked.named == {speaker}
    assert speaker.split()[0].lower() not in asked.embedded.lower()


def test_a_question_that_is_nothing_but_a_name_is_about_the_name():
    asked = plan("Who is Nora?", ["Nora"], NOW)
    assert asked.embedded == "Who is Nora?"
    assert asked.terms == ("nora",)


def test_a_number_that_looks_like_a_year_is_no_time():
    for question in ("What is INV-2026-00417?", "Where is room 2019?", "Which service uses port 2049?"):
        assert plan(question, [], NOW).times == ()


def test_the_owner_of_a_chat_is_its_user():
    asked = plan("What medicine must Nora not take?", ["user", "assistant"], NOW, "nora")
    assert (asked.role, asked.of_owner, asked.named) == ("user", True, frozenset())
    assert "Nora" not in asked.embedded
    assert "nora" in asked.terms
    assert plan("Who is Nora?", ["user", "assistant"], NOW, "nora").embedded == "Who is Nora?"
    assert plan("What must Nora not take?", [], NOW, "nora").embedded == "What must Nora not take?"
    assert plan("What is the default port?", ["user", "assistant"], NOW, "default").role is None


def test_a_question_is_known_until_it_is_forgotten():
    asked = plan("Where does Nora live?", ["Nora"], NOW)
    assert plan("Where does Nora live?", ["Nora"], NOW) is asked
    # All tiers in which nobody speaks are asked the same, whoever owns them.
    assert plan("Where is the attic?", [], NOW, "nora") is plan("Where is the attic?", [], NOW)
    forget()
    assert planning._planned.cache_info().currsize == planning._read.cache_info().currsize == 0
