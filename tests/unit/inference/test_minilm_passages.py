"""A long text is cut at sentences, and nothing of it is lost."""

from __future__ import annotations

import random
import time

from recollect.inference.minilm.passages import LIMIT, OVERLAP, passages
from recollect.inference.minilm.tokenizer import words


def cut(text: str) -> list[int]:
    """A stand-in vocabulary in which every word is one piece."""
    return [hash(word) for word in words(text)]


def test_a_text_that_fits_is_one_passage():
    assert [part.pieces for part in passages("One. Two.", cut)] == [cut("One. Two.")]
    assert [part.pieces for part in passages("", cut)] == [[]]


def test_passages_cover_the_whole_text_in_order_and_fit():
    source = random.Random(4)
    for _ in range(200):
        marks = [". ", "! ", "?\n", ", ", " ", "。", '." ', "...) ", "\n\n"]
        text = "".join(f"w{source.randrange(99)}{source.choice(marks)}" for _ in range(source.randrange(1, 2000)))
        parts = passages(text, cut)
        fresh = [piece for part in parts for piece in part.pieces[len(part.pieces) - part.weight :]]
        assert fresh == cut(text)
        assert all(len(part.pieces) <= LIMIT for part in parts)
        assert all(len(part.pieces) - part.weight <= OVERLAP for part in parts)


def test_a_passage_begins_with_the_short_sentence_before_it():
    sentences = [f"Sentence number {number} speaks of apples and of pears." for number in range(60)]
    first, second = passages(" ".join(sentences), cut)[:2]
    overlap = len(second.pieces) - second.weight
    assert overlap > 0
    assert second.pieces[:overlap] == first.pieces[-overlap:]


def test_a_sentence_without_end_is_cut_into_even_parts():
    parts = passages(" ".join(["word"] * 1000), cut)
    assert {len(part.pieces) for part in parts} == {250}


def test_hostile_whitespace_and_punctuation_take_linear_time():
    started = time.thread_time()
    for filling in (" ", ")", "!", "\n", '."', ". "):
        passages("word. " * 300 + filling * 200_000, cut)
    assert time.thread_time() - started < 20
