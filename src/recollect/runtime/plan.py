"""The plan of a task: its steps by name, and whether it still fits what has been done."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from recollect.errors import BadInput, PlanChanged
from recollect.runtime.codec import State
from recollect.runtime.step import Options, name_of, options_of, takes_state
from recollect.stores.base import Step
from recollect.values import Space

OnPlanChange = Literal["raise", "by_name"]

UNDO = "undo_"
"""Begins the name under which undoing a step is journaled."""

_NAME = re.compile(r"step_\d+_(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Planned:
    """One step of a plan. `was` is the name under which an attempt was begun, if that was another."""

    name: str
    function: Callable[..., Any]
    options: Options
    was: str | None = None


def plan_of(steps: Iterable[Callable[..., Any]]) -> tuple[Planned, ...]:
    if callable(steps) or not isinstance(steps, Iterable):
        raise BadInput(f"steps are a list of functions, not {steps!r:.80}; a single one goes into a list too")
    plan = tuple(steps)
    for place, function in enumerate(plan):
        if not callable(function):
            raise BadInput(f"step {place} is {function!r:.80}; a step is a function of the state")
        if not takes_state(function):
            raise BadInput(
                f"step {place}, {name_of(function)!r}, takes no state; write it as f(state) or f(state, ctx)"
            )
    return tuple(
        Planned(f"step_{place}_{name_of(function)}", function, options_of(function))
        for place, function in enumerate(plan)
    )


def plan_hash(plan: Sequence[Planned]) -> str:
    return hashlib.sha256("\n".join(step.name for step in plan).encode("utf-8", "surrogatepass")).hexdigest()


class Keys:
    """The idempotency keys of one task's steps: the same for every attempt and worker, and no other step's."""

    def __init__(self, space: Space, task: str) -> None:
        self._owner = hashlib.sha256(b"".join(map(_measured, (space.tenant, space.agent, task))))

    def of(self, step: str) -> str:
        digest = self._owner.copy()
        digest.update(_measured(step))
        return digest.hexdigest()


def _measured(part: str) -> bytes:
    """With its length before it: no part can run into the next."""
    raw = part.encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "big") + raw


@dataclass(frozen=True, slots=True)
class Fitted:
    """A plan together with the state it goes on from, both under the plan's names."""

    plan: tuple[Planned, ...]
    state: State

    @property
    def pending(self) -> list[Planned]:
        done = set(self.state["completed"])
        return [step for step in self.plan if step.name not in done]


def fitted(plan: tuple[Planned, ...], state: State, journal: Mapping[str, Step], change: OnPlanChange) -> Fitted:
    """The plan as it goes on from the state; `PlanChanged` when a step that was begun is no longer where it was."""
    names = {step.name for step in plan}
    completed = state["completed"]
    begun = [key for key, note in journal.items() if note.status == "started" and key not in completed]
    gone = [name for name in (*completed, *begun) if name not in names and _NAME.fullmatch(name)]
    if not gone:
        return Fitted(plan, state)
    if change == "raise":
        raise PlanChanged(
            f"{gone[0]!r} was begun or finished under another plan, and this one has no such step; bring back the "
            'old order and names, give the task another id, or open the agent with on_plan_change="by_name"'
        )
    places = _places(gone, [step for step in plan if step.name not in completed])
    renamed = {old: new for old, new in places.items() if old in completed}
    was = {new: old for old, new in places.items() if old in begun}
    return Fitted(
        tuple(replace(step, was=was.get(step.name)) for step in plan),
        {
            **state,
            "completed": [renamed.get(name, name) for name in completed],
            "results": {renamed.get(name, name): result for name, result in state["results"].items()},
        },
    )


def _places(gone: Sequence[str], free: Sequence[Planned]) -> dict[str, str]:
    """Where each of the old names is in the new plan: the first step of that function that is not yet taken."""
    left = list(free)
    places: dict[str, str] = {}
    for old in gone:
        found = _NAME.fullmatch(old)
        for step in left:
            if found is not None and name_of(step.function) == found[1]:
                places[old] = step.name
                left.remove(step)
                break
    return places


def checked_state(state: Any) -> State:
    """A state with its two lists of ours; whatever else is in it is the caller's."""
    if not isinstance(state, dict):
        raise BadInput(f"a task's state is a dict, not {type(state).__name__}")
    completed, results = state.get("completed", []), state.get("results", {})
    if not isinstance(completed, list) or not all(isinstance(name, str) for name in completed):
        raise BadInput('state["completed"] is a list of step names; keep other things under another name')
    if not isinstance(results, dict):
        raise BadInput('state["results"] maps step names to results; keep other things under another name')
    return {**state, "completed": completed, "results": results}
