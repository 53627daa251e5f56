"""Facts with the same meaning, and helpers to read them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from recollect import AgentMemory, MemoryItem
from recollect.testing import ManualClock

DAY = timedelta(days=1)
TEA = ("Ada drinks tea.", "ada drinks tea", "Remember that Ada drinks tea!")


async def search_contents(memory: AgentMemory, query: str, **options: Any) -> list[str]:
    hits = await memory.semantic.search(query, 50, min_relevance=0.0, **options)
    return sorted(hit.item.content for hit in hits)


async def remember_variants(memory: AgentMemory, clock: ManualClock) -> list[MemoryItem]:
    """Remember one fact in three spellings; the first is the oldest and survives a merge."""
    items = []
    for text in TEA:
        items.append(await memory.remember(text, importance=0.5))
        clock.forward(DAY)
    return items


async def load_item(memory: AgentMemory, id: str) -> MemoryItem:
    item = await memory.semantic.get(id)
    assert item is not None
    return item
