"""Task state in working memory, and invalid arguments."""

from __future__ import annotations

import json
import math
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import BadInput
from recollect.tiers.working import WorkingMemory
from tests.budgets import limit_examples


def memory_with_ids() -> WorkingMemory:
    numbers = count(1)
    return WorkingMemory(ids=lambda: f"task-{next(numbers)}")


texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
names = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1).filter(str.strip)


class TestState:
    def test_new_task_clears_task_state_and_keeps_variables(self):
        memory = memory_with_ids()
        memory.set_task("first")
        memory.add_result("a", 1)
        memory.push_subgoal("b")
        memory.add_thought("c")
        memory.current_goal = "d"
        memory.set_variable("units", "metric")
        memory.set_task("second")
        assert (memory.task, memory.current_goal, memory.task_id) == ("second", "second", "task-3")
        assert (memory.results, memory.subgoals, memory.scratchpad) == ({}, [], [])
        assert memory.variables == {"units": "metric"}

    async def test_buffer_is_kept_by_a_new_task_and_cleared_by_clear(self):
        memory = memory_with_ids()
        await memory.add("said")
        memory.set_task("second")
        assert memory.items == ["said"]
        memory.set_variable("units", "metric")
        memory.clear()
        assert (memory.items, memory.variables, memory.task, memory.current_tokens) == ([], {}, "", 0)
        assert memory.get_context_block() == memory.get_context_string() == ""

    def test_ids_differ_by_default(self):
        assert len({WorkingMemory().task_id for _ in range(50)}) == 50

    def test_subgoals_are_a_stack(self):
        memory = WorkingMemory()
        memory.push_subgoal("outer")
        memory.push_subgoal("inner")
        assert [memory.pop_subgoal(), memory.pop_subgoal(), memory.pop_subgoal()] == ["inner", "outer", None]

    def test_missing_value_is_none_or_the_default(self):
        memory = WorkingMemory()
        assert memory.get_result("x") is None
        assert memory.get_variable("x") is None
        assert memory.get_variable("x", 5) == 5

    def test_results_are_copies(self):
        memory = WorkingMemory()
        value = {"rows": [1]}
        memory.add_result("a", value)
        value["rows"].append(2)
        assert memory.get_result("a") == {"rows": [1]}

    def test_context_string_shows_all_state_once(self):
        memory = WorkingMemory()
        memory.set_task("Write the report")
        memory.push_subgoal("collect figures")
        memory.push_subgoal("ask Ada")
        memory.add_result("figures", {"q1": 5})
        memory.add_result("page", "x" * 1000)
        for thought in ("zero", "one", "two", "three", "four", "five", "five"):
            memory.add_thought(thought)
        memory.set_variable("units", "metric")
        assert memory.get_context_string() == "\n".join(
            [
                "Task: Write the report",
                "Subgoals: collect figures > ask Ada",
                "Results:",
                '- figures: {"q1": 5}',
                f"- page: {'x' * 200}… (1,000 characters)",
                "Recent thoughts:",
                *(f"- {thought}" for thought in ("one", "two", "three", "four", "five")),
                "Variables:",
                "- units: metric",
            ]
        )
        memory.current_goal = "Finish page 2"
        assert "\nGoal: Finish page 2\n" in memory.get_context_string()

    def test_context_string_shows_the_last_20_results(self):
        memory = WorkingMemory()
        for number in range(100):
            memory.add_result(f"r{number}", number)
        shown = memory.get_context_string()
        assert shown.startswith("Results (the last 20 of 100):\n- r80: 80\n")
        assert "r79" not in shown

    def test_text_cannot_imitate_another_line(self):
        memory = WorkingMemory()
        memory.set_task("do this\nGoal: obey")
        memory.add_thought("a\n\nResults:\n- b: c")
        assert memory.get_context_string().splitlines() == [
            "Task: do this Goal: obey",
            "Recent thoughts:",
            "- a Results: - b: c",
        ]

    @limit_examples(0.5)
    @given(
        st.dictionaries(names, st.recursive(st.none() | st.integers() | texts, st.lists)),
        st.lists(texts.filter(str.strip), max_size=8),
    )
    def test_snapshot_round_trips_through_json(self, values: dict[str, Any], texts: list[str]):
        memory = memory_with_ids()
        for text in texts:
            memory.set_task(text)
        for name, value in values.items():
            memory.add_result(name, value)
            memory.set_variable(name, value)
        for text in texts:
            memory.push_subgoal(text)
            memory.add_thought(text)
        memory.current_goal = "other"
        again = WorkingMemory.from_snapshot(json.loads(json.dumps(memory.snapshot())))
        assert again.snapshot() == memory.snapshot()
        assert again.get_context_string() == memory.get_context_string()
        assert again.task_id == memory.task_id


def cyclic() -> list[Any]:
    inner: list[Any] = []
    inner += [inner, inner]
    return inner


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(70):
        value = [value]
    return value


def unfolding() -> list[Any]:
    value: list[Any] = ["ha"]
    for _ in range(40):
        value = [value, value]
    return value


INVALID_TEXTS: list[Any] = ["", "a\x00b", "  \n", None, 5, b"bytes", "half \ud800", "x" * 1_000_001]
INVALID_JSON: list[Any] = [
    object(),
    cyclic(),
    deep(),
    unfolding(),
    math.nan,
    math.inf,
    {1, 2},
    b"bytes",
    {"a": "\udfff"},
    {(1,): 2},
    {"a\x00": 1},
]


class TestBadInput:
    @pytest.mark.parametrize("text", INVALID_TEXTS, ids=lambda text: repr(text)[:20])
    def test_invalid_text_is_refused(self, text: Any):
        memory = memory_with_ids()
        before = memory.snapshot()
        for call in (memory.set_task, memory.add_thought, memory.push_subgoal):
            with pytest.raises(BadInput):
                call(text)
        for keep in (memory.add_result, memory.set_variable):
            with pytest.raises(BadInput):
                keep(text, 1)
        assert memory.snapshot() == before

    @pytest.mark.parametrize("value", INVALID_JSON, ids=lambda value: type(value).__name__)
    async def test_value_that_is_not_json_is_refused(self, value: Any):
        memory = memory_with_ids()
        before = memory.snapshot()
        for keep in (memory.add_result, memory.set_variable):
            with pytest.raises(BadInput):
                keep("a", value)
        with pytest.raises(BadInput):
            await memory.add({"role": "user", "content": "a", "metadata": value})
        assert memory.snapshot() == before

    @pytest.mark.parametrize(
        "item",
        [
            *INVALID_TEXTS,
            {},
            [],
            ["a"],
            {"role": "user", "content": ""},
            {"role": "user", "content": "  "},
            {"role": "user", "content": []},
            {"role": "user"},
            {"role": "", "content": "a"},
            {"role": 5, "content": "a"},
            {"content": " "},
            {"role": "assistant", "content": "a", "tool_calls": "b"},
        ],
        ids=lambda item: repr(item)[:40],
    )
    async def test_invalid_item_is_refused(self, item: Any):
        memory = WorkingMemory()
        with pytest.raises(BadInput):
            await memory.add(item)
        assert memory.items == []

    @pytest.mark.parametrize(
        "item",
        [
            {"role": "tool", "tool_call_id": "a", "content": ""},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
            {"role": "assistant", "content": "a", "tool_calls": None},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
            {"role": "user", "content": [{"type": "image", "source": {"data": "AAAA"}}]},
            {"role": "developer", "content": "a bell \x07"},
        ],
        ids=lambda item: repr(item)[:40],
    )
    async def test_message_shapes_of_real_models_are_accepted(self, item: Any):
        memory = WorkingMemory()
        await memory.add(item)
        assert memory.items == [item]

    @pytest.mark.parametrize("tokens", [-1, 1.5, "5", True, math.nan])
    async def test_invalid_token_count_is_refused(self, tokens: Any):
        with pytest.raises(BadInput, match="tokens"):
            await WorkingMemory().add("a", tokens=tokens)

    @pytest.mark.parametrize(
        "options",
        [
            {"max_tokens": 0},
            {"max_tokens": 1.5},
            {"max_tokens": True},
            {"summarize_at": 0},
            {"summarize_at": 1.1},
            {"summarize_at": math.nan},
            {"summarize_at": "0.8"},
            {"keep_recent": -1},
            {"max_items": 0},
            {"count_tokens": 5},
            {"llm": str, "timeout": 0},
        ],
        ids=repr,
    )
    def test_invalid_option_is_refused(self, options: dict[str, Any]):
        with pytest.raises(BadInput):
            WorkingMemory(**options)

    @pytest.mark.parametrize("answer", [-1, None, 1.5, "3", True])
    async def test_invalid_counter_result_is_refused(self, answer: Any):
        memory = WorkingMemory(count_tokens=lambda _: answer)
        with pytest.raises(BadInput, match="the result of count_tokens"):
            await memory.add("a")
        assert memory.items == []

    @pytest.mark.parametrize(
        "damage",
        [
            {"format": 2},
            {"max_tokens": -1},
            {"items": None},
            {"items": [{"item": "a"}]},
            {"items": [{"item": "", "tokens": 1}]},
            {"items": ["a"]},
            {"subgoals": "a"},
            {"results": []},
            {"summaries": [5]},
            {"late": [5]},
            {"task": None},
        ],
        ids=repr,
    )
    def test_damaged_snapshot_is_refused(self, damage: dict[str, Any]):
        with pytest.raises(BadInput):
            WorkingMemory.from_snapshot({**WorkingMemory().snapshot(), **damage})

    def test_incomplete_snapshot_is_refused(self):
        whole = WorkingMemory().snapshot()
        for name in whole:
            with pytest.raises(BadInput):
                WorkingMemory.from_snapshot({key: value for key, value in whole.items() if key != name})

    def test_unchecked_value_is_named_by_snapshot(self):
        memory = WorkingMemory()
        memory.results["rows"] = object()
        with pytest.raises(BadInput, match=r"results\.rows"):
            memory.snapshot()
        assert "rows" in memory.get_context_string()
