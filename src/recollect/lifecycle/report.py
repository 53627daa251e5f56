"""Reports of lifecycle runs: every action with its id and its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

from recollect.types import EMPTY_MAPPING, Tier

ActionKind = Literal["promoted", "expired", "capped", "merged", "decayed", "forgotten"]
ACTION_KINDS: tuple[ActionKind, ...] = get_args(ActionKind)
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class LifecycleAction:
    """One change of an item, an entry or a task. It holds no content, so that a report can be logged.

    `into` is the item that replaces it, if there is one.
    """

    id: str
    tier: Tier
    reason: str
    into: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleReport:
    """The actions of one run; falsy if there are none.

    A `promoted` action names the new item. A `merged` action names the copy, and `into` the item that remains.
    `notes` say what was left for the next run, and why.
    """

    at: datetime
    planned: bool = False
    promoted: tuple[LifecycleAction, ...] = ()
    expired: tuple[LifecycleAction, ...] = ()
    capped: tuple[LifecycleAction, ...] = ()
    merged: tuple[LifecycleAction, ...] = ()
    decayed: tuple[LifecycleAction, ...] = ()
    forgotten: tuple[LifecycleAction, ...] = ()
    notes: tuple[str, ...] = ()
    examined: int = 0
    seconds: Mapping[str, float] = field(default_factory=lambda: EMPTY_MAPPING, compare=False)

    @property
    def counts(self) -> dict[str, int]:
        return {kind: len(actions) for kind, actions in self.actions.items()}

    @property
    def actions(self) -> dict[str, tuple[LifecycleAction, ...]]:
        return {kind: getattr(self, kind) for kind in ACTION_KINDS}

    def __bool__(self) -> bool:
        return any(self.counts.values())

    def __str__(self) -> str:
        summary = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items() if count)
        lines = [f"{self.examined:,} examined: {summary or 'nothing to do'}"]
        if self.planned and summary:
            lines[0] += " (a plan; nothing was changed)"
        for kind, actions in self.actions.items():
            lines += [f"  {kind} {action.id} ({action.tier}): {action.reason}" for action in actions[:_MAX_SHOWN]]
            if len(actions) > _MAX_SHOWN:
                lines.append(f"  … and {len(actions) - _MAX_SHOWN:,} more {kind}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


class LifecycleReportBuilder:
    """The actions and notes of a run in progress, and the language model tokens that it may still spend."""

    def __init__(self, llm_tokens: int = 0) -> None:
        self._actions: dict[ActionKind, list[LifecycleAction]] = {kind: [] for kind in ACTION_KINDS}
        self.notes: list[str] = []
        self.seconds: dict[str, float] = {}
        self.examined = 0
        self.llm_tokens = llm_tokens

    def add(self, kind: ActionKind, actions: Iterable[LifecycleAction]) -> None:
        self._actions[kind].extend(actions)

    def add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def build(self, at: datetime, *, planned: bool) -> LifecycleReport:
        actions = {kind: tuple(found) for kind, found in self._actions.items()}
        return LifecycleReport(
            at=at,
            planned=planned,
            notes=tuple(self.notes),
            examined=self.examined,
            seconds=dict(self.seconds),
            **actions,
        )
