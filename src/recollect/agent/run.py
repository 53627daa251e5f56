"""State of an agent's run: its steps, its events, and the trust in what it has read."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recollect.errors import BadInput
from recollect.models.chat import Usage
from recollect.tiers.facts import source_trust
from recollect.types import Context, Hit

logger = logging.getLogger("recollect.agent")

AGENT_TRUST = source_trust("agent")
"""The most that anything an agent stores is trusted."""

AgentEventKind = Literal[
    "recalled",  # `text` is the block of recalled memories
    "resumed",  # the run continues after a crash; `step` is the first reply that is not stored
    "thinking",  # the model is asked
    "text",  # `text` is a piece of the model's reply, as it streams
    "tool_started",  # `text` is the arguments as JSON
    "tool_finished",  # `text` is the result as the model reads it; it is stored by now
    "compacted",  # the oldest steps were replaced by a summary, which is `text`
    "answered",  # `text` is the answer
    "trouble",  # a side operation failed, such as recording a step; the run continues
]

StopReason = Literal["end", "length", "refusal", "max_steps"]
"""Reason why a run ended: an answer, an answer that was cut off, a refusal, or all steps used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An event of a run. `step` counts the model's replies from 1."""

    kind: AgentEventKind
    step: int = 0
    text: str = ""
    tool: str | None = None
    call_id: str | None = None
    failed: bool = False


AgentEventHandler = Callable[[AgentEvent], Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call, and its result as the model read it."""

    name: str
    arguments: Mapping[str, Any]
    result: str
    failed: bool
    call_id: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class AgentStep:
    """A reply of the model: its text, and the tools it called."""

    number: int
    thought: str
    tools: tuple[ToolUse, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """A run of an agent. `answer` and `stopped` are None while it runs and if it failed."""

    task: str
    task_id: str | None
    system: str = ""
    """The system prompt of every step, with the recalled memories."""
    recalled: Context | None = None
    """The recalled context with its reasons; None if the run was resumed."""
    steps: tuple[AgentStep, ...] = ()
    answer: str | None = None
    stopped: StopReason | None = None
    usage: Usage = field(default_factory=Usage)
    """The usage of all steps, including those before a crash."""
    resumed: bool = False
    trust: float = 1.0
    """The lowest trust of anything that the run has read."""


class AgentEventEmitter:
    """Calls the event handlers at once and in order. A handler that fails does not end the run."""

    def __init__(self, on_event: AgentEventHandler | None, on_text: Callable[[str], Any] | None) -> None:
        for name, handler in (("on_event", on_event), ("on_text", on_text)):
            if handler is not None and (not callable(handler) or inspect.iscoroutinefunction(handler)):
                raise BadInput(f"{name} must be a plain function that returns quickly; got {handler!r:.80}")
        self._on_event = on_event
        self._on_text = on_text
        self.has_listeners = on_event is not None or on_text is not None

    def emit(self, kind: AgentEventKind, **fields: Any) -> None:
        if kind == "trouble":
            # The log names only the error's type, because its message may quote content.
            logger.warning("a side operation of the run failed: %s; see on_event", type(sys.exception()).__name__)
        self._notify(self._on_event, AgentEvent(kind=kind, **fields))

    def emit_text(self, step: int, piece: str) -> None:
        self._notify(self._on_text, piece)
        self._notify(self._on_event, AgentEvent(kind="text", step=step, text=piece))

    def _notify(self, handler: Callable[[Any], Any] | None, value: Any) -> None:
        if handler is None:
            return
        try:
            handler(value)
        except Exception as error:  # noqa: BLE001 - a handler must not end the run
            logger.warning("an event handler of the agent failed with %s", type(error).__name__)


class TrustTracker:
    """Lowest trust of everything that a run has read, and the ids of the memories that it was shown."""

    def __init__(self) -> None:
        self.trust = AGENT_TRUST
        self.shown_ids: set[str] = set()
        self.untrusted_sources: list[str] = []
        """Descriptions of the sources that lowered the trust below an agent's."""

    @property
    def is_trusted(self) -> bool:
        """True if everything read is trusted at least as much as the agent."""
        return self.trust >= AGENT_TRUST

    def restore(self, trust: float, shown_ids: Iterable[str], untrusted_sources: Iterable[str]) -> None:
        self.trust, self.shown_ids, self.untrusted_sources = trust, set(shown_ids), list(untrusted_sources)

    def record_read(self, source: str, trust: float, shown_ids: Iterable[str] = ()) -> None:
        self.shown_ids.update(shown_ids)
        if trust < AGENT_TRUST and source not in self.untrusted_sources:
            self.untrusted_sources.append(source)
        self.trust = min(self.trust, trust)

    def record_hits(self, hits: Iterable[Hit]) -> None:
        for hit in hits:
            self.record_read("a memory that is unverified", hit.item.trust, (hit.item.id,))
