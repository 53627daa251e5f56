"""Phrase matching: adjacent query terms score higher where they are adjacent in a text."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recollect import AgentMemory
from recollect.language.analysis import analyze
from recollect.retrieval.fusion import PhraseMatcher
from recollect.retrieval.query import plan_query
from tests.unit.retrieval.candidates import NOW

QUESTION = "green tea with lemon cake"
words = st.lists(st.sampled_from(["green", "tea", "lemon", "cake", "milk", "the", "with"]), max_size=8).map(" ".join)


def make_matcher(question: str = QUESTION) -> PhraseMatcher:
    asked = plan_query(question, (), NOW)
    return PhraseMatcher(asked, np.ones(len(asked.terms)))


def terms(text: str) -> str:
    return " ".join(analyze(text))


def test_adjacent_query_terms_score_when_adjacent_in_the_text():
    asked = make_matcher()
    assert asked.score(terms("She likes green tea.")) == 0.25
    assert asked.score(terms("Tea, green or black.")) == 0.0
    assert asked.score(terms(QUESTION)) == 0.75
    assert make_matcher("tea").score("tea tea") == 0.0


def test_pair_has_the_weight_of_its_more_common_term():
    asked = plan_query("green tea", (), NOW)
    assert PhraseMatcher(asked, np.array([3.0, 1.0])).score("green tea") == 0.25
    assert PhraseMatcher(asked, np.zeros(2)).score("green tea") == 0.0


@given(st.lists(words, min_size=1, max_size=10))
def test_find_possible_skips_only_texts_without_a_pair(texts: list[str]):
    asked = make_matcher()
    wanted = plan_query(QUESTION, (), NOW).terms
    analysed = [analyze(text) for text in texts]
    has_terms = np.array([[term in some for some in analysed] for term in wanted])
    possible = asked.find_possible(has_terms)
    shares = [asked.score(" ".join(some)) for some in analysed]
    assert not any(share for share, is_possible in zip(shares, possible, strict=True) if not is_possible)


async def test_phrase_decides_between_texts_with_the_same_terms():
    async with AgentMemory.open("memory://", embedder=lambda texts: [[1.0, 0.0] for _ in texts]) as memory:
        for text in (
            "A tea house, green all over.",
            "A green tea house, all over.",
            "The tea house is green all over",
        ):
            await memory.remember(text, importance=0.5)
        hits = await memory.semantic.search("green tea", n=3, min_relevance=0.0)
    assert hits[0].item.content == "A green tea house, all over."
    assert hits[0].why["phrase"] > 0


async def test_date_of_a_turn_is_not_part_of_its_phrases():
    async with AgentMemory.open("memory://", embedder=lambda texts: [[1.0, 0.0] for _ in texts]) as memory:
        day = datetime(2023, 6, 4, tzinfo=UTC)
        talk = [{"content": "The cello was sold.", "session": "s", "speaker": "Bo", "at": day}]
        await memory.semantic.add_many([*talk, {"content": "The cello came in June 2023."}])
        hits = await memory.semantic.search("cello June 2023", n=2, min_relevance=0.0)
    phrases = {hit.item.content: hit.why.parts.get("phrase", 0.0) for hit in hits}
    assert phrases["The cello came in June 2023."] > 0
    assert phrases["The cello was sold."] == 0
