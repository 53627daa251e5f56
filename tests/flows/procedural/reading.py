"""What the flows of procedural memory try and read off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from recollect.tiers.procedural import ProceduralMemory
from recollect.tiers.procedure import Procedure
from recollect.values import Hit

DAY = timedelta(days=1)
Opener = Callable[..., Awaitable[ProceduralMemory]]


async def tried(tier: ProceduralMemory, key: str, results: str) -> None:
    for result in results:
        await tier.record_outcome(key, result == "+")


def keys_of(found: list[Procedure]) -> list[str]:
    return [one.key for one in found]


def keys_hit(hits: list[Hit]) -> list[str | None]:
    return [hit.item.key for hit in hits]
