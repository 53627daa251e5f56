"""What an agent is doing, as values for whoever watches."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from recollect.errors import BadInput

Kind = Literal[
    "recalled",  # what memory has to say about the task; `text` is the block
    "resumed",  # the run goes on from where another was killed; `step` is the first reply that is not kept
    "thinking",  # the model is asked
    "text",  # a piece of what it says, as it comes
    "tool_started",  # `text` is the arguments as JSON
    "tool_finished",  # `text` is what the model will read of it; it is kept by now, and not called again
    "compacted",  # the oldest steps became a summary, which is `text`
    "answered",  # `text` is the answer
    "trouble",  # something beside the task failed, and the run goes on without it
]

log = logging.getLogger("recollect.agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """One thing that happened in a run; `step` counts the model's replies from 1."""

    kind: Kind
    step: int = 0
    text: str = ""
    tool: str | None = None
    call_id: str | None = None
    failed: bool = False


OnEvent = Callable[[AgentEvent], Any]


class Telling:
    """Tells whoever watches, at once and in order. A watcher that fails is no reason for a run to fail."""

    def __init__(self, on_event: OnEvent | None, on_text: Callable[[str], Any] | None) -> None:
        for name, watcher in (("on_event", on_event), ("on_text", on_text)):
            if watcher is not None and (not callable(watcher) or inspect.iscoroutinefunction(watcher)):
                raise BadInput(f"{name} is a plain function that returns quickly, not {watcher!r:.80}")
        self._on_event = on_event
        self._on_text = on_text

    def tell(self, kind: Kind, **told: Any) -> None:
        if kind == "trouble":
            # By its kind alone: what an error says may quote content, and that is nothing for a log.
            log.warning("something beside the task failed: %s; on_event is told more", _kind_of(sys.exception()))
        self._call(self._on_event, AgentEvent(kind=kind, **told))

    def text(self, step: int, piece: str) -> None:
        """A piece of text, as the model says it."""
        self._call(self._on_text, piece)
        self._call(self._on_event, AgentEvent(kind="text", step=step, text=piece))

    @property
    def listens(self) -> bool:
        return self._on_event is not None or self._on_text is not None

    def _call(self, watcher: Callable[[Any], Any] | None, value: Any) -> None:
        if watcher is None:
            return
        try:
            watcher(value)
        except Exception as error:  # noqa: BLE001 - the run is not the watcher's to end
            log.warning("whoever watches the agent failed with %s", _kind_of(error))


def _kind_of(error: BaseException | None) -> str:
    return "for no known reason" if error is None else type(error).__name__
