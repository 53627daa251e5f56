"""Public types: checked names, content ids, and validity times."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import BadInput
from recollect.types import Context, Hit, LeftOut, MemoryItem, Scope, Space, Why, make_content_id
from recollect.validation import to_plain_json

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
    def test_space_has_the_parts_of_its_tier(self):
        scope = Scope("t", "u", "a", "s")
        assert scope.space("semantic") == Space("t", "semantic", user="u")
        assert scope.space("procedural") == Space("t", "procedural", agent="a")
        assert scope.space("checkpoints") == Space("t", "checkpoints", agent="a")
        assert scope.space("episodic") == Space("t", "episodic", user="u", agent="a", session="s")

    @pytest.mark.parametrize("part", ["tenant", "user", "agent", "session"])
    @pytest.mark.parametrize("name", ["", "  ", "x" * 257, "a\x00b", 5])
    def test_invalid_name_is_refused(self, part: str, name: Any):
        with pytest.raises(BadInput, match=part):
            Scope(**{part: name})


class TestItem:
    def test_item_is_immutable(self):
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
    def test_invalid_field_is_refused(self, change: dict[str, Any]):
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
    def test_live_at_includes_the_start_and_excludes_the_end(self, change: dict[str, Any], live: bool):
        assert replace(ITEM, **change).live_at(NOW) is live


class TestIds:
    def test_id_depends_on_space_content_and_parts(self):
        here, there = Space("t", "semantic", user="u"), Space("t", "semantic", user="v")
        ids = [
            make_content_id(here, "x"),
            make_content_id(there, "x"),
            make_content_id(here, "y"),
            make_content_id(here, "x", "k"),
        ]
        assert len(set(ids)) == 4
        assert make_content_id(here, "x") == ids[0]

    @given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
    def test_parts_are_kept_apart(self, left: list[str], right: list[str]):
        space = Space("t", "semantic")
        assert (make_content_id(space, "x", *left) == make_content_id(space, "x", *right)) == (left == right)


class TestJson:
    @given(JSON)
    def test_plain_json_is_unchanged(self, value: Any):
        assert to_plain_json(value) == value

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            ({"a": [1, {"b": object()}]}, r"metadata\.a\[1\]\.b"),
            ({"a": float("inf")}, r"metadata\.a"),
            ({(1, 2): 3}, r"metadata has the key \(1, 2\)"),
            ({1, 2}, "metadata"),
        ],
    )
    def test_unstorable_value_is_named_by_its_path(self, value: Any, path: str):
        with pytest.raises(BadInput, match=path):
            to_plain_json(value)


class TestContext:
    def test_empty_context_is_falsy(self):
        context = Context("where?")
        assert not context
        assert (str(context), len(context), list(context)) == ("", 0, [])
        assert context.explain() == "query: where?\nnothing relevant is remembered"

    def test_explain_lists_hits_and_omissions(self):
        hit = Hit(ITEM, "semantic", 0.91, 1.2, Why(cosine=0.5, matched=("cello",), parts={"meaning": 0.25}))
        context = Context("where?", "text", (hit,), 3, (LeftOut(ITEM, "too long"),), ("a warning",))
        assert context
        assert len(context) == 1
        explained = context.explain()
        for part in ("0.91", "cello", "cosine 0.50", "meaning +0.25", "too long", "a warning"):
            assert part in explained

    def test_reasons_are_readable_as_data(self):
        why = Why(cosine=0.5, words=0.2, parts={"speaker": 0.3})
        assert (why["cosine"], why["words"], why["speaker"]) == (0.5, 0.2, 0.3)
        assert str(Why()) == "no evidence"
