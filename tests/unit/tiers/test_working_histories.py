"""Working memory with random histories and budgets."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recollect.language.analysis import count_tokens
from recollect.tiers.working import WorkingMemory
from tests.budgets import limit_examples
from tests.unit.tiers.tool_exchanges import (
    MODELS,
    SummaryModel,
    find_pairs,
    histories,
)

budgets = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 60) | st.integers(60, 1500),
        "summarize_at": st.floats(0.05, 1.0),
        "keep_recent": st.integers(0, 7),
        "max_items": st.integers(1, 25) | st.none(),
    }
)


class TestRandomHistories:
    @limit_examples(0.5)
    @given(histories(longest=200), budgets, st.sampled_from([*MODELS, "kept"]), st.integers(1, 5))
    async def test_token_limit_and_pairs_hold_for_any_model(
        self, history: list[Any], budget: Any, model: str, at_once: int
    ):
        """Items are added one by one or concurrently; none is removed before it is summarized."""
        memory = WorkingMemory(**budget, llm=SummaryModel() if model == "kept" else MODELS[model], timeout=0.002)
        for at in range(0, len(history), at_once):
            # A compression replaces the list; a short summary may have the same text as before.
            before, warnings_before, items_before = memory._summaries, memory.warnings, memory.items
            new_items = history[at : at + at_once]
            await asyncio.gather(*(memory.add(item) for item in new_items))
            assert memory.current_tokens <= memory.max_tokens
            assert count_tokens(memory.get_context_block()) <= memory.max_tokens
            calls, results = find_pairs(memory.items)
            _, answered = find_pairs(history[: at + at_once])
            assert results <= calls, "a result without its call"
            assert calls & answered <= results, "a call without its result"
            text = json.dumps(memory.items)
            assert not [name for name in find_pairs(items_before)[1] if f"late result of {name}]" in text], (
                "a pair was separated"
            )
            # At the limit of 20, a new warning with the text of the one that it pushes out is not seen.
            if memory._summaries is before and memory.warnings == warnings_before and len(warnings_before) < 20:
                assert memory.items[: len(items_before)] == items_before, "changed without a warning"
                assert len(memory.items) == len(items_before) + len(new_items), "lost without a warning"

    @limit_examples(0.4)
    @given(histories(longest=400), st.integers(0, 7), st.integers(1, 25))
    async def test_last_items_are_unchanged_if_they_fit(self, history: list[Any], keep: int, most: int):
        memory = WorkingMemory(max_tokens=4000, keep_recent=keep, max_items=most)
        keep = min(keep, most)
        for at, item in enumerate(history):
            await memory.add(item)
            so_far = history[: at + 1]
            if sum(count_tokens(json.dumps(added)) for added in so_far) <= 2500:
                last = so_far[max(0, len(so_far) - keep) :]
                tail = memory.items[len(memory.items) - len(last) :]
                late = ["late result of" in json.dumps(item) for item in tail]
                assert [a for a, is_late in zip(tail, late, strict=True) if not is_late] == [
                    b for b, is_late in zip(last, late, strict=True) if not is_late
                ]

    @given(histories(longest=40), st.integers(1, 5))
    async def test_every_item_is_kept_or_was_shown_to_the_model(self, history: list[Any], at_once: int):
        model = SummaryModel()
        memory = WorkingMemory(max_tokens=100_000, max_items=3, keep_recent=1, llm=model)
        for at in range(0, len(history), at_once):
            await asyncio.gather(*(memory.add(item) for item in history[at : at + at_once]))
        seen = "\n".join(model.prompts) + memory.get_context_block()
        markers = {word for item in history for word in re.findall(r"\bm\d+[xy]\d*", json.dumps(item))}
        assert {word for word in markers if not re.search(rf"\b{word}\b", seen)} == set()

    @limit_examples(0.4)
    @given(histories(), budgets)
    async def test_same_history_gives_the_same_memory(self, history: list[Any], budget: Any):
        first, second = (WorkingMemory(**budget, ids=lambda: "id") for _ in range(2))
        for item in history:
            await first.add(item)
            await second.add(item)
        assert first.snapshot() == second.snapshot()
        assert first.get_context_block() == second.get_context_block()

    @limit_examples(0.3)
    @given(histories(), budgets, st.integers(0, 20))
    async def test_restored_snapshot_continues_like_the_original(self, history: Any, budget: Any, at: int):
        memory = WorkingMemory(**budget, ids=lambda: "id")
        for item in history[:at]:
            await memory.add(item)
        again = WorkingMemory.from_snapshot(json.loads(json.dumps(memory.snapshot())), ids=lambda: "id")
        for item in history[at:]:
            await memory.add(item)
            await again.add(item)
        assert again.snapshot() == memory.snapshot()
