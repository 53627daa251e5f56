"""Importance, age and trust settle what is close, and never bury a clear hit."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recollect.recall.fuse import fuse
from recollect.recall.rank import Order, nudge
from tests.unit.recall.scene import NOW, Candidate, evidence_of, question

share = st.floats(0.0, 1.0)


def ranked(candidates: list[Candidate]) -> list[str]:
    evidence = evidence_of(candidates)
    totals = fuse(evidence, question(), evidence.cosines).total
    return [evidence.briefs[at].id for at in Order(evidence.briefs).of(totals + nudge(evidence.briefs, NOW))]


@given(importance=share, trust=share, age=st.floats(0, 10_000), other_age=st.floats(0, 10_000))
def test_an_exact_hit_is_never_buried(importance: float, trust: float, age: float, other_age: float):
    """Whatever is said about them: all the words and the meaning, against a little of either."""
    hit = Candidate("hit", 0.8, (1.0, 1.0), importance=importance, trust=trust, days_old=age)
    chatter = Candidate("chatter", 0.2, (0.2, 0.0), importance=1.0, trust=1.0, days_old=other_age)
    assert ranked([hit, chatter])[0] == "hit"


def test_among_equals_the_important_the_new_and_the_trusted_come_first():
    def pair(**better: Any) -> list[str]:
        return ranked(
            [Candidate("worse", 0.5, days_old=100, importance=0.4, trust=0.5), Candidate("better", 0.5, **better)]
        )

    assert pair(days_old=100, importance=0.9, trust=0.5)[0] == "better"
    assert pair(days_old=1, importance=0.4, trust=0.5)[0] == "better"
    assert pair(days_old=100, importance=0.4, trust=1.0)[0] == "better"


def test_nudges_are_small_beside_finding_every_word():
    evidence = evidence_of(
        [Candidate("low", importance=0.0, trust=0.0, days_old=9999), Candidate("high", importance=1.0)]
    )
    low, high = sorted(nudge(evidence.briefs, NOW))
    assert high - low < 0.35


def test_the_future_is_as_new_as_now():
    evidence = evidence_of([Candidate("now"), Candidate("tomorrow", days_old=-1)])
    now, tomorrow = nudge(evidence.briefs, NOW)
    assert now == tomorrow


def test_equal_scores_have_one_order():
    twins = [Candidate(name, 0.5) for name in "cab"]
    assert ranked(twins) == ranked(twins[::-1]) == ["a", "b", "c"]
    assert ranked([Candidate("old", 0.5, days_old=100_000), Candidate("new", 0.5)])[0] == "new"
