"""Working memory with models that fail or hang, and with several adds at the same time."""

from __future__ import annotations

import asyncio

import pytest

from recollect.testing.factories import ManualClock
from recollect.tiers.messages import MessageItem
from recollect.tiers.working import WorkingMemory
from tests.unit.tiers.tool_exchanges import (
    find_pairs,
    openai_exchange,
)

SECRET = "the launch code is 4711"


class TestModelFailures:
    async def fill(self, memory: WorkingMemory, start: int = 0, count: int = 21) -> None:
        for number in range(start, start + count):
            await memory.add(f"item {number} of {SECRET}")

    async def test_raising_model_is_replaced_with_a_warning_without_content(self):
        def broken(prompt: str) -> str:
            raise RuntimeError(prompt)

        memory = WorkingMemory(llm=broken)
        await self.fill(memory)
        assert len(memory.items) == 5
        assert "4711" in memory.summaries[0]
        assert len(memory.warnings) == 1
        assert "RuntimeError; summarized offline (16 items)" in memory.warnings[0]
        assert SECRET not in memory.warnings[0]

    async def test_hanging_model_is_replaced(self):
        async def hangs(prompt: str) -> str:
            await asyncio.Event().wait()
            return ""

        memory = WorkingMemory(llm=hangs, timeout=0.01)
        await self.fill(memory)
        assert len(memory.items) == 5
        assert "gave no answer within 0.01 s; summarized offline" in memory.warnings[0]

    async def test_repeatedly_failing_model_is_paused(self):
        called = 0

        def broken(prompt: str) -> str:
            nonlocal called
            called += 1
            raise RuntimeError

        memory = WorkingMemory(llm=broken, clock=ManualClock())
        await self.fill(memory, count=200)
        assert called == 3
        assert len(memory.warnings) == 12
        assert memory.current_tokens <= 8000

    async def test_warnings_are_limited(self):
        memory = WorkingMemory(llm=lambda _: "", max_items=2, keep_recent=1)
        await self.fill(memory, count=200)
        assert len(memory.warnings) == 20


class GatedModel:
    """Model that answers when its gate opens."""

    def __init__(self) -> None:
        self.called, self.go = asyncio.Event(), asyncio.Event()
        self.prompts: list[str] = []

    async def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        self.called.set()
        await self.go.wait()
        return "summary"


class TestConcurrency:
    async def test_adds_during_a_compression_lose_nothing(self):
        gate = GatedModel()
        memory = WorkingMemory(llm=gate)
        for number in range(20):
            await memory.add(f"w{number}w")
        first = asyncio.create_task(memory.add("w20w"))
        await gate.called.wait()
        others = [asyncio.create_task(memory.add(f"w{number}w")) for number in range(21, 60)]
        await asyncio.sleep(0)
        assert memory.items == [f"w{number}w" for number in range(60)]
        gate.go.set()
        await asyncio.gather(first, *others)
        seen = "".join(gate.prompts) + memory.get_context_block()
        assert all(f"w{number}w" in seen for number in range(60))
        assert memory.items == [f"w{number}w" for number in range(55, 60)]
        assert all(seen.count(f"w{number}w") == 1 for number in range(60))

    async def test_result_arriving_during_compression_is_kept_with_its_call(self):
        gate = GatedModel()
        memory = WorkingMemory(llm=gate, max_items=3, keep_recent=1)
        call, result = openai_exchange(["slow"], "the answer is 42")
        history: list[MessageItem] = [call, "one", "two"]
        for item in history:
            await memory.add(item)
        adding = asyncio.create_task(memory.add("three"))
        await gate.called.wait()
        late = asyncio.create_task(memory.add(result))
        await asyncio.sleep(0)
        gate.go.set()
        await asyncio.gather(adding, late)
        assert find_pairs(memory.items) == (set(), set())
        assert "the answer is 42" in memory.get_context_block()

    async def test_cancelled_compression_loses_nothing(self):
        gate = GatedModel()
        memory = WorkingMemory(llm=gate)
        for number in range(20):
            await memory.add(f"item {number}")
        adding = asyncio.create_task(memory.add("item 20"))
        await gate.called.wait()
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert memory.items == [f"item {number}" for number in range(21)]
        gate.go.set()
        await memory.add("item 21")
        assert memory.summaries == ["summary"]
        assert len(memory.items) == 5

    async def test_clear_during_compression_discards_the_summary(self):
        gate = GatedModel()
        memory = WorkingMemory(llm=gate)
        for number in range(20):
            await memory.add(f"item {number}")
        adding = asyncio.create_task(memory.add("item 20"))
        await gate.called.wait()
        memory.clear()
        await memory.add("new")
        gate.go.set()
        await adding
        assert (memory.items, memory.summaries) == (["new"], [])

    async def test_snapshot_during_a_compression_is_complete(self):
        gate = GatedModel()
        memory = WorkingMemory(llm=gate)
        for number in range(20):
            await memory.add(f"item {number}")
        adding = asyncio.create_task(memory.add("item 20"))
        await gate.called.wait()
        assert WorkingMemory.from_snapshot(memory.snapshot()).items == [f"item {number}" for number in range(21)]
        gate.go.set()
        await adding
