"""Text codec for PostgreSQL, which has no NUL: round trips, order, and index handles."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from recollect.stores.postgres import codec
from recollect.stores.postgres.codec import dump_json, load_metadata

any_text = st.text(st.sampled_from("\x00\x01\x02\x03ab") | st.characters(exclude_categories=["Cs"]))


@given(any_text)
def test_escaped_text_round_trips(given_text: str):
    escaped = codec.escape_text(given_text)
    assert "\x00" not in escaped
    assert codec.unescape_text(escaped) == given_text


@given(any_text | st.sampled_from(["\\u0000", "\\u0001", "\\\\u0001 \x01"]))
def test_escaped_metadata_round_trips(given_text: str):
    metadata = {given_text: [given_text, {"inner": given_text}], "n": 1}
    written = dump_json(metadata)
    escaped = codec.escape_text(given_text)
    assert json.loads(written) == {escaped: [escaped, {"inner": escaped}], "n": 1}
    assert load_metadata(written) == metadata


@given(any_text, any_text)
def test_escaped_texts_keep_their_order_and_prefixes(one: str, other: str):
    assert (codec.escape_text(one) < codec.escape_text(other)) == (one < other)
    assert codec.escape_text(one).startswith(codec.escape_text(other)) == one.startswith(other)


def test_handle_is_short_and_unique():
    long = "x" * 10_000
    texts = ["", "x", "x" * 200, "x" * 201, long, long + "y", codec.build_handle(long), "\x00" * 200]
    handles = {codec.build_handle(one) for one in texts}
    assert len(handles) == len(texts)
    assert max(map(len, handles)) <= 264
