"""Query plans: search terms, speakers, roles and times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.language.analysis import analyze
from recollect.retrieval import query as planning
from recollect.retrieval.query import clear_plan_cache, plan_query
from tests.unit.retrieval.candidates import NOW


def make_plan(query: str, *speakers: str):
    return plan_query(query, speakers, NOW)


def test_terms_are_unique_and_stemmed():
    assert make_plan("When were the dogs running? Running dogs!").terms == ("dog", "run")


def test_named_speaker_is_removed_from_the_terms():
    plan = make_plan("Where did Caroline's brother go camping?", "Caroline", "Melanie")
    assert plan.named_speakers == {"Caroline"}
    assert "carolin" not in plan.terms
    assert "Caroline" not in plan.text_to_embed
    assert {"brother", "camp"} <= set(plan.terms)


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
def test_speaker_names_match_whole_words(query: str, named: set[str]):
    assert make_plan(query, "Caroline Smith", "Al", "(bob)").named_speakers == named


def test_query_of_only_a_name_searches_for_the_name():
    plan = make_plan("Caroline?", "Caroline")
    assert plan.named_speakers == {"Caroline"}
    assert "Caroline" in plan.text_to_embed


@pytest.mark.parametrize(
    ("query", "role"),
    [
        ("What did I say about my knee?", "user"),
        ("What did you recommend for the trip?", "assistant"),
        ("Which hotel was mentioned?", None),
    ],
)
def test_role_is_detected_if_there_are_roles(query: str, role: str | None):
    assert make_plan(query, "user", "assistant").role == role
    assert make_plan(query, "Ada", "Bob").role is None


def test_roles_are_not_speaker_names():
    assert make_plan("which user wrote to the assistant?", "user", "assistant").named_speakers == frozenset()


def test_long_query_is_limited_to_100_terms():
    assert 0 < len(make_plan(" ".join(f"word{n}" for n in range(5000))).terms) <= 100


@given(st.text(min_size=1), st.lists(st.text(max_size=20), max_size=4))
def test_any_query_and_names_make_a_valid_plan(query: str, speakers: list[str]):
    plan = make_plan(query, *speakers)
    assert set(plan.terms) <= set(analyze(query))
    assert len(set(plan.terms)) == len(plan.terms)
    assert plan.named_speakers <= set(speakers)
    assert plan.text_to_embed.strip() or not query.strip()


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
def test_ordinary_word_is_not_taken_for_a_name(speaker: str, question: str):
    plan = plan_query(question, [speaker], NOW)
    assert plan.named_speakers == frozenset()
    assert plan.text_to_embed == question


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
def test_name_is_recognized(speaker: str, question: str):
    plan = plan_query(question, [speaker, "Somebody Else"], NOW)
    assert plan.named_speakers == {speaker}
    assert speaker.split()[0].lower() not in plan.text_to_embed.lower()


def test_question_about_only_a_name_keeps_the_name():
    plan = plan_query("Who is Nora?", ["Nora"], NOW)
    assert plan.text_to_embed == "Who is Nora?"
    assert plan.terms == ("nora",)


def test_number_that_looks_like_a_year_is_not_a_time():
    for question in ("What is INV-2026-00417?", "Where is room 2019?", "Which service uses port 2049?"):
        assert plan_query(question, [], NOW).times == ()


def test_owner_name_of_a_chat_means_the_user_role():
    plan = plan_query("What medicine must Nora not take?", ["user", "assistant"], NOW, "nora")
    assert (plan.role, plan.is_about_owner, plan.named_speakers) == ("user", True, frozenset())
    assert "Nora" not in plan.text_to_embed
    assert "nora" in plan.terms
    assert plan_query("Who is Nora?", ["user", "assistant"], NOW, "nora").text_to_embed == "Who is Nora?"
    assert plan_query("What must Nora not take?", [], NOW, "nora").text_to_embed == "What must Nora not take?"
    assert plan_query("What is the default port?", ["user", "assistant"], NOW, "default").role is None


def test_plan_is_cached_until_the_cache_is_cleared():
    plan = plan_query("Where does Nora live?", ["Nora"], NOW)
    assert plan_query("Where does Nora live?", ["Nora"], NOW) is plan
    # Tiers without speakers share one plan, regardless of their owner.
    assert plan_query("Where is the attic?", [], NOW, "nora") is plan_query("Where is the attic?", [], NOW)
    clear_plan_cache()
    assert planning._build_plan.cache_info().currsize == planning._parse_terms.cache_info().currsize == 0
