"""Summaries without a model: what says the most stays, in its order, within its tokens, and never by chance."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.inference.summarise import Passage, extract, mark_of, summarise
from recollect.words.tokens import count_tokens

CHATTER = [
    "So we talked about this and that for a while.",
    "The weather was rather nice and people were out.",
    "There was some more to say about how things are going.",
    "Things went on as things usually do on such days.",
    "Somebody made coffee and somebody else drank it.",
]

texts = st.lists(st.text(max_size=400) | st.sampled_from(CHATTER), max_size=12)


@given(texts, st.integers(-5, 200))
def test_a_summary_never_costs_more_than_its_limit(given_texts: list[str], limit: int):
    assert count_tokens(summarise(given_texts, limit)) <= max(0, limit)


@given(texts, st.integers(1, 200))
def test_a_counter_that_does_not_add_up_is_honoured_too(given_texts: list[str], limit: int):
    def count(text: str) -> int:
        return len(text) ** 2 // 100

    assert count(summarise(given_texts, limit, count)) <= limit


@given(texts, st.integers(0, 80))
def test_a_summary_invents_no_word(given_texts: list[str], limit: int):
    said = "".join(" ".join(given_texts).split())
    for line in summarise(given_texts, limit).splitlines():
        for part in line.split("…"):
            assert "".join(part.split()) in said.replace("…", "")


@given(texts, st.integers(1, 120))
def test_a_summary_of_a_summary_is_itself(given_texts: list[str], limit: int):
    once = summarise(given_texts, limit)
    twice = summarise([once], limit)
    assert count_tokens(twice) <= limit
    assert len(twice.split()) <= len(once.split())


@pytest.mark.parametrize(
    "telling",
    [
        "The payment failed with error E4012 at the gateway.",
        "We decided to use PostgreSQL 16 for the ledger.",
        "Remember that Ada must never receive penicillin.",
        "Actually, Grace moved to Lisbon in March 2024.",
        "The deadline for the Bergmann contract is 14 June.",
    ],
)
def test_what_says_something_survives_small_talk(telling: str):
    for place in range(len(CHATTER) + 1):
        assert telling in summarise([*CHATTER[:place], telling, *CHATTER[place:]], 30)


def test_the_order_is_the_order_in_which_things_were_said():
    facts = [f"Decision {number}: team {name} will use port {7000 + number}." for number, name in enumerate("ABCDEF")]
    kept = summarise([line for pair in zip(facts, CHATTER * 2, strict=False) for line in pair], 60).splitlines()
    assert len(kept) >= 3
    assert kept == [fact for fact in facts if fact in kept]


def test_nothing_is_said_twice():
    lines = ["The build failed on Windows 11.", "the build failed on windows 11", "Ada fixed the build."]
    assert summarise(lines, 1000) == "The build failed on Windows 11.\nAda fixed the build."


def test_new_things_are_preferred_to_the_same_again():
    same = [f"Error 7: the export to Lisbon failed because the disk was full, try {n}." for n in "ABCDEFGH"]
    kept = summarise([*same, "The cat likes warm milk."], 2 * count_tokens(same[0]) + 4)
    assert "warm milk" in kept
    assert kept.count("export to Lisbon") == 1


def test_who_spoke_is_kept():
    kept = summarise([Passage("Fine. The invoice 88 is due on Friday.", "ada"), Passage("ok", "bob")], 18)
    assert kept.startswith("ada: ")
    assert "invoice 88" in kept
    assert count_tokens(kept) <= 18


def test_what_fits_stays_whole():
    assert summarise(["One thing.", "Another thing."], 100) == "One thing.\nAnother thing."


def test_a_sentence_longer_than_the_limit_gives_its_first_words():
    kept = summarise(["word " * 300], 5)
    assert kept.endswith("…")
    assert 1 <= count_tokens(kept) <= 5


@pytest.mark.parametrize("nothing", [[], [""], ["  \n "], ["…", ""]])
def test_of_nothing_there_is_nothing_to_say(nothing: list[str]):
    assert summarise(nothing, 0) == ""
    assert len(summarise(nothing, 50)) <= 1


def test_other_scripts_are_cut_at_their_own_full_stops():
    kept = summarise(["今日は天気がいい。会議は3月14日に決定した。散歩をした。"], 24)
    assert "会議は3月14日に決定した。" in kept


def test_a_text_without_any_space_is_still_bounded():
    assert count_tokens(summarise(["x" * 200_000], 50)) <= 50


def test_every_process_says_the_same():
    script = (
        "import json, sys; from recollect.inference.summarise import summarise; "
        "print(json.dumps(summarise(json.loads(sys.argv[1]), 60)))"
    )
    lines = json.dumps(
        [*CHATTER, *(f"Run {n} of job {n * 7 % 5} took {n * n} seconds on host h{n}." for n in range(40))]
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script, lines],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


class TestExtract:
    LOG = "\n".join(f"step {n} copied the file and went on" for n in range(400)) + "\nerror: disk /dev/sdb1 is full"

    def test_it_says_how_long_the_whole_was_and_its_hash(self):
        short = extract(self.LOG, 120)
        assert count_tokens(short) <= 120
        assert "error: disk /dev/sdb1 is full" in short
        assert f"{len(self.LOG):,} characters" in short
        assert hashlib.sha256(self.LOG.encode()).hexdigest()[:16] in short

    def test_what_fits_has_no_mark(self):
        assert extract("short", 10) == "short"

    def test_an_extract_of_an_extract_speaks_of_the_whole(self):
        once = extract(self.LOG, 200)
        twice = extract(once, 80)
        assert mark_of(twice) == mark_of(once) == mark_of(self.LOG)
        assert twice.count("sha256") == 1
        assert count_tokens(twice) <= 80

    @given(st.text(min_size=1), st.integers(0, 60))
    def test_nothing_is_cut_in_silence(self, text: str, limit: int):
        short = extract(text, limit)
        assert short == text or short.endswith(mark_of(text))

    def test_the_one_grave_line_of_a_great_many_is_found_soon(self):
        letters = str.maketrans("0123456789", "abcdefghij")
        lines = [f"compiled module {n} in {n % 7} ms" for n in range(30_000)]
        lines += [f"linked {n}".translate(letters) for n in range(30_000)]  # no two of them alike
        lines[41_234] = "ValueError: bad magic number in header.bin"
        lines[0], lines[-1] = "build of release candidate began", "the build ended with status 1"
        started = time.process_time()
        short = extract("\n".join(lines), 300)
        assert time.process_time() - started < 5.0
        for line in (lines[0], lines[41_234], lines[-1]):
            assert line in short
        assert count_tokens(short) <= 300
