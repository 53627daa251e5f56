"""Helpers for the durable flows: recorded events, instant waits and steps that record their runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from recollect.durable import TaskEvent, Timing


class Killed(BaseException):
    """Simulates a kill within the process: no step and no agent may handle it."""


class Watch:
    """Event handler that records the events."""

    def __init__(self) -> None:
        self.events: list[TaskEvent] = []

    def __call__(self, event: TaskEvent) -> None:
        self.events.append(event)

    def select(self, *kinds: str) -> list[tuple[str, str | None]]:
        return [(event.kind, event.step) for event in self.events if event.kind in kinds]


class Waits:
    """Records waits instead of sleeping, and makes a heartbeat on each `beat` call."""

    def __init__(self, chance: float = 1.0) -> None:
        self.slept: list[float] = []
        self.now = 0.0
        self.chance = chance
        self._beats: asyncio.Queue[None] = asyncio.Queue()
        self._resting = asyncio.Event()
        self.asked_to_beat: list[float] = []

    @property
    def pace(self) -> Timing:
        return Timing(
            sleep=self._sleep, heartbeat_sleep=self._beat, monotonic=lambda: self.now, random=lambda: self.chance
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    async def _beat(self, seconds: float) -> None:
        self.asked_to_beat.append(seconds)
        self._resting.set()
        await self._beats.get()

    def beat(self) -> None:
        self._beats.put_nowait(None)

    async def beaten(self) -> None:
        """Make a heartbeat, and wait until it is done."""
        await asyncio.sleep(0)
        self._resting.clear()
        self.beat()
        await self._resting.wait()


class Trail:
    """Steps by name, with the order in which their bodies ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.keys: list[str] = []

    def step(self, name: str, then: Callable[..., Any] | None = None) -> Callable[..., Awaitable[Any]]:
        async def body(state: dict[str, Any], ctx: Any) -> Any:
            self.ran.append(name)
            self.keys.append(ctx.idempotency_key)
            if then is None:
                return name.upper()
            answer = then(state, ctx)
            return await answer if asyncio.iscoroutine(answer) else answer

        body.__name__ = name
        return body

    def steps(self, names: str) -> list[Callable[..., Awaitable[Any]]]:
        return [self.step(name) for name in names.split()]


def kill(*_: Any) -> None:
    raise Killed


def refuse(*_: Any) -> None:
    raise OSError("the line is busy")
