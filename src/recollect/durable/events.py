"""Events of a running task, for the log and for the caller's event handler."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from recollect.clock import Clock

EventKind = Literal[
    "started",  # a step's body begins; `attempt` counts from 1
    "finished",  # the step's result is in the checkpoint
    "skipped",  # the step was finished before, or its unknown outcome counts as done
    "failed",  # an attempt failed; `detail` says why
    "retried",  # the step will be attempted again; `detail` says when
    "unknown",  # an earlier run began the step and did not record its end
    "poisoned",  # the step is not attempted again before `checkpoints.retry`
    "compensated",  # the step was undone because a later step failed
    "lost",  # the lease is gone; the step's work in this process is discarded
    "corrupt",  # the newest checkpoint is damaged, and an older one is used
    "done",  # every step of the task is finished
]

_MAX_ERROR_CHARS = 2000

logger = logging.getLogger("recollect.durable")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent:
    """An event of one task."""

    kind: EventKind
    task: str
    at: datetime
    step: str | None = None
    attempt: int | None = None
    detail: str = ""


EventHandler = Callable[[TaskEvent], Any]


class EventEmitter:
    """Sends events to a sync or async handler and to the log; an error in the handler does not fail the task."""

    def __init__(self, handler: EventHandler | None, clock: Clock) -> None:
        self._handler = handler
        self._clock = clock

    async def emit(
        self, kind: EventKind, task: str, step: str | None = None, attempt: int | None = None, detail: str = ""
    ) -> None:
        if kind in ("corrupt", "lost", "poisoned", "unknown"):
            logger.warning("task %r: %s %s", task, kind, step or "")
        if self._handler is None:
            return
        event = TaskEvent(kind=kind, task=task, at=self._clock(), step=step, attempt=attempt, detail=detail)
        try:
            result = self._handler(event)
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 - handlers may raise anything
            # Only the type is logged: the message may quote user content.
            logger.error("the event handler of task %r failed on %r with %s", task, kind, type(error).__name__)


def describe_error(error: BaseException) -> str:
    """Return the type and message of an error as text that every store can keep."""
    return f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS].encode("utf-8", "replace").decode()
