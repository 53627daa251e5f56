"""A time by which something has to be over, as `asyncio.timeout` keeps it, for calls that are many and mostly in time.

That one sets a timer for every call and takes it back, which costs more than some calls do. Here all calls of an event
loop share one timer: it is set for the first of them that could be late, and left alone when that one is not.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any


class within:  # noqa: N801 - reads as `asyncio.timeout` does
    """`TimeoutError` for what is awaited inside and has not ended after so many seconds; it is cancelled first."""

    __slots__ = ("_before", "_late", "_seconds", "_task", "_watch", "when")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._late = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only what runs in a task can be called off")
        self._task = task
        self._before = task.cancelling()
        self._watch = _watch_of(task.get_loop())
        self.when = self._watch.loop.time() + self._seconds
        self._watch.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.calls.discard(self)
        # Whoever else has cancelled it meanwhile has the last word.
        if self._late and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def call_off(self) -> None:
        self._late = True
        self._task.cancel()


class _Watch:
    """The calls of one event loop, and the timer for the first that could be late."""

    __slots__ = ("_timer", "calls", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.calls: set[within] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: within) -> None:
        self.calls.add(call)
        if self._timer is None or call.when < self._timer.when():
            self._set(call.when)

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._look)

    def _look(self) -> None:
        """Call off whoever is late, and look again when the next one could be."""
        self._timer = None
        now = self.loop.time()
        for call in [one for one in self.calls if one.when <= now]:
            self.calls.discard(call)
            call.call_off()
        if self.calls:
            self._set(min(one.when for one in self.calls))


_here: Any = threading.local()


def _watch_of(loop: asyncio.AbstractEventLoop) -> _Watch:
    """A thread runs one loop at a time, and mostly the same one."""
    watch: _Watch | None = getattr(_here, "watch", None)
    if watch is None or watch.loop is not loop:
        watch = _here.watch = _Watch(loop)
    return watch
