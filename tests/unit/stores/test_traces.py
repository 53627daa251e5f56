"""Deleted bytes are found wherever they lie, and nothing else is."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from recollect.stores.traces import KEPT, MOST, PIECE, Traces, pieces_of

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


def test_pieces_that_begin_alike_are_told_apart():
    """Mutant: of several that share a window only the first is known."""
    texts = [b"a beginning of sixteen" + bytes([at]) for at in range(256)]
    some = traces(*texts)
    assert some.found_in([texts[7] + b"...." + texts[9]]) == {7, 9}


def test_some_of_them_are_found_under_their_new_numbers():
    some = traces(SECRET).only({0, 2})
    assert (len(some), some.found_in([SECRET])) == (2, {0, 1})
    assert some.found_in([SECRET[:PIECE]]) == {0}


def test_of_an_erasure_that_is_complete_a_few_from_all_over_are_kept():
    texts = [random.Random(n).randbytes(PIECE) for n in range(300)]
    few = traces(*texts).few
    assert (len(few), few.of) == (KEPT, 300)
    assert few.found_in(texts[:10])
    assert few.found_in(texts[-10:])
    assert len(traces(SECRET).few) == 3
