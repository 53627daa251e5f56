"""Evidence is added up: more of it is never worth less, and neighbours lend what they do not have to spare."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recall.scene import Candidate, question, scored, scores

share = st.floats(0.0, 1.0)


def test_no_candidates_have_no_scores():
    assert scores([]) == {}


@given(share, share, share)
def test_more_words_are_never_worth_less(one: float, other: float, cosine: float):
    less, more = sorted((one, other))
    found = scores([Candidate("less", cosine, (less, 0.0)), Candidate("more", cosine, (more, 0.0))])
    assert found["more"] >= found["less"]


@given(share, share, share)
def test_a_higher_cosine_is_never_worth_less(one: float, other: float, words: float):
    less, more = sorted((one, other))
    found = scores([Candidate("less", less, (words, 0.0)), Candidate("more", more, (words, 0.0))])
    assert found["more"] >= found["less"]


def test_cosines_tell_candidates_apart_all_the_way_up():
    steps = [0.2, 0.4, 0.6, 0.8, 0.95]
    found = scores([Candidate(str(cosine), cosine) for cosine in steps])
    assert sorted(found, key=found.__getitem__) == [str(cosine) for cosine in steps]


def test_both_kinds_of_evidence_are_worth_more_than_either():
    found = scores([Candidate("both", 0.6, (1, 1)), Candidate("meaning", 0.6), Candidate("words", words=(1, 1))])
    assert found["both"] > max(found["meaning"], found["words"])


def test_a_turn_profits_from_the_turn_beside_it():
    talk = [Candidate("question", 0.3, (1, 1), "s", 0), Candidate("answer", 0.3, (0, 0), "s", 1)]
    elsewhere = Candidate("elsewhere", 0.3, (0, 0), "other", 1)
    found = scores([*talk, elsewhere])
    assert found["question"] > found["answer"] > found["elsewhere"]


def test_nearer_neighbours_lend_more():
    found = scores([Candidate(str(n), 0.1, (1, 1) if n == 0 else (0, 0), "s", n) for n in range(5)])
    assert found["0"] > found["1"] > found["2"] > found["4"]


def test_nobody_outside_a_dialogue_has_neighbours():
    found = scores([Candidate("hit", 0.3, (1, 1)), Candidate("plain", 0.3)])
    _, alone = scored([Candidate("plain", 0.3)])
    assert found["plain"] == alone.total[0]


def test_what_was_said_nowhere_gains_nothing_from_what_was_said():
    said = Candidate("said", 0.3, (1, 0), "s", 0)
    plain = [Candidate("hit", 0.3, (1, 1)), Candidate("plain", 0.3)]
    assert {**scores([said, *plain]), "said": 0.0} == {**scores(plain), "said": 0.0}


def test_another_session_is_not_the_neighbour():
    found = scores([Candidate("hit", 0.3, (1, 1), "s1", 0), Candidate("other", 0.3, session="s2", position=1)])
    alone = scores([Candidate("other", 0.3, session="s2", position=1)])
    assert found["other"] == alone["other"]


def test_the_named_speaker_and_the_side_asked_about_come_first():
    said = [Candidate(who, 0.4, (1, 0), f"s{who}", 0, who) for who in ("Ada", "Bob", "user", "assistant")]
    assert max(scores(said, question(named=["Bob"])).items(), key=lambda pair: pair[1])[0] == "Bob"
    assert max(scores(said, question(role="user")).items(), key=lambda pair: pair[1])[0] == "user"


def test_a_name_does_not_outweigh_the_answer():
    found = scores(
        [Candidate("answer", 0.7, (1, 1), "s1", 0, "Bob"), Candidate("chatter", 0.05, (0, 0), "s2", 0, "Ada")],
        question(named=["Ada"]),
    )
    assert found["answer"] > found["chatter"]


def test_shares_add_up_to_the_score():
    _, result = scored([Candidate("a", 0.5, (1, 0), "s", 0, "Ada"), Candidate("b", 0.2, (0, 1), "s", 1, "Bob")])
    total = sum(column for column in result.shares.values())
    assert abs(total - result.total).max() < 1e-9
