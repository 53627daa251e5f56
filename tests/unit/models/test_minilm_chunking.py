"""Splitting of long texts into chunks at sentences."""

from __future__ import annotations

import random
import time

from recollect.models.minilm.model import MAX_TOKENS, OVERLAP_TOKENS, split_into_chunks
from recollect.models.minilm.tokenizer import split_words


def tokenize(text: str) -> list[int]:
    """Tokenize with one token per word."""
    return [hash(word) for word in split_words(text)]


def test_short_text_is_one_chunk():
    assert [part.tokens for part in split_into_chunks("One. Two.", tokenize)] == [tokenize("One. Two.")]
    assert [part.tokens for part in split_into_chunks("", tokenize)] == [[]]


def test_chunks_cover_the_whole_text_in_order_and_fit():
    source = random.Random(4)
    for _ in range(200):
        marks = [". ", "! ", "?\n", ", ", " ", "。", '." ', "...) ", "\n\n"]
        text = "".join(f"w{source.randrange(99)}{source.choice(marks)}" for _ in range(source.randrange(1, 2000)))
        parts = split_into_chunks(text, tokenize)
        fresh = [piece for part in parts for piece in part.tokens[len(part.tokens) - part.weight :]]
        assert fresh == tokenize(text)
        assert all(len(part.tokens) <= MAX_TOKENS for part in parts)
        assert all(len(part.tokens) - part.weight <= OVERLAP_TOKENS for part in parts)


def test_chunk_starts_with_the_previous_short_sentence():
    sentences = [f"Sentence number {number} speaks of apples and of pears." for number in range(60)]
    first, second = split_into_chunks(" ".join(sentences), tokenize)[:2]
    overlap = len(second.tokens) - second.weight
    assert overlap > 0
    assert second.tokens[:overlap] == first.tokens[-overlap:]


def test_very_long_sentence_is_cut_evenly():
    parts = split_into_chunks(" ".join(["word"] * 1000), tokenize)
    assert {len(part.tokens) for part in parts} == {250}


def test_hostile_whitespace_and_punctuation_take_linear_time():
    started = time.thread_time()
    for suffix in (" ", ")", "!", "\n", '."', ". "):
        split_into_chunks("word. " * 300 + suffix * 200_000, tokenize)
    assert time.thread_time() - started < 20
