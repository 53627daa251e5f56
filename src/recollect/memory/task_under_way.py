"""A task under way, kept beside its episodes so that another process can go on with it."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from recollect.errors import BadInput, SecretRefused
from recollect.guard.policy import Policy
from recollect.memory import lesson
from recollect.stores.base import Log
from recollect.stores.ops import Append, Drop, Entry
from recollect.tiers.entries import fresh_id
from recollect.tiers.working import WorkingMemory
from recollect.values import Scope

_KIND = "task"
T = TypeVar("T")

_log = logging.getLogger("recollect.memory")

# Of more than a session's episodes nothing is left to derive from.
_MOST_EPISODES = 1000


@dataclass(slots=True)
class Running:
    """What is known of a task besides what working memory holds."""

    task: str
    id: str
    steps: int = 0
    tried: deque[lesson.Tried] = field(default_factory=lambda: deque(maxlen=lesson.kept_steps()))
    episodes: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_EPISODES))
    # Each procedure that steps were trials of, and whether one of them failed.
    procedures: dict[str, bool] = field(default_factory=dict)
    # The steps that may be told again, each by the name of its telling.
    acts: dict[str | None, int] = field(default_factory=dict)

    def after(self, step: Taken) -> Running:
        """The same task one step on."""
        further = Running(self.task, self.id, self.steps + 1, self.tried.copy(), self.episodes.copy())
        further.tried.append(lesson.Tried(step.done or step.thought, step.trouble))
        further.episodes.append(step.episode)
        further.procedures, further.acts = dict(self.procedures), dict(self.acts)
        if step.act is not None:
            further.acts[step.act] = further.steps
        if step.procedure is not None:
            failed = further.procedures.get(step.procedure, False)
            further.procedures[step.procedure] = failed or not step.success
        return further


@dataclass(frozen=True, slots=True)
class Taken:
    """A step, as far as working memory and the lesson are to know of it."""

    thought: str
    done: str
    shown: str
    success: bool
    trouble: str | None
    episode: str
    procedure: str | None
    act: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A task that another process left: `working` is what was in mind before the step it took last."""

    running: Running
    working: Mapping[str, Any] | None
    last: Taken | None


def of_working(working: WorkingMemory) -> Running | None:
    """The task that working memory holds, by whichever way it came there: `set_task`, or an import."""
    if not working.task:
        return None
    numbers = [name.removeprefix("step_") for name in working.results if name.startswith("step_")]
    taken = max((int(number) for number in numbers if number.isascii() and number.isdigit()), default=0)
    return Running(working.task, fresh_id(), taken)


@dataclass(frozen=True, slots=True)
class Keeper:
    """Who keeps a note of a task, when, and what its settings say of secrets."""

    by: str
    at: datetime
    policy: Policy


def kept(scope: Scope, running: Running, working: WorkingMemory, last: Taken | None, keeper: Keeper) -> Append:
    """The task as it will be when the step is written, to be written with it: only the newest is kept.

    Working memory is told of a step after it is written, so it is kept as it was before, with the step beside it.
    """
    told = {
        "task": running.task,
        "id": running.id,
        "steps": running.steps,
        "tried": [asdict(one) for one in running.tried],
        "episodes": list(running.episodes),
        "procedures": running.procedures,
        "acts": running.acts,
        "working": _snapshot(working),
        "last": None if last is None else asdict(last),
    }
    entry = Entry(
        id=f"{running.id}:{running.steps}:{fresh_id()}",
        kind=_KIND,
        content=json.dumps(_without_secrets(told, keeper.policy)),
        at=keeper.at,
        metadata={"task": running.id, "by": keeper.by},
    )
    return Append(space=scope.space("working"), entry=entry, cap=1)


async def found(log: Log, scope: Scope, by: str | None = None) -> Found | None:
    """The task that this session was left with; with `by`, unless by us: two objects of one memory have a task each."""
    newest = await log.recent(scope.space("working"), limit=1, kinds=(_KIND,))
    if not newest or (by is not None and newest[0].metadata.get("by") == by):
        return None
    try:
        return _read(json.loads(newest[0].content))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # Only a note of what was being done: whoever asks for something else must not be held up by it.
        _log.warning("what was kept of a task under way is damaged (%s) and passed over", type(error).__name__)
        return None


async def dropped(log: Log, scope: Scope, running: Running) -> list[Drop]:
    """What takes a task that has ended out of the log; another task that was begun there meanwhile stays."""
    space = scope.space("working")
    held = [entry.seq for entry in await log.read(space) if entry.metadata.get("task") == running.id]
    return [Drop(space, tuple(held))] if held else []


def _read(told: Mapping[str, Any]) -> Found:
    """The task that a note tells of, or an error where it tells of none."""
    running = Running(_of(str, told["task"]), _of(str, told["id"]), _of(int, told["steps"]))
    tried = [lesson.Tried(**one) for one in _of(list, told["tried"])]
    for one in tried:
        _of(str, one.action), _of(str, one.trouble or "")
    running.tried.extend(tried)
    running.episodes.extend(_of(str, one) for one in _of(list, told["episodes"]))
    running.procedures = {name: _of(bool, failed) for name, failed in told["procedures"].items()}
    running.acts = {name: _of(int, number) for name, number in told.get("acts", {}).items()}
    last = None if told["last"] is None else Taken(**told["last"])
    if last is not None:
        for text in (
            last.thought,
            last.done,
            last.shown,
            last.episode,
            *_given(last.trouble, last.procedure, last.act),
        ):
            _of(str, text)
        _of(bool, last.success)
    working = told["working"]
    if working is not None:
        WorkingMemory.from_snapshot(working)  # only to see whether it could be
    return Found(running, working, last)


def _given(*texts: str | None) -> list[str]:
    return [text for text in texts if text is not None]


def _of(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"this is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _without_secrets(told: dict[str, Any], policy: Policy) -> dict[str, Any]:
    """What may be kept of it. What is in mind may hold anything; where that is refused, it is not kept."""
    try:
        clean: dict[str, Any] = policy.plain("the task", told).value
    except SecretRefused:
        clean = policy.plain("the task", {**told, "working": None}).value
    return clean


def _snapshot(working: WorkingMemory) -> dict[str, Any] | None:
    try:
        return working.snapshot()
    except BadInput:  # its attributes are the caller's to set, also to what is no JSON: that is of one process
        return None
