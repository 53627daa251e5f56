"""What a run of the lifecycle did, or would do: every action with its id and its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

from recollect.values import NOTHING, Tier

Kind = Literal["promoted", "expired", "capped", "merged", "decayed", "forgotten"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Action:
    """Something done to one item, entry or task. `into` is the item that came of it, where there is one.

    It holds no content: a report may be logged.
    """

    id: str
    tier: Tier
    reason: str
    into: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleReport:
    """Everything that one run did; falsy when there was nothing to do.

    `promoted` names the new item, and `into` nothing; `merged` names the copy, and `into` the item that stays.
    `notes` tell what was left for the next run, and why.
    """

    at: datetime
    planned: bool = False
    promoted: tuple[Action, ...] = ()
    expired: tuple[Action, ...] = ()
    capped: tuple[Action, ...] = ()
    merged: tuple[Action, ...] = ()
    decayed: tuple[Action, ...] = ()
    forgotten: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
    examined: int = 0
    seconds: Mapping[str, float] = field(default_factory=lambda: NOTHING, compare=False)

    @property
    def counts(self) -> dict[str, int]:
        return {kind: len(getattr(self, kind)) for kind in KINDS}

    @property
    def actions(self) -> dict[str, tuple[Action, ...]]:
        return {kind: getattr(self, kind) for kind in KINDS}

    def __bool__(self) -> bool:
        return any(self.counts.values())

    def __str__(self) -> str:
        said = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items() if count)
        lines = [f"{self.examined:,} looked at: {said or 'nothing to do'}"]
        if self.planned and said:
            lines[0] += " (a plan; nothing was changed)"
        for kind, actions in self.actions.items():
            lines += [f"  {kind} {action.id} ({action.tier}): {action.reason}" for action in actions[:_SHOWN]]
            if len(actions) > _SHOWN:
                lines.append(f"  … and {len(actions) - _SHOWN:,} more {kind}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


class Ledger:
    """What a run has done so far, to become a report."""

    def __init__(self) -> None:
        self._actions: dict[Kind, list[Action]] = {kind: [] for kind in KINDS}
        self.notes: list[str] = []
        self.seconds: dict[str, float] = {}
        self.examined = 0

    def add(self, kind: Kind, actions: Iterable[Action]) -> None:
        self._actions[kind].extend(actions)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def report(self, at: datetime, *, planned: bool) -> LifecycleReport:
        actions = {kind: tuple(found) for kind, found in self._actions.items()}
        return LifecycleReport(
            at=at,
            planned=planned,
            notes=tuple(self.notes),
            examined=self.examined,
            seconds=dict(self.seconds),
            **actions,
        )
