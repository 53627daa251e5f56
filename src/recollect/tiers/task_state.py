"""The state of the task at hand: what is wanted, what was found, what was thought."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from recollect.tiers.working_items import checked_json, checked_key, checked_text

_SHOWN_THOUGHTS = 5
_SHOWN_VALUES = 20
_LONGEST_VALUE = 200
_LONGEST_LINE = 1000


class TaskState:
    """Plain attributes, to be read and set freely; the methods check what they are given and keep a copy."""

    def __init__(self, ids: Callable[[], str] | None = None) -> None:
        self._ids = ids or _new_id
        self.variables: dict[str, Any] = {}
        self._begin("")

    def _begin(self, task: str) -> None:
        self.task = task
        self.task_id = self._ids()
        self.current_goal = task
        self.subgoals: list[str] = []
        self.results: dict[str, Any] = {}
        self.scratchpad: list[str] = []

    def set_task(self, task: str) -> None:
        """Begin another task: its goal, subgoals, results and thoughts are new; variables and the buffer stay."""
        self._begin(checked_text("a task", task))

    def add_result(self, key: str, value: Any) -> None:
        """Keep an intermediate result, as a copy in JSON."""
        key = checked_key("the key of a result", key)
        self.results[key] = checked_json(f"results.{key:.80}", value)

    def get_result(self, key: str, default: Any = None) -> Any:
        return self.results.get(key, default) if isinstance(key, str) else default

    def add_thought(self, thought: str) -> None:
        self.scratchpad.append(checked_text("a thought", thought))

    def set_variable(self, name: str, value: Any) -> None:
        """Keep a value across tasks, as a copy in JSON, until it is set again or all is cleared."""
        name = checked_key("the name of a variable", name)
        self.variables[name] = checked_json(f"variables.{name:.80}", value)

    def get_variable(self, name: str, default: Any = None) -> Any:
        return self.variables.get(name, default) if isinstance(name, str) else default

    def push_subgoal(self, goal: str) -> None:
        self.subgoals.append(checked_text("a subgoal", goal))

    def pop_subgoal(self) -> str | None:
        """The subgoal pushed last, or None."""
        return self.subgoals.pop() if self.subgoals else None

    def get_context_string(self) -> str:
        """The state for a prompt: one line each, so that no text can pose as a heading; "" if there is none."""
        lines = []
        if self.task:
            lines.append(f"Task: {_line(self.task, _LONGEST_LINE)}")
        if self.current_goal and self.current_goal != self.task:
            lines.append(f"Goal: {_line(self.current_goal, _LONGEST_LINE)}")
        if self.subgoals:
            lines.append("Subgoals: " + " > ".join(_line(goal, _LONGEST_VALUE) for goal in self.subgoals))
        lines += _listed("Results", self.results)
        if self.scratchpad:
            thoughts = list(dict.fromkeys(reversed(self.scratchpad)))[:_SHOWN_THOUGHTS]
            lines += ["Recent thoughts:", *(f"- {_line(thought, _LONGEST_LINE)}" for thought in reversed(thoughts))]
        lines += _listed("Variables", self.variables)
        return "\n".join(lines)

    def clear(self) -> None:
        """Forget everything, variables too."""
        self._begin("")
        self.variables = {}


def _new_id() -> str:
    return secrets.token_hex(4)


def _listed(heading: str, values: Mapping[str, Any]) -> list[str]:
    if not values:
        return []
    shown = list(values.items())[-_SHOWN_VALUES:]
    earlier = len(values) - len(shown)
    lines = [f"{heading} (the last {len(shown)} of {len(values)}):" if earlier else f"{heading}:"]
    for name, value in shown:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
        lines.append(f"- {_line(name, _LONGEST_VALUE)}: {_line(text, _LONGEST_VALUE)}")
    return lines


def _line(text: str, longest: int) -> str:
    flat = " ".join(str(text).split())
    return flat if len(flat) <= longest else f"{flat[:longest].rstrip()}… ({len(flat):,} characters)"
