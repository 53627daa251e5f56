"""Extractive summaries: selection, order, the token limit, and determinism."""

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

from recollect.language.analysis import count_tokens
from recollect.language.extractive_summary import LabeledText, extract_text, format_extract_mark, summarize

CHATTER = [
    "So we talked about this and that for a while.",
    "The weather was rather nice and people were out.",
    "There was some more to say about how things are going.",
    "Things went on as things usually do on such days.",
    "Somebody made coffee and somebody else drank it.",
]

texts = st.lists(st.text(max_size=400) | st.sampled_from(CHATTER), max_size=12)


@given(texts, st.integers(-5, 200))
def test_summary_stays_within_its_token_limit(given_texts: list[str], limit: int):
    assert count_tokens(summarize(given_texts, limit)) <= max(0, limit)


@given(texts, st.integers(1, 200))
def test_summary_respects_a_counter_that_is_not_additive(given_texts: list[str], limit: int):
    def count(text: str) -> int:
        return len(text) ** 2 // 100

    assert count(summarize(given_texts, limit, count)) <= limit


@given(texts, st.integers(0, 80))
def test_summary_contains_only_words_of_the_text(given_texts: list[str], limit: int):
    source_text = "".join(" ".join(given_texts).split())
    for line in summarize(given_texts, limit).splitlines():
        for part in line.split("…"):
            assert "".join(part.split()) in source_text.replace("…", "")


@given(texts, st.integers(1, 120))
def test_summary_of_a_summary_is_not_longer(given_texts: list[str], limit: int):
    once = summarize(given_texts, limit)
    twice = summarize([once], limit)
    assert count_tokens(twice) <= limit
    assert len(twice.split()) <= len(once.split())


@pytest.mark.parametrize(
    "sentence",
    [
        "The payment failed with error E4012 at the gateway.",
        "We decided to use PostgreSQL 16 for the ledger.",
        "Remember that Ada must never receive penicillin.",
        "Actually, Grace moved to Lisbon in March 2024.",
        "The deadline for the Bergmann contract is 14 June.",
    ],
)
def test_informative_sentence_survives_small_talk(sentence: str):
    for place in range(len(CHATTER) + 1):
        assert sentence in summarize([*CHATTER[:place], sentence, *CHATTER[place:]], 30)


def test_sentences_keep_their_order():
    facts = [f"Decision {number}: team {name} will use port {7000 + number}." for number, name in enumerate("ABCDEF")]
    summary = summarize([line for pair in zip(facts, CHATTER * 2, strict=False) for line in pair], 60).splitlines()
    assert len(summary) >= 3
    assert summary == [fact for fact in facts if fact in summary]


def test_duplicate_sentences_are_dropped():
    lines = ["The build failed on Windows 11.", "the build failed on windows 11", "Ada fixed the build."]
    assert summarize(lines, 1000) == "The build failed on Windows 11.\nAda fixed the build."


def test_new_content_is_preferred_to_repetition():
    same = [f"Error 7: the export to Lisbon failed because the disk was full, try {n}." for n in "ABCDEFGH"]
    summary = summarize([*same, "The cat likes warm milk."], 2 * count_tokens(same[0]) + 4)
    assert "warm milk" in summary
    assert summary.count("export to Lisbon") == 1


def test_speaker_labels_are_kept():
    summary = summarize([LabeledText("Fine. The invoice 88 is due on Friday.", "ada"), LabeledText("ok", "bob")], 18)
    assert summary.startswith("ada: ")
    assert "invoice 88" in summary
    assert count_tokens(summary) <= 18


def test_text_within_the_limit_is_unchanged():
    assert summarize(["One thing.", "Another thing."], 100) == "One thing.\nAnother thing."


def test_sentence_longer_than_the_limit_is_truncated():
    summary = summarize(["word " * 300], 5)
    assert summary.endswith("…")
    assert 1 <= count_tokens(summary) <= 5


@pytest.mark.parametrize("nothing", [[], [""], ["  \n "], ["…", ""]])
def test_summary_of_nothing_is_empty(nothing: list[str]):
    assert summarize(nothing, 0) == ""
    assert len(summarize(nothing, 50)) <= 1


def test_other_scripts_are_split_at_their_full_stops():
    summary = summarize(["今日は天気がいい。会議は3月14日に決定した。散歩をした。"], 24)
    assert "会議は3月14日に決定した。" in summary


def test_text_without_spaces_stays_within_the_limit():
    assert count_tokens(summarize(["x" * 200_000], 50)) <= 50


def test_summary_is_the_same_in_every_process():
    script = (
        "import json, sys; from recollect.language.extractive_summary import summarize; "
        "print(json.dumps(summarize(json.loads(sys.argv[1]), 60)))"
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

    def test_extract_states_the_full_length_and_hash(self):
        short = extract_text(self.LOG, 120)
        assert count_tokens(short) <= 120
        assert "error: disk /dev/sdb1 is full" in short
        assert f"{len(self.LOG):,} characters" in short
        assert hashlib.sha256(self.LOG.encode()).hexdigest()[:16] in short

    def test_short_text_has_no_mark(self):
        assert extract_text("short", 10) == "short"

    def test_extract_of_an_extract_states_the_original(self):
        once = extract_text(self.LOG, 200)
        twice = extract_text(once, 80)
        assert format_extract_mark(twice) == format_extract_mark(once) == format_extract_mark(self.LOG)
        assert twice.count("sha256") == 1
        assert count_tokens(twice) <= 80

    @given(st.text(min_size=1), st.integers(0, 60))
    def test_every_cut_is_marked(self, text: str, limit: int):
        short = extract_text(text, limit)
        assert short == text or short.endswith(format_extract_mark(text))

    def test_one_error_line_among_many_is_found_quickly(self):
        letters = str.maketrans("0123456789", "abcdefghij")
        lines = [f"compiled module {n} in {n % 7} ms" for n in range(30_000)]
        lines += [f"linked {n}".translate(letters) for n in range(30_000)]  # all different
        lines[41_234] = "ValueError: bad magic number in header.bin"
        lines[0], lines[-1] = "build of release candidate began", "the build ended with status 1"
        started = time.process_time()
        short = extract_text("\n".join(lines), 300)
        assert time.process_time() - started < 5.0
        for line in (lines[0], lines[41_234], lines[-1]):
            assert line in short
        assert count_tokens(short) <= 300
