"""The nouns keep what they promise: names are checked, ids come from content, times decide what is live."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import BadInput
from recollect.values import Context, Hit, LeftOut, MemoryItem, Scope, Space, Why, content_id, plain_json

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
ITEM = MemoryItem(id="i", content="The cello is in the attic.", scope=Scope(), created_at=NOW)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


class TestScope:
    def test_each_tier_belongs_to_its_part(self):
        scope = Scope("t", "u", "a", "s")
        assert scope.space("semantic") == Space("t", "semantic", user="u")
        assert scope.space("procedural") == Space("t", "procedural", agent="a")
        assert scope.space("checkpoints") == Space("t", "checkpoints", agent="a")
        assert scope.space("episodic") == Space("t", "episodic", user="u", agent="a", session="s")

    @pytest.mark.parametrize("part", ["tenant", "user", "agent", "session"])
    @pytest.mark.parametrize("name", ["", "  ", "x" * 257, "a\x00b", 5])
    def test_names_are_checked(self, part: str, name: Any):
        with pytest.raises(BadInput, match=part):
            Scope(**{part: name})


class TestItem:
    def test_it_cannot_be_changed(self):
        with pytest.raises(FrozenInstanceError):
            ITEM.content = "other"  # type: ignore[misc]

    @pytest.mark.parametrize(
        "change",
        [
            {"content": " "}, {"importance": 1.01}, {"importance": -0.1}, {"importance": float("nan")}, {"trust": 2.0},
            {"trust": float("nan")}, {"valid_from": NOW, "valid_to": NOW - DAY},
        ],
        ids=str,
    )  # fmt: skip
    def test_what_cannot_be_meant_is_refused(self, change: dict[str, Any]):
        with pytest.raises(BadInput):
            replace(ITEM, **change)

    @pytest.mark.parametrize(
        ("change", "live"),
        [
            ({}, True), ({"valid_from": NOW}, True), ({"valid_from": NOW + DAY}, False), ({"valid_to": NOW}, False),
            ({"valid_to": NOW + DAY}, True), ({"expires_at": NOW}, False), ({"expires_at": NOW + DAY}, True),
        ],
        ids=str,
    )  # fmt: skip
    def test_it_is_live_from_its_beginning_until_just_before_its_end(self, change: dict[str, Any], live: bool):
        assert replace(ITEM, **change).live_at(NOW) is live


class TestIds:
    def test_an_id_depends_on_place_content_and_parts_and_nothing_else(self):
        here, there = Space("t", "semantic", user="u"), Space("t", "semantic", user="v")
        ids = [content_id(here, "x"), content_id(there, "x"), content_id(here, "y"), content_id(here, "x", "k")]
        assert len(set(ids)) == 4
        assert content_id(here, "x") == ids[0]

    @given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
    def test_parts_do_not_run_together(self, left: list[str], right: list[str]):
        space = Space("t", "semantic")
        assert (content_id(space, "x", *left) == content_id(space, "x", *right)) == (left == right)


class TestJson:
    @given(JSON)
    def test_plain_data_comes_back_as_it_was(self, value: Any):
        assert plain_json(value) == value

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            ({"a": [1, {"b": object()}]}, r"metadata\.a\[1\]\.b"),
            ({"a": float("inf")}, r"metadata\.a"),
            ({(1, 2): 3}, r"metadata has the key \(1, 2\)"),
            ({1, 2}, "metadata"),
        ],
    )
    def test_what_cannot_be_stored_is_named_by_its_path(self, value: Any, path: str):
        with pytest.raises(BadInput, match=path):
            plain_json(value)


class TestContext:
    def test_an_empty_one_is_falsy_and_says_so(self):
        context = Context("where?")
        assert not context
        assert (str(context), len(context), list(context)) == ("", 0, [])
        assert context.explain() == "query: where?\nnothing relevant is remembered"

    def test_it_explains_what_is_there_and_what_is_not(self):
        hit = Hit(ITEM, "semantic", 0.91, 1.2, Why(cosine=0.5, matched=("cello",), parts={"meaning": 0.25}))
        context = Context("where?", "text", (hit,), 3, (LeftOut(ITEM, "too long"),), ("a warning",))
        assert context
        assert len(context) == 1
        explained = context.explain()
        for said in ("0.91", "cello", "cosine 0.50", "meaning +0.25", "too long", "a warning"):
            assert said in explained

    def test_reasons_are_data_too(self):
        why = Why(cosine=0.5, words=0.2, parts={"speaker": 0.3})
        assert (why["cosine"], why["words"], why["speaker"]) == (0.5, 0.2, 0.3)
        assert str(Why()) == "no evidence"
