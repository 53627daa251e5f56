"""Pauses between attempts, when somebody else wrote first: they grow, so that the others get done."""

from __future__ import annotations

import asyncio


async def pause(tries: int) -> None:
    """A moment after the first attempt, a twentieth of a second after many."""
    await asyncio.sleep(min(0.001 * tries, 0.05))
