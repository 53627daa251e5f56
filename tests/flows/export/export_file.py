"""Helpers to fill a memory in every tier, and to read and change the lines of its export."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from recollect import AgentMemory
from recollect.stores.filters import Where
from recollect.testing import ManualClock
from recollect.types import MemoryItem

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def rewrite(path: Path, change: Callable[[list[Line]], list[Line] | None]) -> None:
    lines = read(path)
    lines = change(lines) or lines
    if "end" in lines[-1]:
        lines[-1] = {"end": len(lines) - 2}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


async def list_facts(memory: AgentMemory) -> list[MemoryItem]:
    return await memory._engine.stores.records("semantic").find(Where(memory.semantic._space), limit=10_000)


async def fill(memory: AgentMemory, clock: ManualClock) -> None:
    """Store something in every tier, including superseded facts and old versions."""
    await memory.remember("Ada prefers metric units.", importance=0.8, metadata={"project": {"name": "apollo", "n": 7}})
    await memory.remember("The office is in Oslo.", key="office")
    clock.forward(timedelta(seconds=1))
    await memory.remember("The office is in Bergen.", key="office")
    clock.forward(timedelta(minutes=30))
    await memory.remember("The office is in Oslo.", key="office")
    clock.forward(timedelta(minutes=30))
    await memory.remember("The office is in Bergen.", key="office", source="agent")
    await memory.remember("Said in passing.", session="s9", position=3, speaker="Mina")
    await memory.remember("True for a while.", valid_from=clock(), valid_to=clock() + timedelta(days=9), pinned=True)
    await memory.semantic.search("metric units", min_relevance=0.0)
    await memory.semantic.search("metric units", min_relevance=0.0)
    await memory.procedural.save("deploy", "Push a tag.", description="how to ship", tags=["release"])
    await memory.procedural.record_outcome("deploy", False, note="the pipeline was red", seconds=3.5)
    await memory.procedural.save("deploy", "Push a tag and wait.")
    await memory.procedural.record_outcome("deploy", True)
    await memory.procedural.save("old", "Do not.")
    await memory.procedural.retire("old")
    for session in ("s1", "s2"):
        there = memory.scoped(session=session)
        for n in range(40):
            calls = [{"name": "look", "arguments": {"n": n}, "result": "x" * 3000}] if n % 7 == 0 else []
            await there.record_turn(f"message {n} about tea", f"answer {n}", tool_calls=calls, metadata={"n": n})
        assert await there.conversation.summary()
    await memory.episodic.store("No session at all.", kind="decision", at=clock() - timedelta(days=1))
    memory.working.set_task("Write the report")
    memory.working.add_result("figures", [1, 2, 3])
    await memory.working.add({"role": "user", "content": "hello"})
