"""The same thing told in several ways, and what is found of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from recollect import AgentMemory, MemoryItem
from recollect.testing import ManualClock

DAY = timedelta(days=1)
TEA = ("Ada drinks tea.", "ada drinks tea", "Remember that Ada drinks tea!")


async def found(memory: AgentMemory, query: str, **options: Any) -> list[str]:
    hits = await memory.semantic.search(query, 50, min_relevance=0.0, **options)
    return sorted(hit.item.content for hit in hits)


async def told(memory: AgentMemory, clock: ManualClock) -> list[MemoryItem]:
    """The same thing in three ways; the first is the oldest, and will survive."""
    items = []
    for text in TEA:
        items.append(await memory.remember(text, importance=0.5))
        clock.forward(DAY)
    return items


async def kept(memory: AgentMemory, id: str) -> MemoryItem:
    item = await memory.semantic.get(id)
    assert item is not None
    return item
