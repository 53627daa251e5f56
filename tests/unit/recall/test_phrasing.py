"""Words that stand together in the question count for more where they stand together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recollect import AgentMemory
from recollect.recall.fuse import Phrasing
from recollect.recall.plan import plan
from recollect.words import analyse
from tests.unit.recall.scene import NOW

QUESTION = "green tea with lemon cake"
words = st.lists(st.sampled_from(["green", "tea", "lemon", "cake", "milk", "the", "with"]), max_size=8).map(" ".join)


def phrasing(question: str = QUESTION) -> Phrasing:
    asked = plan(question, (), NOW)
    return Phrasing(asked, np.ones(len(asked.terms)))


def test_neighbours_of_the_question_count_when_they_are_neighbours_elsewhere():
    asked = phrasing()
    assert asked.share(analyse("She likes green tea.")) == 0.25
    assert asked.share(analyse("Tea, green or black.")) == 0.0
    assert asked.share(analyse(QUESTION)) == 0.75
    assert phrasing("tea").share(analyse("tea tea")) == 0.0


def test_a_pair_is_worth_its_more_common_word():
    asked = plan("green tea", (), NOW)
    assert Phrasing(asked, np.array([3.0, 1.0])).share(["green", "tea"]) == 0.25
    assert Phrasing(asked, np.zeros(2)).share(["green", "tea"]) == 0.0


@given(st.lists(words, min_size=1, max_size=10))
def test_only_those_who_cannot_have_a_pair_are_passed_over(texts: list[str]):
    asked = phrasing()
    terms = plan(QUESTION, (), NOW).terms
    analysed = [analyse(text) for text in texts]
    has = np.array([[term in some for some in analysed] for term in terms])
    possible = asked.possible(has)
    shares = [asked.share(some) for some in analysed]
    assert not any(share for share, may in zip(shares, possible, strict=True) if not may)


async def test_the_phrase_settles_it_between_texts_of_the_same_words():
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
