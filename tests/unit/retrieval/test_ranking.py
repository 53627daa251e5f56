"""Ranking: importance, age and trust decide between similar scores only."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recollect.retrieval.fusion import fuse
from recollect.retrieval.search import compute_adjustments, sort_hits
from tests.unit.retrieval.candidates import NOW, Candidate, evidence_of, question

share = st.floats(0.0, 1.0)


def rank(candidates: list[Candidate]) -> list[str]:
    evidence = evidence_of(candidates)
    totals = fuse(evidence, question(), evidence.cosines).total
    return [
        evidence.briefs[at].id for at in sort_hits(totals + compute_adjustments(evidence.briefs, NOW), evidence.briefs)
    ]


@given(importance=share, trust=share, age=st.floats(0, 10_000), other_age=st.floats(0, 10_000))
def test_exact_hit_ranks_above_a_weak_match(importance: float, trust: float, age: float, other_age: float):
    # A full match ranks first for any importance, age and trust.
    hit = Candidate("hit", 0.8, (1.0, 1.0), importance=importance, trust=trust, days_old=age)
    chatter = Candidate("chatter", 0.2, (0.2, 0.0), importance=1.0, trust=1.0, days_old=other_age)
    assert rank([hit, chatter])[0] == "hit"


def test_importance_recency_and_trust_break_ties():
    def rank_pair(**better: Any) -> list[str]:
        return rank(
            [Candidate("worse", 0.5, days_old=100, importance=0.4, trust=0.5), Candidate("better", 0.5, **better)]
        )

    assert rank_pair(days_old=100, importance=0.9, trust=0.5)[0] == "better"
    assert rank_pair(days_old=1, importance=0.4, trust=0.5)[0] == "better"
    assert rank_pair(days_old=100, importance=0.4, trust=1.0)[0] == "better"


def test_adjustments_are_smaller_than_a_full_term_match():
    evidence = evidence_of(
        [Candidate("low", importance=0.0, trust=0.0, days_old=9999), Candidate("high", importance=1.0)]
    )
    low, high = sorted(compute_adjustments(evidence.briefs, NOW))
    assert high - low < 0.35


def test_future_item_is_as_recent_as_now():
    evidence = evidence_of([Candidate("now"), Candidate("tomorrow", days_old=-1)])
    now, tomorrow = compute_adjustments(evidence.briefs, NOW)
    assert now == tomorrow


def test_equal_scores_have_a_stable_order():
    twins = [Candidate(name, 0.5) for name in "cab"]
    assert rank(twins) == rank(twins[::-1]) == ["a", "b", "c"]
    assert rank([Candidate("old", 0.5, days_old=100_000), Candidate("new", 0.5)])[0] == "new"
