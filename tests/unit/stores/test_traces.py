"""Deleted bytes are found wherever they lie, and nothing else is."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from recollect.stores.traces import MOST, PIECE, Traces, pieces_of

KEY = b"k" * 32
SECRET = b"Nobody shall ever know that Ada keeps a key under the third stone."


def traces(*texts: bytes) -> Traces:
    return Traces.of_pieces(KEY, [piece for text in texts for piece in pieces_of(text)])


@given(st.integers(0, 5000), st.integers(1, 4000))
def test_a_text_is_found_at_any_offset_and_across_any_chunks(offset: int, chunk: int):
    data = random.Random(1).randbytes(offset) + SECRET + random.Random(2).randbytes(100)
    chunks = (data[at : at + chunk] for at in range(0, len(data), chunk))
    assert traces(SECRET).found_in(chunks) == {0, 1, 2}


def test_words_that_others_use_too_are_not_taken_for_the_text():
    other = b"Nobody shall ever kno. that Ada keeps . key under the third stone?"
    assert traces(SECRET).found_in([other]) == set()


def test_with_another_key_nothing_is_known():
    packed = traces(SECRET).packed
    assert Traces.unpacked(KEY, packed).found_in([SECRET]) == {0, 1, 2}
    assert Traces.unpacked(b"x" * 32, packed).found_in([SECRET]) == set()
    assert not any(SECRET[at : at + 6] in packed for at in range(len(SECRET) - 6))


def test_what_is_too_short_or_says_nothing_is_not_looked_for():
    assert list(pieces_of(b"x" * (PIECE - 1))) == []
    assert list(pieces_of(b"=" * 500 + b"\0" * 500)) == []


def test_of_very_many_a_sample_from_all_over_is_kept():
    texts = [random.Random(n).randbytes(PIECE) for n in range(MOST * 2)]
    some = traces(*texts)
    assert (len(some), some.of) == (MOST, 2 * MOST)
    assert some.found_in([texts[0]])
    both = some.plus(traces(SECRET))
    assert (len(both), both.of, len(both.found_in([SECRET]))) == (MOST + 3, 2 * MOST + 3, 3)
