"""Little helpers to talk with a memory, and to see what it knows afterwards."""

from __future__ import annotations

from typing import Any

from recollect import AgentMemory, MemoryItem
from recollect.stores.where import Where


async def facts(memory: AgentMemory) -> list[MemoryItem]:
    """Every fact of the user, whether it holds or not, oldest first."""
    records = memory._parts.stores.records("semantic")
    return list(reversed(await records.find(Where(memory.semantic.space), limit=10_000)))


async def contents(memory: AgentMemory) -> list[str]:
    """What holds now."""
    now = memory._parts.clock()
    return [item.content for item in await facts(memory) if item.live_at(now)]


async def everything(memory: AgentMemory) -> Any:
    """All that the store holds of this user, to be compared with itself later."""
    stores = memory._parts.stores
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
