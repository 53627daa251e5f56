"""What deserves to last is found in what people say, and nearly nothing else is."""

from __future__ import annotations

import pytest

from recollect.lifecycle.promote import Worthy, fact_like, worthy
from recollect.lifecycle.recited import own_words
from recollect.lifecycle.statements import fingerprint, statements
from tests.unit.lifecycle.utterances import HELD_OUT, TUNING


def found_in(message: str) -> list[Worthy]:
    """What deserves to last of what is the sender's own in a message."""
    return worthy(own_words(message))


def rates(labelled: list[tuple[str, str | None]]) -> tuple[float, float]:
    """Precision and recall over a labelled list."""
    found = [(bool(found_in(text)), rule is not None) for text, rule in labelled]
    right = sum(promoted and wanted for promoted, wanted in found)
    return right / sum(promoted for promoted, _ in found), right / sum(wanted for _, wanted in found)


@pytest.mark.parametrize(("text", "rule"), TUNING)
def test_an_utterance_is_promoted_by_its_rule_or_not_at_all(text: str, rule: str | None):
    assert {one.rule for one in found_in(text)} == ({rule} if rule else set())


def test_precision_goes_before_recall_on_what_the_rules_were_not_tuned_on():
    # When these were first seen: 41 of 41 right, and 40 of 41 found; of the 40 that came later 16 of 17, and all 16.
    assert len(TUNING) + len(HELD_OUT) >= 220
    precision, recall = rates(HELD_OUT)
    assert precision == 1.0
    assert recall >= 0.9


@pytest.mark.parametrize("text", [text for text, _ in (*TUNING, *HELD_OUT)])
def test_what_is_promoted_stands_in_the_message_word_for_word(text: str):
    assert all(one.text in text for one in found_in(text))


class TestOneMessage:
    def test_each_sentence_is_judged_alone(self):
        said = "Hi! What's up? My name is Ada. I like it here. We decided to use Postgres for billing. Bye."
        assert [(one.text, one.rule) for one in worthy(said)] == [
            ("My name is Ada.", "identity"),
            ("We decided to use Postgres for billing.", "decision"),
        ]

    def test_one_request_not_to_remember_silences_the_whole_message(self):
        assert not worthy("I prefer tea. Please don't remember this.")
        assert not worthy("Remember that I like tea. Actually, forget that.")
        assert worthy("I prefer tea. Don't forget that I hate coffee.")

    def test_remember_that_means_the_sentence_before(self):
        assert [one.text for one in worthy("The wifi code is 8812. Remember that!")] == ["The wifi code is 8812."]
        assert not worthy("Remember that!")
        assert not worthy("Who wrote Dune? Remember that.")

    def test_a_pasted_document_is_not_a_statement(self):
        letter = "Dear all,\n" + "I live in Bonn and I prefer tea.\n" * 300
        assert len(worthy("Please have a look.\n" + letter)) <= 40
        assert not worthy("Proofread this:\n" + letter)

    def test_a_time_of_day_begins_no_material(self):
        assert worthy("I always review the figures at 9:30 in the morning.")

    def test_a_secret_is_kept_only_where_that_is_asked(self):
        assert not worthy("My API key is 12345-abc.")
        assert [one.rule for one in worthy("Remember that my locker PIN is 4411.")] == ["explicit"]

    @pytest.mark.parametrize("text", ["I live in Porto?", "So my name is Bob?", "We decided to use Postgres, right?"])
    def test_a_question_is_known_by_its_mark_alone(self, text: str):
        assert not found_in(text)

    def test_code_and_quoted_lines_say_nothing(self):
        assert not worthy("```\nI prefer tabs.\n```\n> My name is Bob.\nthoughts?")

    def test_a_sentence_with_a_mark_of_ours_is_nobodys_own(self):
        assert not worthy("I prefer tea (2026-03-01, from web, unverified).")
        assert worthy("I prefer tea.")

    def test_typographic_apostrophes_are_apostrophes(self):
        assert [one.text for one in worthy("I don’t eat meat.")] == ["I don’t eat meat."]

    def test_a_name_with_a_full_stop_is_one_sentence(self):
        assert [one.text for one in statements("My doctor is Dr. Lee. She is nice.")] == [
            "My doctor is Dr. Lee.",
            "She is nice.",
        ]

    @pytest.mark.parametrize(
        "text", ["", " ", "\n\n", ".", "?!", "\x00", "a" * 100_000, "I prefer " * 20_000, "(" * 5000]
    )
    def test_nothing_is_too_strange_to_be_read(self, text: str):
        found_in(text)
        list(fact_like(text))


class TestFactLike:
    def test_declarations_are_and_commands_and_passing_things_are_not(self):
        said = (
            "The staging server runs on port 8080. Run the tests again. It is broken. I am at lunch right now. "
            "Ada works in Lisbon with Tom. Is the server up?"
        )
        assert [one.text for one in fact_like(said)] == [
            "The staging server runs on port 8080.",
            "Ada works in Lisbon with Tom.",
        ]

    def test_a_fingerprint_knows_no_case_and_no_marks(self):
        assert fingerprint("The Server  runs, on port 8080!") == fingerprint("the server runs on port 8080")
        assert fingerprint("port 8080") != fingerprint("port 8081")
