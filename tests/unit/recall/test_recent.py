"""Whether a question is about what happened lately: by its words, by its meaning, or because it leans on it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from recollect.recall.calibrate import DEFAULT
from recollect.recall.leaning import leans
from recollect.recall.recent import (
    NOTHING_SHARED,
    Judged,
    Seen,
    Shared,
    excerpt,
    judged,
    shared_with,
    shared_words,
    unread,
)
from recollect.stores.ops import Entry
from recollect.tiers.matching import best

SHOWN = 0.6
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Evidence:
    share: float = 0.0
    matched: tuple[str, ...] = ()
    cosine: float | None = None
    age: int | None = None


def judgement(query: str, *found: Evidence) -> Judged:
    shared = [Shared(one.share, one.matched) if one.matched else NOTHING_SHARED for one in found]
    return judged(Seen(shared, [one.cosine for one in found], [one.age for one in found]), DEFAULT, leans(query))


def worth(query: str, *found: Evidence) -> list[float]:
    return list(judgement(query, *found).relevance)


def test_a_question_may_lean_on_the_session():
    values = worth("Where were we?", *(Evidence(age=age) for age in range(7)))
    assert values[:5] == sorted(values[:5], reverse=True)
    assert min(values[:5]) >= SHOWN
    assert max(values[5:]) == 0.0


def test_or_lean_on_it_a_little():
    values = worth("Can you fix that?", *(Evidence(age=age) for age in range(5)))
    assert all(SHOWN <= value < worth("Where were we?", Evidence(age=0))[0] for value in values)


def test_or_on_nothing():
    assert worth("How do volcanoes erupt?", Evidence(age=0)) == [0.0]


def test_what_is_only_recent_never_looks_like_certainty():
    certain = worth("What did we do about the invoice export?", Evidence(1.0, ("invoice", "export"), 0.7, age=0))[0]
    assert worth("What did we do about the invoice export?", Evidence(age=0))[0] <= 0.75 < 0.8 < certain


def test_words_in_common_are_enough_where_the_meaning_is_not_known():
    both, one = Evidence(0.6, ("export", "invoice")), Evidence(0.4, ("export",))
    assert worth("invoice export timeout", both)[0] >= SHOWN > worth("invoice export timeout", one)[0]


def test_some_words_in_common_are_chance_where_the_meaning_is_another():
    assert worth("How does a jet engine work?", Evidence(0.6, ("engin", "work"), cosine=0.05))[0] < SHOWN
    assert worth("invoice export", Evidence(1.0, ("invoic", "export"), cosine=0.05))[0] >= SHOWN


def test_meaning_is_enough_without_words():
    assert worth("Why does the download hang?", Evidence(cosine=0.5))[0] >= SHOWN
    assert worth("Why does the download hang?", Evidence(cosine=0.15))[0] < SHOWN


def test_it_says_why():
    made = judgement(
        "what did we do about the invoice export?",
        *(Evidence(1.0, ("invoice", "export"), 0.7, age=9), Evidence(age=0, cosine=0.1), Evidence(age=1)),
    )
    assert str(made.why(0)) == "cosine 0.70; words invoice, export"
    assert "only because it is recent: newest of its session" in str(made.why(1))
    assert "1 before the newest" in str(made.why(2))


VOCABULARY = (
    "dying Ties tied l'avion CAFÉ café naïvely running runway O'Brien my_var E1047 1,000 the we 客户 fix fixture"
)
words = st.lists(st.sampled_from(VOCABULARY.split()))


@given(words.map(" ".join), st.lists(words.map(" ".join).filter(bool), min_size=1, max_size=5))
def test_words_are_shared_as_the_searches_of_the_tiers_see_it(query: str, texts: list[str]):
    entries = [Entry(id=str(at), kind="turn", content=text, at=NOW, seq=at) for at, text in enumerate(texts)]
    expected = {int(one.entry.id): (round(one.share, 9), one.matched) for one in best(query, entries, 99, NOW)}
    found = {at: (round(one.share, 9), one.matched) for at, one in shared_words(query, texts).items()}
    assert found == expected


@given(words.map(" ".join), st.lists(st.lists(words.map(" ".join), max_size=4).map(tuple), min_size=1, max_size=4))
def test_texts_in_groups_are_weighed_as_if_they_were_one(query: str, groups: list[tuple[str, ...]]):
    together = shared_words(query, [text for texts in groups for text in texts])
    for _ in range(2):  # also when they are known
        apart = shared_with(query, groups)
        firsts = [sum(map(len, groups[:number])) for number in range(len(groups))]
        assert {
            first + at: one for first, found in zip(firsts, apart, strict=True) for at, one in found.items()
        } == together


def test_a_text_is_taken_apart_once():
    session = tuple(f"message {number} of a session that nobody has read" for number in range(20))
    assert unread([session]) == sum(map(len, session))
    shared_with("nobody", [session])
    assert unread([session]) == 0
    assert unread([session, (*session[1:], "and a new one")]) == len("and a new one")


def test_of_a_long_text_the_part_that_matters_is_told():
    remarks = [f"Plain remark number {number} about the weather." for number in range(50)]
    text = "\n".join([*remarks[:5], "The cello is in the attic.", *remarks[5:]])
    told = excerpt(text, "Where is the cello?", 200)
    assert told.startswith("The cello is in the attic. ")
    assert told.endswith(remarks[-1])
    assert len(told) <= 200
    assert excerpt("short", "cello", 200) == "short"
    assert excerpt("word " * 100, "cello", 200) == "word " * 100
