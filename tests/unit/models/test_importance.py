"""Importance scores on a labelled list: lasting statements, plain statements, and small talk."""

from __future__ import annotations

from itertools import product
from statistics import mean

from recollect.language.importance import score_importance
from tests.cases import Case

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


def test_labelled_list_has_at_least_60_texts():
    assert len(WEIGHTY) + len(PLAIN) + len(SMALL_TALK) >= 60
    assert all(len(texts) >= 6 for texts in KEEP.values())


def test_lasting_statement_scores_at_least_0_6():
    failures: list[str] = []
    for text in WEIGHTY:
        with Case(failures, text):
            assert score_importance(text) >= 0.6
    assert not failures, "\n".join(failures)


def test_plain_statement_or_question_scores_in_the_middle():
    failures: list[str] = []
    for text in PLAIN:
        with Case(failures, text):
            assert 0.35 <= score_importance(text) <= 0.55
    assert not failures, "\n".join(failures)


def test_small_talk_scores_below_0_3():
    failures: list[str] = []
    for text in SMALL_TALK:
        with Case(failures, text):
            assert score_importance(text) < 0.3
    assert not failures, "\n".join(failures)


def test_numbers_and_names_raise_the_score():
    failures: list[str] = []
    for weighty, light in NUMBERS_AND_NAMES:
        with Case(failures, weighty):
            assert score_importance(weighty) > score_importance(light)
    assert not failures, "\n".join(failures)


def test_labels_are_ordered_for_every_pair():
    for higher, lower in ((WEIGHTY, PLAIN), (PLAIN, SMALL_TALK)):
        pairs = list(product(higher, lower))
        right = sum(score_importance(one) > score_importance(other) for one, other in pairs)
        assert right == len(pairs)


def test_explicit_request_scores_highest():
    means = {name: mean(map(score_importance, texts)) for name, texts in KEEP.items()}
    assert max(means, key=lambda name: means[name]) == "remember"


def test_episode_kind_changes_the_score():
    turn = score_importance("The page was empty.", "turn")
    failures: list[str] = []
    for kind in ("error", "decision", "outcome"):
        with Case(failures, kind):
            assert score_importance("The page was empty.", kind) > turn + 0.1
            assert score_importance("Remember: never again! The error cost 9,000 on Monday.", kind) <= 1.0
    assert not failures, "\n".join(failures)
    assert score_importance("The page was empty.", "tool_call") < turn


def test_curly_quotes_are_quotes():
    assert score_importance("Don\u2019t forget the milk.") == score_importance("Don't forget the milk.")


def test_acknowledgement_with_an_instruction_is_not_small_talk():
    assert score_importance("ok use port 8080") > score_importance("ok")


def test_other_scripts_score_as_plain_statements():
    assert score_importance("会議は火曜日です") == score_importance("Собрание во вторник") == 0.5
