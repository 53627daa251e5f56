"""Relevance of recent log entries: by shared terms, by cosine, or by a reference to the session."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from recollect.language.analysis import analyze
from recollect.retrieval.fusion import DEFAULT_CALIBRATION
from recollect.retrieval.log_search import (
    NO_SHARED_TERMS,
    LogEvidence,
    SharedTerms,
    count_unread_characters,
    extract_excerpt,
    find_shared_terms,
    find_shared_terms_by_group,
    score_entries,
)
from recollect.retrieval.query import find_session_reference
from recollect.stores.search import CorpusStats, compute_idf
from recollect.stores.writes import Entry
from recollect.tiers.log_entries import rank_entries

SHOWN = 0.6
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Evidence:
    share: float = 0.0
    matched: tuple[str, ...] = ()
    cosine: float | None = None
    age: int | None = None


def list_evidence(*found: Evidence) -> list[LogEvidence]:
    return [
        LogEvidence(SharedTerms(one.share, one.matched) if one.matched else NO_SHARED_TERMS, one.cosine, one.age)
        for one in found
    ]


def relevance_of(query: str, *found: Evidence) -> list[float]:
    return score(list_evidence(*found), query)[0]


def score(evidence: list[LogEvidence], query: str) -> tuple[list[float], list[bool]]:
    shared, cosines, ages = zip(*evidence, strict=True)
    return score_entries(shared, cosines, ages, DEFAULT_CALIBRATION, find_session_reference(query))


def test_strong_session_reference_shows_recent_entries():
    values = relevance_of("Where were we?", *(Evidence(age=age) for age in range(7)))
    assert values[:5] == sorted(values[:5], reverse=True)
    assert min(values[:5]) >= SHOWN
    assert max(values[5:]) == 0.0


def test_weak_session_reference_scores_less_than_a_strong_one():
    values = relevance_of("Can you fix that?", *(Evidence(age=age) for age in range(5)))
    assert all(SHOWN <= value < relevance_of("Where were we?", Evidence(age=0))[0] for value in values)


def test_general_question_gives_recent_entries_no_relevance():
    assert relevance_of("How do volcanoes erupt?", Evidence(age=0)) == [0.0]


def test_recency_alone_stays_below_certainty():
    certain = relevance_of(
        "What did we do about the invoice export?", Evidence(1.0, ("invoice", "export"), 0.7, age=0)
    )[0]
    assert relevance_of("What did we do about the invoice export?", Evidence(age=0))[0] <= 0.75 < 0.8 < certain


def test_shared_terms_suffice_without_a_cosine():
    both, one = Evidence(0.6, ("export", "invoice")), Evidence(0.4, ("export",))
    assert relevance_of("invoice export timeout", both)[0] >= SHOWN > relevance_of("invoice export timeout", one)[0]


def test_partial_terms_with_a_low_cosine_are_not_shown():
    assert relevance_of("How does a jet engine work?", Evidence(0.6, ("engin", "work"), cosine=0.05))[0] < SHOWN
    assert relevance_of("invoice export", Evidence(1.0, ("invoic", "export"), cosine=0.05))[0] >= SHOWN


def test_cosine_suffices_without_shared_terms():
    assert relevance_of("Why does the download hang?", Evidence(cosine=0.5))[0] >= SHOWN
    assert relevance_of("Why does the download hang?", Evidence(cosine=0.15))[0] < SHOWN


def test_explain_names_the_evidence():
    evidence = list_evidence(
        Evidence(1.0, ("invoice", "export"), 0.7, age=9), Evidence(age=0, cosine=0.1), Evidence(age=1)
    )
    _, is_by_recency = score(evidence, "what did we do about the invoice export?")
    made = [str(one.explain(is_by_recency=is_recent)) for one, is_recent in zip(evidence, is_by_recency, strict=True)]
    assert made[0] == "cosine 0.70; words invoice, export"
    assert "only because it is recent: newest of its session" in made[1]
    assert "1 before the newest" in made[2]


VOCABULARY = (
    "dying Ties tied l'avion CAFÉ café naïvely running runway O'Brien my_var E1047 1,000 the we 客户 fix fixture"
)
words = st.lists(st.sampled_from(VOCABULARY.split()))


@given(words.map(" ".join), st.lists(words.map(" ".join).filter(bool), min_size=1, max_size=5))
def test_shared_terms_equal_the_term_search_of_a_tier(query: str, texts: list[str]):
    entries = [Entry(id=str(at), kind="turn", content=text, at=NOW, seq=at) for at, text in enumerate(texts)]
    counts = [Counter(analyze(text)) for text in texts]
    corpus = CorpusStats(len(texts), 1.0)
    weights = {term: compute_idf(corpus, sum(bool(count[term]) for count in counts)) for term in analyze(query)}
    expected = {}
    for at, count in enumerate(counts):
        if matched := tuple(term for term in weights if count[term]):
            expected[at] = (round(sum(weights[term] for term in matched) / sum(weights.values()), 9), matched)
    found = {at: (round(one.share, 9), one.matched) for at, one in find_shared_terms(query, texts).items()}
    assert found.keys() == {int(entry.id) for entry in rank_entries(query, entries, 99, NOW)}
    if weights:
        assert found == expected


@given(words.map(" ".join), st.lists(st.lists(words.map(" ".join), max_size=4).map(tuple), min_size=1, max_size=4))
def test_shared_terms_by_group_equal_those_of_one_list(query: str, groups: list[tuple[str, ...]]):
    together = find_shared_terms(query, [text for texts in groups for text in texts])
    for _ in range(2):  # the second time the texts are cached
        apart = find_shared_terms_by_group(query, groups)
        firsts = [sum(map(len, groups[:number])) for number in range(len(groups))]
        assert {
            first + at: one for first, found in zip(firsts, apart, strict=True) for at, one in found.items()
        } == together


def test_each_text_is_analyzed_once():
    session = tuple(f"message {number} of a session that nobody has read" for number in range(20))
    assert count_unread_characters([session]) == sum(map(len, session))
    find_shared_terms_by_group("nobody", [session])
    assert count_unread_characters([session]) == 0
    assert count_unread_characters([session, (*session[1:], "and a new one")]) == len("and a new one")


def test_excerpt_of_a_long_text_contains_the_answer():
    remarks = [f"Plain remark number {number} about the weather." for number in range(50)]
    text = "\n".join([*remarks[:5], "The cello is in the attic.", *remarks[5:]])
    excerpt = extract_excerpt(text, "Where is the cello?", 200)
    assert excerpt.startswith("The cello is in the attic. ")
    assert excerpt.endswith(remarks[-1])
    assert len(excerpt) <= 200
    assert extract_excerpt("short", "cello", 200) == "short"
    assert extract_excerpt("word " * 100, "cello", 200) == "word " * 100
