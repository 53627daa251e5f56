"""Asking again when a provider is busy: how often, and how long to wait in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from recollect.inference.failures import Trouble

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """Waits twice as long each time, less a random part so that many callers do not come back at once.

    A provider that says how long to wait is believed, up to `longest`; one that asks for more is not waited for.
    """

    times: int
    first: float = 0.5
    most: float = 30.0
    longest: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Random = field(default_factory=Random)

    async def persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """What the call gives, or the last `Trouble` it was in."""
        for attempt in range(self.times):
            try:
                return await call()
            except Trouble as trouble:
                pause = self._pause(attempt, trouble)
                if pause is None:
                    raise
            await self.sleep(pause)
        return await call()

    def _pause(self, attempt: int, trouble: Trouble) -> float | None:
        if not trouble.again or (trouble.wait or 0.0) > self.longest:
            return None
        grown = min(self.first * 2.0**attempt, self.most)
        return max(grown * (0.5 + self.random.random() / 2), trouble.wait or 0.0)
