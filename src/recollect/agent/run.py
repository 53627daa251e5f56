"""A run of an agent, as it can be looked at afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recollect.inference.chat import Usage
from recollect.values import Context

Stopped = Literal["end", "length", "refusal", "max_steps"]
"""Why a run ended: with an answer, an answer that was cut off, a refusal, or with its steps used up."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that was called, and what the model was told of it."""

    name: str
    arguments: Mapping[str, Any]
    result: str
    failed: bool
    call_id: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Step:
    """One reply of the model: what it said, and the tools it wanted."""

    number: int
    thought: str
    tools: tuple[ToolUse, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run: `answer` and `stopped` are None while it goes on, and when it failed."""

    task: str
    task_id: str | None
    system: str = ""
    """The prompt, the same at every step, with what was recalled in it."""
    recalled: Context | None = None
    """Why each line is there; None when the run was resumed, for then nothing was recalled anew."""
    steps: tuple[Step, ...] = ()
    answer: str | None = None
    stopped: Stopped | None = None
    usage: Usage = field(default_factory=Usage)
    """Of all steps, those before a crash included."""
    resumed: bool = False
    trust: float = 1.0
    """How far what it says may be trusted: the least of everything it read."""
