"""Texts on their way to a server that has no NUL: back as they were, in the order they had, and short in an index."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from recollect.stores.postgres import text
from recollect.stores.postgres.rows import dumped, loaded

anything = st.text(st.sampled_from("\x00\x01\x02\x03ab") | st.characters(exclude_categories=["Cs"]))


@given(anything)
def test_a_text_comes_back_as_it_was(given_text: str):
    kept = text.kept(given_text)
    assert "\x00" not in kept
    assert text.given(kept) == given_text
    assert text.given_json(text.kept_json({given_text: [given_text, 1, None]})) == {given_text: [given_text, 1, None]}


@given(anything | st.sampled_from(["\\u0000", "\\u0001", "\\\\u0001 \x01"]))
def test_metadata_comes_back_as_it_was(given_text: str):
    metadata = {given_text: [given_text, {"inner": given_text}], "n": 1}
    written = dumped(metadata)
    assert json.loads(written) == text.kept_json(metadata)
    assert loaded(written) == metadata


@given(anything, anything)
def test_texts_keep_their_order_and_beginnings(one: str, other: str):
    assert (text.kept(one) < text.kept(other)) == (one < other)
    assert text.kept(one).startswith(text.kept(other)) == one.startswith(other)


def test_a_handle_is_short_and_stands_for_one_text():
    long = "x" * 10_000
    texts = ["", "x", "x" * 200, "x" * 201, long, long + "y", text.handle(long), "\x00" * 200]
    handles = {text.handle(one) for one in texts}
    assert len(handles) == len(texts)
    assert max(map(len, handles)) <= 264
