"""Words that stand together in the question count for more where they stand together."""

from __future__ import annotations

from datetime import UTC, datetime

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


def terms(text: str) -> str:
    return " ".join(analyse(text))


def test_neighbours_of_the_question_count_when_they_are_neighbours_elsewhere():
    asked = phrasing()
    assert asked.share(terms("She likes green tea.")) == 0.25
    assert asked.share(terms("Tea, green or black.")) == 0.0
    assert asked.share(terms(QUESTION)) == 0.75
    assert phrasing("tea").share("tea tea") == 0.0


def test_a_pair_is_worth_its_more_common_word():
    asked = plan("green tea", (), NOW)
    assert Phrasing(asked, np.array([3.0, 1.0])).share("green tea") == 0.25
    assert Phrasing(asked, np.zeros(2)).share("green tea") == 0.0


@given(st.lists(words, min_size=1, max_size=10))
def test_only_those_who_cannot_have_a_pair_are_passed_over(texts: list[str]):
    asked = phrasing()
    wanted = plan(QUESTION, (), NOW).terms
    analysed = [analyse(text) for text in texts]
    has = np.array([[term in some for some in analysed] for term in wanted])
    possible = asked.possible(has)
    shares = [asked.share(" ".join(some)) for some in analysed]
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


async def test_the_day_of_a_turn_is_no_phrase_of_it():
    async with AgentMemory.open("memory://", embedder=lambda texts: [[1.0, 0.0] for _ in texts]) as memory:
        day = datetime(2023, 6, 4, tzinfo=UTC)
        talk = [{"content": "The cello was sold.", "session": "s", "speaker": "Bo", "at": day}]
        await memory.semantic.add_many([*talk, {"content": "The cello came in June 2023."}])
        hits = await memory.semantic.search("cello June 2023", n=2, min_relevance=0.0)
    phrases = {hit.item.content: hit.why.parts.get("phrase", 0.0) for hit in hits}
    assert phrases["The cello came in June 2023."] > 0
    assert phrases["The cello was sold."] == 0
