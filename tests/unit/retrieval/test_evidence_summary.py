"""Early exit of a search: items that cannot be relevant enough are not ranked."""

from __future__ import annotations

from recollect.retrieval.fusion import DEFAULT_CALIBRATION
from recollect.retrieval.search import HybridRanker
from recollect.stores.filters import Where
from recollect.stores.search import EvidenceSummary, SearchMode, SearchQuery
from recollect.types import Scope
from tests.unit.retrieval.candidates import NOW, question

FAR = float("-inf")


def may_show(nearest: float, *has_terms: bool, mode: SearchMode = "hybrid", asked_before: bool = False) -> bool:
    query = SearchQuery(
        text="cello attic",
        where=Where(Scope().space("semantic")),
        n=5,
        min_relevance=0.8,
        now=NOW,
        asked_at=NOW,
        mode=mode,
        is_repeat=(lambda text: text == "cello attic") if asked_before else None,
    )
    return HybridRanker(query, question(), DEFAULT_CALIBRATION, frozenset()).may_show(
        EvidenceSummary(nearest, has_terms, [1.0, 1.0])
    )


def test_near_or_matching_items_are_ranked():
    assert may_show(0.9, False, False)
    assert may_show(FAR, True, True, mode="text")


def test_distant_and_partial_matches_are_skipped():
    assert not may_show(0.2, False, False)
    assert not may_show(FAR, True, True)
    assert not may_show(FAR, True, False, mode="text")


def test_full_match_is_ranked_when_it_may_repeat_the_query():
    assert may_show(FAR, True, True, asked_before=True)
    assert not may_show(FAR, True, False, asked_before=True)
