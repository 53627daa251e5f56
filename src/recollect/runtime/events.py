"""What happens to a task while it runs, as values for whoever watches."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from recollect.clock import Clock

Kind = Literal[
    "started",  # a step's body begins; `attempt` counts from 1
    "finished",  # its result is in the checkpoint
    "skipped",  # it was finished before, or its unknown outcome counts as done
    "failed",  # an attempt failed; `detail` says why
    "retried",  # it will be attempted again; `detail` says when
    "unknown",  # a run before this one began it, and nobody knows how that ended
    "poisoned",  # it is not attempted any more until somebody calls retry()
    "compensated",  # it was undone, because a later one failed for good
    "lost",  # the lease is gone; what the step did here is discarded
    "corrupt",  # the newest checkpoint is damaged, and the one before it was used
    "done",  # every step of the task is finished
]

log = logging.getLogger("recollect.runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to a task."""

    kind: Kind
    task: str
    at: datetime
    step: str | None = None
    attempt: int | None = None
    detail: str = ""


Watcher = Callable[[Event], Any]


class Telling:
    """Tells a watcher, sync or async, and the log. A watcher that fails is no reason for a task to fail."""

    def __init__(self, watcher: Watcher | None, clock: Clock) -> None:
        self._watcher = watcher
        self._clock = clock

    async def tell(
        self, kind: Kind, task: str, step: str | None = None, attempt: int | None = None, detail: str = ""
    ) -> None:
        if kind in ("corrupt", "lost", "poisoned", "unknown"):
            log.warning("task %r: %s %s", task, kind, step or "")
        if self._watcher is None:
            return
        event = Event(kind=kind, task=task, at=self._clock(), step=step, attempt=attempt, detail=detail)
        try:
            answer = self._watcher(event)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the watcher's
            # The type alone: the message of an error may hold what somebody said.
            log.error("the watcher of task %r failed on %r with %s", task, kind, type(error).__name__)
