"""Fusion of vector and term evidence: scores rise with the evidence, and neighboring turns contribute."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.retrieval.candidates import Candidate, question, scored, scores

share = st.floats(0.0, 1.0)


def test_no_candidates_have_no_scores():
    assert scores([]) == {}


@given(share, share, share)
def test_more_terms_never_lower_the_score(one: float, other: float, cosine: float):
    less, more = sorted((one, other))
    found = scores([Candidate("less", cosine, (less, 0.0)), Candidate("more", cosine, (more, 0.0))])
    assert found["more"] >= found["less"]


@given(share, share, share)
def test_higher_cosine_never_lowers_the_score(one: float, other: float, words: float):
    less, more = sorted((one, other))
    found = scores([Candidate("less", less, (words, 0.0)), Candidate("more", more, (words, 0.0))])
    assert found["more"] >= found["less"]


def test_cosines_are_distinguished_up_to_the_top():
    steps = [0.2, 0.4, 0.6, 0.8, 0.95]
    found = scores([Candidate(str(cosine), cosine) for cosine in steps])
    assert sorted(found, key=found.__getitem__) == [str(cosine) for cosine in steps]


def test_vector_and_term_evidence_score_more_than_either():
    found = scores([Candidate("both", 0.6, (1, 1)), Candidate("meaning", 0.6), Candidate("words", words=(1, 1))])
    assert found["both"] > max(found["meaning"], found["words"])


def test_turn_gains_from_its_neighbor():
    talk = [Candidate("question", 0.3, (1, 1), "s", 0), Candidate("answer", 0.3, (0, 0), "s", 1)]
    elsewhere = Candidate("elsewhere", 0.3, (0, 0), "other", 1)
    found = scores([*talk, elsewhere])
    assert found["question"] > found["answer"] > found["elsewhere"]


def test_closer_neighbors_contribute_more():
    found = scores([Candidate(str(n), 0.1, (1, 1) if n == 0 else (0, 0), "s", n) for n in range(5)])
    assert found["0"] > found["1"] > found["2"] > found["4"]


def test_items_outside_a_session_have_no_neighbors():
    found = scores([Candidate("hit", 0.3, (1, 1)), Candidate("plain", 0.3)])
    _, alone = scored([Candidate("plain", 0.3)])
    assert found["plain"] == alone.total[0]


def test_items_outside_a_session_gain_nothing_from_turns():
    said = Candidate("said", 0.3, (1, 0), "s", 0)
    plain = [Candidate("hit", 0.3, (1, 1)), Candidate("plain", 0.3)]
    assert {**scores([said, *plain]), "said": 0.0} == {**scores(plain), "said": 0.0}


def test_turn_of_another_session_is_not_a_neighbor():
    found = scores([Candidate("hit", 0.3, (1, 1), "s1", 0), Candidate("other", 0.3, session="s2", position=1)])
    alone = scores([Candidate("other", 0.3, session="s2", position=1)])
    assert found["other"] == alone["other"]


def test_named_speaker_and_requested_role_rank_first():
    said = [Candidate(who, 0.4, (1, 0), f"s{who}", 0, who) for who in ("Ada", "Bob", "user", "assistant")]
    assert max(scores(said, question(named=["Bob"])).items(), key=lambda pair: pair[1])[0] == "Bob"
    assert max(scores(said, question(role="user")).items(), key=lambda pair: pair[1])[0] == "user"


def test_speaker_bonus_does_not_outweigh_the_answer():
    found = scores(
        [Candidate("answer", 0.7, (1, 1), "s1", 0, "Bob"), Candidate("chatter", 0.05, (0, 0), "s2", 0, "Ada")],
        question(named=["Ada"]),
    )
    assert found["answer"] > found["chatter"]


def test_shares_add_up_to_the_score():
    _, result = scored([Candidate("a", 0.5, (1, 0), "s", 0, "Ada"), Candidate("b", 0.2, (0, 1), "s", 1, "Bob")])
    total = sum(column for column in result.shares.values())
    assert abs(total - result.total).max() < 1e-9
