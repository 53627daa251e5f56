"""Tool calls and results in every shape: their pairs, and the cut points of a sequence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.tiers.messages import (
    cut_after,
    cut_before,
    find_cut_points,
    find_pending_calls,
    format_message,
    orphans_to_text,
    resolve_tool_ids,
    tool_ids,
)
from recollect.tiers.working import WorkingMemory
from tests.unit.tiers.tool_exchanges import EXCHANGES, histories, message


class TestCutPoints:
    @pytest.mark.parametrize("exchange", EXCHANGES)
    def test_cut_points_surround_an_exchange(self, exchange: Any):
        items = ["before", *exchange(["a", "b"], "answer"), "after"]
        assert find_cut_points(resolve_tool_ids(items)) == [0, 1, len(items) - 1, len(items)]

    @pytest.mark.parametrize("exchange", EXCHANGES)
    def test_pending_call_has_no_cut_point_after_it(self, exchange: Any):
        items = ["before", exchange(["a"], "answer")[0], "after"]
        assert find_cut_points(resolve_tool_ids(items), before_pending=True) == [0, 1]
        assert find_cut_points(resolve_tool_ids(items)) == [0, 1, 2, 3]

    def test_result_without_an_id_belongs_to_the_previous_assistant(self):
        call = message("assistant", "", tool_calls=[{"function": {"name": "f"}}, {"function": {"name": "g"}}])
        items: list[Any] = ["a", call, message("tool", "one"), message("tool", "two"), "b"]
        assert find_cut_points(resolve_tool_ids(items)) == [0, 1, 4, 5]
        assert find_pending_calls(resolve_tool_ids(items)) == {}
        assert find_cut_points(resolve_tool_ids(items[:3]), before_pending=True) == [0, 1]
        talk: list[Any] = [message("assistant", "calling"), message("tool", "one"), message("tool", "two"), "b"]
        assert find_cut_points(resolve_tool_ids(talk)) == [0, 3, 4]

    def test_unknown_result_id_answers_a_call_without_an_id(self):
        call = message("assistant", "", tool_calls=[{"function": {"name": "f"}}])
        items: list[Any] = [call, message("tool", "one", tool_call_id="x"), "b"]
        assert find_cut_points(resolve_tool_ids(items)) == [0, 2, 3]
        assert find_pending_calls(resolve_tool_ids(items)) == {}

    def test_reused_id_belongs_to_its_last_call(self):
        once = EXCHANGES[0](["a"], "answer")
        assert find_cut_points(resolve_tool_ids([*once, *once])) == [0, 2, 4]

    @given(histories(longest=3), st.data())
    def test_cut_at_a_cut_point_separates_no_pair(self, history: list[Any], data: st.DataObject):
        ends = resolve_tool_ids(history)
        wanted = data.draw(st.integers(0, len(history)))
        assert cut_before(ends, wanted) <= wanted <= cut_after(ends, wanted)
        for cut in (cut_before(ends, wanted), cut_after(ends, wanted)):
            called = {name for end in ends[:cut] for name in end.calls}
            recalled = {name for end in ends[cut:] for name in end.calls}
            assert not called & {name for end in ends[cut:] for name in end.results} - recalled


class TestOrphans:
    def test_orphaned_result_becomes_text_of_the_same_shape(self):
        plain = message("tool", "forty-two", tool_call_id="a")
        assert orphans_to_text(plain, frozenset({"a"})) == message("user", "[late result of a] forty-two")
        block = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "forty-two"}]}
        other_block = {**block, "tool_use_id": "b"}
        assert orphans_to_text(message("user", [block, other_block]), frozenset({"a"})) == message(
            "user", [{"type": "text", "text": "[late result of a] forty-two"}, other_block]
        )
        assert orphans_to_text(plain, frozenset()) == plain


class TestFormatMessage:
    @pytest.mark.parametrize(
        ("block", "text"),
        [
            ({"type": "image", "source": {"type": "url", "url": "https://a.org/b.png"}}, "[image https://a.org/b.png]"),
            (
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                "[image image/png]",
            ),
            ({"type": "image", "source": {"type": "file", "file_id": "f1"}}, "[image f1]"),
            ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "[image data:image/png]"),
            ({"type": "image"}, "[image]"),
        ],
    )
    def test_image_is_formatted_by_its_location_without_its_bytes(self, block: Any, text: str):
        assert format_message(message("user", [block])) == f"user: {text}"


async def test_working_memory_keeps_calls_and_results_without_ids_together():
    for shift in range(4):
        memory = WorkingMemory(max_items=6, keep_recent=3)
        for n in range(shift):
            await memory.add(f"item {n}")
        for n in range(6):
            await memory.add(message("assistant", "", tool_calls=[{"function": {"name": f"f{n}"}}]))
            await memory.add(message("tool", f"result {n}"))
            items = memory.items
            assert items[-1] == message("tool", f"result {n}")
            roles = [item["role"] for item in items if isinstance(item, dict)]
            assert roles == ["assistant", "tool"] * (len(roles) // 2)


def test_tool_ids_are_read_in_every_shape():
    for exchange in EXCHANGES:
        items = exchange(["a", "b"], "answer")
        assert {name for item in items for name in tool_ids(item).calls} == {"a", "b"}
        assert {name for item in items for name in tool_ids(item).results} == {"a", "b"}
