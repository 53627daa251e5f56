"""Importance on a labelled list of utterances: what should outlast a talk, what is plain, and what is small talk."""

from __future__ import annotations

from itertools import product
from statistics import mean

import pytest

from recollect.inference.offline import importance_of

KEEP = {
    "remember": [
        "Remember that I prefer metric units.",
        "Please remember: the staging server is read-only.",
        "Don't forget to renew the certificate.",
        "From now on, answer in French.",
        "Keep in mind that the budget is frozen.",
        "Make a note: the customer wants invoices as PDF.",
        "For future reference, the wifi code is on the fridge.",
        "Note that the API needs a trailing slash.",
    ],
    "rule": [
        "Never deploy on a Friday.",
        "You must ask before deleting anything.",
        "It is important that the tests stay fast.",
        "Always use tabs in this repository.",
        "Under no circumstances share my address.",
        "Don't email customers directly.",
    ],
    "correction": [
        "Actually, the meeting is on Tuesday.",
        "No, I meant the blue one.",
        "No, the second door.",
        "That's wrong, the port is 8443.",
        "Scratch that, we start next week.",
        "I was wrong about the licence.",
        "She no longer works there.",
        "We moved the launch to the fourth of May.",
        "Turns out the cache was never cleared.",
    ],
    "decision": [
        "We decided to drop support for Python 3.9.",
        "Let's go with the second option.",
        "The board approved the merger.",
        "We'll use Postgres for the archive.",
        "Agreed: two reviewers for every change.",
        "I chose the aisle seat.",
    ],
    "error": [
        "The export failed at row 10,000.",
        "ConnectionRefusedError: [Errno 111] connection refused",
        "Traceback (most recent call last):",
        "A KeyError in the parser.",
        "The build is broken since this morning.",
        "Access to the bucket was denied.",
        "The request timed out after 30 seconds.",
        "The worker ran out of memory.",
        "There was an outage in the Frankfurt region.",
    ],
    "lasting": [
        "My name is Ada.",
        "I'm allergic to peanuts.",
        "My daughter's birthday is on 3 March.",
        "I live in Lisbon.",
        "She prefers tea.",
        "The deadline is 12 June.",
        "I work for a hospital in Ghent.",
        "I'm a nurse.",
    ],
}

PLAIN = [
    "It rained in the morning.",
    "We walked along the river.",
    "The shop opens soon.",
    "I had soup for lunch.",
    "The page shows a list of items.",
    "There is a cat on the roof.",
    "I will look into it.",
    "The report has a cover page.",
    "The tests ran without errors.",
    "All checks passed, no errors.",
    "I remember those days well.",
    "Do you remember when we met?",
    "Could you open the file?",
    "What does this function do?",
    "The screen went dark for a moment.",
    "He told me a story about a boat.",
    "ok, use the second paragraph",
    "Never mind the noise outside.",
]

SMALL_TALK = [
    "Hi!",
    "Hello there",
    "Thanks!",
    "Thank you so much",
    "ok",
    "Okay, great.",
    "lol",
    "Good morning!",
    "How are you doing?",
    "Sounds good.",
    "Yes.",
    "No problem",
    "See you later",
    "👍",
    "...",
    "Haha, nice one!",
]

NUMBERS_AND_NAMES = [
    ("The train leaves at 9:41.", "The train leaves soon."),
    ("We walked to Notting Hill.", "We walked to the hill."),
    ("Write to ada@example.org about it.", "Write to her about it."),
    ("The file is src/main.py here.", "The file is over here."),
    ("There are 14 chairs.", "There are some chairs."),
]

WEIGHTY = [text for texts in KEEP.values() for text in texts]


def test_the_list_is_long_enough_to_mean_something():
    assert len(WEIGHTY) + len(PLAIN) + len(SMALL_TALK) >= 60
    assert all(len(texts) >= 6 for texts in KEEP.values())


@pytest.mark.parametrize("text", WEIGHTY)
def test_what_should_last_weighs_more_than_a_plain_statement(text: str):
    assert importance_of(text) >= 0.6


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_statement_or_question_is_in_the_middle(text: str):
    assert 0.35 <= importance_of(text) <= 0.55


@pytest.mark.parametrize("text", SMALL_TALK)
def test_small_talk_may_be_forgotten(text: str):
    assert importance_of(text) < 0.3


@pytest.mark.parametrize(("weighty", "light"), NUMBERS_AND_NAMES)
def test_numbers_and_names_weigh_more(weighty: str, light: str):
    assert importance_of(weighty) > importance_of(light)


def test_of_any_two_the_weightier_label_scores_higher():
    for higher, lower in ((WEIGHTY, PLAIN), (PLAIN, SMALL_TALK)):
        pairs = list(product(higher, lower))
        right = sum(importance_of(one) > importance_of(other) for one, other in pairs)
        assert right == len(pairs)


def test_an_explicit_request_weighs_most():
    means = {name: mean(map(importance_of, texts)) for name, texts in KEEP.items()}
    assert max(means, key=lambda name: means[name]) == "remember"


@pytest.mark.parametrize("kind", ["error", "decision", "outcome"])
def test_what_an_episode_is_counts_besides_what_it_says(kind: str):
    assert importance_of("The page was empty.", kind) > importance_of("The page was empty.", "turn") + 0.1
    assert importance_of("The page was empty.", "tool_call") < importance_of("The page was empty.", "turn")
    assert importance_of("Remember: never again! The error cost 9,000 on Monday.", kind) <= 1.0


def test_curly_quotes_are_quotes():
    assert importance_of("Don\u2019t forget the milk.") == importance_of("Don't forget the milk.")


def test_a_short_nod_before_something_to_do_is_no_small_talk():
    assert importance_of("ok use port 8080") > importance_of("ok")


def test_other_scripts_are_plain_statements_and_no_small_talk():
    assert importance_of("会議は火曜日です") == importance_of("Собрание во вторник") == 0.5
