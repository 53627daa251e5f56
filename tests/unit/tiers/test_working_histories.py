"""Working memory keeps its promises whatever is added, in whatever order and size."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.tiers.working import WorkingMemory
from recollect.words.tokens import count_tokens
from tests.unit.tiers.exchanges import (
    MODELS,
    Kept,
    histories,
    pairs_of,
)

budgets = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 60) | st.integers(60, 1500),
        "summarize_at": st.floats(0.05, 1.0),
        "keep_recent": st.integers(0, 7),
        "max_items": st.integers(1, 25) | st.none(),
    }
)


class TestWhateverIsAdded:
    @settings(max_examples=500)
    @given(histories(longest=200), budgets, st.sampled_from([*MODELS, "kept"]), st.integers(1, 5))
    async def test_tokens_and_pairs_hold_whatever_the_model_does(
        self, history: list[Any], budget: Any, model: str, at_once: int
    ):
        """Items are added one by one, or several at the same time, and none goes before it is summed up."""
        memory = WorkingMemory(**budget, llm=Kept() if model == "kept" else MODELS[model], timeout=0.002)
        for at in range(0, len(history), at_once):
            # The list itself, which a compression replaces: a summary of little room may read as it did before.
            before, warned, held = memory._summaries, memory.warnings, memory.items
            fresh = history[at : at + at_once]
            await asyncio.gather(*(memory.add(item) for item in fresh))
            assert memory.current_tokens <= memory.max_tokens
            assert count_tokens(memory.get_context_block()) <= memory.max_tokens
            calls, results = pairs_of(memory.items)
            _, answered = pairs_of(history[: at + at_once])
            assert results <= calls, "a result without its call"
            assert calls & answered <= results, "a call without its result"
            beside = json.dumps(memory.items)
            assert not [name for name in pairs_of(held)[1] if f"late result of {name}]" in beside], "a pair was parted"
            if memory._summaries is before and memory.warnings == warned:
                assert memory.items[: len(held)] == held, "changed without a word"
                assert len(memory.items) == len(held) + len(fresh), "lost without a word"

    @settings(max_examples=120)
    @given(histories(longest=400), st.integers(0, 7), st.integers(1, 25))
    async def test_the_last_items_stay_word_for_word_where_they_fit(self, history: list[Any], keep: int, most: int):
        memory = WorkingMemory(max_tokens=4000, keep_recent=keep, max_items=most)
        keep = min(keep, most)
        for at, item in enumerate(history):
            await memory.add(item)
            so_far = history[: at + 1]
            if sum(count_tokens(json.dumps(one)) for one in so_far) <= 2500:
                last = so_far[max(0, len(so_far) - keep) :]
                tail = memory.items[len(memory.items) - len(last) :]
                late = ["late result of" in json.dumps(item) for item in tail]
                assert [a for a, told in zip(tail, late, strict=True) if not told] == [
                    b for b, told in zip(last, late, strict=True) if not told
                ]

    @settings(max_examples=500)
    @given(histories(longest=40), st.integers(1, 5))
    async def test_every_item_is_kept_or_was_shown_to_the_model(self, history: list[Any], at_once: int):
        model = Kept()
        memory = WorkingMemory(max_tokens=100_000, max_items=3, keep_recent=1, llm=model)
        for at in range(0, len(history), at_once):
            await asyncio.gather(*(memory.add(item) for item in history[at : at + at_once]))
        seen = "\n".join(model.prompts) + memory.get_context_block()
        said = {word for item in history for word in re.findall(r"\bm\d+[xy]\d*", json.dumps(item))}
        assert {word for word in said if not re.search(rf"\b{word}\b", seen)} == set()

    @settings(max_examples=40)
    @given(histories(), budgets)
    async def test_the_same_history_gives_the_same_memory(self, history: list[Any], budget: Any):
        first, second = (WorkingMemory(**budget, ids=lambda: "id") for _ in range(2))
        for item in history:
            await first.add(item)
            await second.add(item)
        assert first.snapshot() == second.snapshot()
        assert first.get_context_block() == second.get_context_block()

    @settings(max_examples=60)
    @given(histories(), budgets, st.integers(0, 20))
    async def test_a_memory_from_a_snapshot_goes_on_as_the_first_would_have(self, history: Any, budget: Any, at: int):
        memory = WorkingMemory(**budget, ids=lambda: "id")
        for item in history[:at]:
            await memory.add(item)
        again = WorkingMemory.from_snapshot(json.loads(json.dumps(memory.snapshot())), ids=lambda: "id")
        for item in history[at:]:
            await memory.add(item)
            await again.add(item)
        assert again.snapshot() == memory.snapshot()
