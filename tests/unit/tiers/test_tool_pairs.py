"""Tool calls and results in every shape: who answers whom, and where a sequence may be parted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.tiers.shapes import text_of
from recollect.tiers.tool_pairs import cut_after, cut_before, ends_among, ends_of, joints, pending, told
from recollect.tiers.working import WorkingMemory
from tests.unit.tiers.exchanges import EXCHANGES, histories, message


class TestJoints:
    @pytest.mark.parametrize("exchange", EXCHANGES)
    def test_only_around_an_exchange(self, exchange: Any):
        items = ["before", *exchange(["a", "b"], "answer"), "after"]
        assert joints(ends_among(items)) == [0, 1, len(items) - 1, len(items)]

    @pytest.mark.parametrize("exchange", EXCHANGES)
    def test_not_behind_a_call_that_waits(self, exchange: Any):
        items = ["before", exchange(["a"], "answer")[0], "after"]
        assert joints(ends_among(items), waiting=True) == [0, 1]
        assert joints(ends_among(items)) == [0, 1, 2, 3]

    def test_a_result_without_an_id_belongs_to_the_assistant_before_it(self):
        call = message("assistant", "", tool_calls=[{"function": {"name": "f"}}, {"function": {"name": "g"}}])
        items: list[Any] = ["a", call, message("tool", "one"), message("tool", "two"), "b"]
        assert joints(ends_among(items)) == [0, 1, 4, 5]
        assert pending(ends_among(items)) == {}
        assert joints(ends_among(items[:3]), waiting=True) == [0, 1]
        talk: list[Any] = [message("assistant", "calling"), message("tool", "one"), message("tool", "two"), "b"]
        assert joints(ends_among(talk)) == [0, 3, 4]

    def test_an_id_that_nobody_called_by_answers_a_call_without_one(self):
        call = message("assistant", "", tool_calls=[{"function": {"name": "f"}}])
        items: list[Any] = [call, message("tool", "one", tool_call_id="x"), "b"]
        assert joints(ends_among(items)) == [0, 2, 3]
        assert pending(ends_among(items)) == {}

    def test_an_id_that_is_used_again_belongs_to_its_last_call(self):
        once = EXCHANGES[0](["a"], "answer")
        assert joints(ends_among([*once, *once])) == [0, 2, 4]

    @settings(max_examples=100)
    @given(histories(longest=3), st.data())
    def test_a_cut_at_a_joint_parts_nothing(self, history: list[Any], data: st.DataObject):
        ends = ends_among(history)
        wanted = data.draw(st.integers(0, len(history)))
        assert cut_before(ends, wanted) <= wanted <= cut_after(ends, wanted)
        for cut in (cut_before(ends, wanted), cut_after(ends, wanted)):
            called = {name for end in ends[:cut] for name in end.calls}
            recalled = {name for end in ends[cut:] for name in end.calls}
            assert not called & {name for end in ends[cut:] for name in end.results} - recalled


class TestTold:
    def test_a_result_becomes_text_in_the_shape_it_came_in(self):
        plain = message("tool", "forty-two", tool_call_id="a")
        assert told(plain, frozenset({"a"})) == message("user", "[late result of a] forty-two")
        block = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "forty-two"}]}
        kept = {**block, "tool_use_id": "b"}
        assert told(message("user", [block, kept]), frozenset({"a"})) == message(
            "user", [{"type": "text", "text": "[late result of a] forty-two"}, kept]
        )
        assert told(plain, frozenset()) == plain


class TestText:
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
    def test_a_picture_is_told_by_where_it_is_and_never_by_its_bytes(self, block: Any, text: str):
        assert text_of(message("user", [block])) == f"user: {text}"


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


def test_ends_are_read_in_every_shape():
    for exchange in EXCHANGES:
        items = exchange(["a", "b"], "answer")
        assert {name for item in items for name in ends_of(item).calls} == {"a", "b"}
        assert {name for item in items for name in ends_of(item).results} == {"a", "b"}
