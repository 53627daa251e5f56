"""A held lease: renewed while its holder works, and given up for lost before it can end."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
from collections.abc import Awaitable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from recollect.errors import FencedOut, StoreError
from recollect.runtime.failpoints import reach
from recollect.runtime.step import Pace
from recollect.stores.base import Lease, Tasks

T = TypeVar("T")

# A holder stops at this share of the time, counted from before it asked: by then nobody else can have the lease.
_SAFE = 0.9
_BEATS = 3
# After a renewal that failed there is time for a few more before the lease ends.
_HURRIED = 12


def worker_name() -> str:
    """Who holds a lease: machine and process for the person who looks, and a part that no other run has."""
    return f"{platform.node() or 'worker'}:{os.getpid()}:{secrets.token_hex(4)}"


class LeaseLost(Exception):
    """The lease is gone; raised inside the runtime, which makes a `FencedOut` of it."""


class Heartbeat:
    """Renews a lease in the background. `guard` runs something under it, and cancels that when the lease is lost."""

    def __init__(self, store: Tasks, lease: Lease, ttl: timedelta, pace: Pace, asked: float) -> None:
        self._store = store
        self._lease = lease
        self._ttl = ttl
        self._pace = pace
        self._deadline = asked + ttl.total_seconds() * _SAFE
        self.lost = False
        self._why = ""
        self._working: asyncio.Task[Any] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    def check(self) -> None:
        """`LeaseLost` when it is, by what the store said or by our own watch."""
        if not self.lost and self._pace.monotonic() >= self._deadline:
            self._lose("its time ran out before it could be renewed")
        if self.lost:
            raise LeaseLost(self._why)

    async def guard(self, work: Awaitable[T]) -> T:
        """The answer of the work, which is cancelled as soon as the lease is lost: then it counts for nothing."""
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._working = task
        try:
            answer = await work
        except asyncio.CancelledError as error:
            if task.cancelling() <= before:  # nobody cancelled us: it was cancelled from within, which is a failure
                raise RuntimeError("something that the step waited for was cancelled") from error
            if self.lost and task.uncancel() <= before:
                raise LeaseLost(self._why) from error
            raise  # somebody else wants an end of it too
        finally:
            self._working = None
        if self.lost:
            while task.cancelling() > before:  # it took no notice of being cancelled
                task.uncancel()
            raise LeaseLost(self._why)
        return answer

    async def _beat(self) -> None:
        wait = self._ttl.total_seconds() / _BEATS
        try:
            while not self.lost:
                await self._pace.beat(wait)
                wait = self._ttl.total_seconds() / (_BEATS if await self._renewed() else _HURRIED)
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody renews the lease any more
            self._lose(f"its heartbeat failed with {type(error).__name__}: {error}")

    async def _renewed(self) -> bool:
        asked = self._pace.monotonic()
        if asked >= self._deadline:
            self._lose("its time ran out before it could be renewed")
            return False
        reach("heartbeat.before")
        try:
            async with asyncio.timeout(self._deadline - asked):
                self._lease = await self._store.renew(self._lease, self._ttl)
                task = await self._store.task(self._lease.space, self._lease.task)
        except FencedOut as error:
            self._lose(str(error))
            return False
        except (StoreError, TimeoutError):  # it may pass; our own watch ends it if it does not
            return False
        reach("heartbeat.after")
        self._deadline = asked + self._ttl.total_seconds() * _SAFE
        if task is not None and task.status == "failed":
            self._lose("it was cancelled")
        return True

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = True
        self._why = why
        if self._working is not None:
            self._working.cancel()
