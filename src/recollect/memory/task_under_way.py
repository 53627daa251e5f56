"""A task under way, kept beside its episodes so that another process can go on with it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from recollect.errors import BadInput
from recollect.memory import lesson
from recollect.stores.base import Log
from recollect.stores.ops import Append, Drop, Entry
from recollect.tiers.entries import fresh_id
from recollect.tiers.working import WorkingMemory
from recollect.values import Scope

_KIND = "task"

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


def kept(scope: Scope, running: Running, working: WorkingMemory, last: Taken | None, by: str, at: datetime) -> Append:
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
        content=json.dumps(told),
        at=at,
        metadata={"task": running.id, "by": by},
    )
    return Append(space=scope.space("working"), entry=entry, cap=1)


async def found(log: Log, scope: Scope, by: str | None = None) -> Found | None:
    """The task that this session was left with; with `by`, unless by us: two objects of one memory have a task each."""
    newest = await log.recent(scope.space("working"), limit=1, kinds=(_KIND,))
    if not newest or (by is not None and newest[0].metadata.get("by") == by):
        return None
    told = json.loads(newest[0].content)
    running = Running(told["task"], told["id"], told["steps"])
    running.tried.extend(lesson.Tried(**one) for one in told["tried"])
    running.episodes.extend(told["episodes"])
    running.procedures, running.acts = told["procedures"], told.get("acts", {})
    return Found(running, told["working"], None if told["last"] is None else Taken(**told["last"]))


async def dropped(log: Log, scope: Scope, running: Running) -> list[Drop]:
    """What takes a task that has ended out of the log; another task that was begun there meanwhile stays."""
    space = scope.space("working")
    held = [entry.seq for entry in await log.read(space) if entry.metadata.get("task") == running.id]
    return [Drop(space, tuple(held))] if held else []


def _snapshot(working: WorkingMemory) -> dict[str, Any] | None:
    try:
        return working.snapshot()
    except BadInput:  # its attributes are the caller's to set, also to what is no JSON: that is of one process
        return None
