"""Helpers to list the stored data of a user."""

from __future__ import annotations

from typing import Any

from recollect import AgentMemory, MemoryItem
from recollect.stores.filters import Where


async def facts(memory: AgentMemory) -> list[MemoryItem]:
    """Return all facts of the user, including superseded ones, oldest first."""
    records = memory._engine.stores.records("semantic")
    return list(reversed(await records.find(Where(memory.semantic._space), limit=10_000)))


async def contents(memory: AgentMemory) -> list[str]:
    """Return the contents of the current facts."""
    now = memory._engine.clock()
    return [item.content for item in await facts(memory) if item.live_at(now)]


async def everything(memory: AgentMemory) -> Any:
    """Return all stored data of the user, for a later comparison."""
    stores = memory._engine.stores
    log = stores.log("episodic")
    return (
        await facts(memory),
        [
            (space, [entry.id for entry in await log.read(space, limit=10_000, hidden=True)])
            for tier in ("conversation", "episodic")
            for space in await log.logs(memory.scope.space(tier), hidden=True)
        ],
        await stores.records("semantic").find(Where(memory.scope.space("lifecycle")), limit=10_000),
    )
