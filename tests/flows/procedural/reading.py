"""Helpers of the procedural memory tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from recollect.tiers.procedural import ProceduralMemory, Procedure
from recollect.types import Hit

DAY = timedelta(days=1)
Opener = Callable[..., Awaitable[ProceduralMemory]]


async def record_outcomes(tier: ProceduralMemory, key: str, results: str) -> None:
    for result in results:
        await tier.record_outcome(key, result == "+")


def keys_of(found: list[Procedure]) -> list[str]:
    return [procedure.key for procedure in found]


def keys_hit(hits: list[Hit]) -> list[str | None]:
    return [hit.item.key for hit in hits]
