"""Search for traces of deleted bytes in files."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from recollect.stores.traces import KEPT_PIECES, MAX_PIECES, PIECE_BYTES, DeletionTraces, select_pieces

KEY = b"k" * 32
SECRET = b"Nobody shall ever know that Ada keeps a key under the third stone."


def make_traces(*texts: bytes) -> DeletionTraces:
    return DeletionTraces.from_pieces(KEY, [piece for text in texts for piece in select_pieces(text)])


@given(st.integers(0, 5000), st.integers(1, 4000))
def test_text_is_found_at_any_offset_and_across_chunks(offset: int, chunk: int):
    data = random.Random(1).randbytes(offset) + SECRET + random.Random(2).randbytes(100)
    chunks = (data[at : at + chunk] for at in range(0, len(data), chunk))
    assert make_traces(SECRET).find_in(chunks) == {0, 1, 2}


def test_common_words_do_not_match_a_deleted_text():
    other = b"Nobody shall ever kno. that Ada keeps . key under the third stone?"
    assert make_traces(SECRET).find_in([other]) == set()


def test_another_key_finds_nothing():
    packed = make_traces(SECRET).as_bytes
    assert DeletionTraces.from_bytes(KEY, packed).find_in([SECRET]) == {0, 1, 2}
    assert DeletionTraces.from_bytes(b"x" * 32, packed).find_in([SECRET]) == set()
    assert not any(SECRET[at : at + 6] in packed for at in range(len(SECRET) - 6))


def test_short_or_uniform_texts_have_no_pieces():
    assert list(select_pieces(b"x" * (PIECE_BYTES - 1))) == []
    assert list(select_pieces(b"=" * 500 + b"\0" * 500)) == []


def test_many_pieces_are_sampled():
    texts = [random.Random(n).randbytes(PIECE_BYTES) for n in range(MAX_PIECES * 2)]
    some = make_traces(*texts)
    assert (len(some), some.total) == (MAX_PIECES, 2 * MAX_PIECES)
    assert some.find_in([texts[0]])
    both = some.merge(make_traces(SECRET))
    assert (len(both), both.total, len(both.find_in([SECRET]))) == (MAX_PIECES + 3, 2 * MAX_PIECES + 3, 3)


def test_pieces_with_the_same_prefix_are_distinguished():
    # Mutant: of several pieces with the same window only the first is stored.
    texts = [b"a beginning of sixteen" + bytes([at]) for at in range(256)]
    some = make_traces(*texts)
    assert some.find_in([texts[7] + b"...." + texts[9]]) == {7, 9}


def test_select_renumbers_the_pieces():
    some = make_traces(SECRET).select({0, 2})
    assert (len(some), some.find_in([SECRET])) == (2, {0, 1})
    assert some.find_in([SECRET[:PIECE_BYTES]]) == {0}


def test_completed_erasure_keeps_a_small_sample():
    texts = [random.Random(n).randbytes(PIECE_BYTES) for n in range(300)]
    few = make_traces(*texts).sample
    assert (len(few), few.total) == (KEPT_PIECES, 300)
    assert few.find_in(texts[:10])
    assert few.find_in(texts[-10:])
    assert len(make_traces(SECRET).sample) == 3
