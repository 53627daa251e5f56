"""Compensation: what was done is undone in reverse order, each with a key and a note of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from recollect.errors import StepFailed, TaskPoisoned
from recollect.runtime.codec import State
from recollect.runtime.plan import UNDO, Planned
from recollect.runtime.running import Change, GaveUp, Running, Unit, said
from recollect.runtime.step import Options
from recollect.stores.base import Step
from recollect.stores.ops import SetStatus, Write


class Undoing:
    """Undoes the completed steps that say how; those that do not stay as they are."""

    def __init__(self, running: Running, plan: Sequence[Planned], journal: Mapping[str, Step]) -> None:
        self._running = running
        self._journal = journal
        by_name = {planned.name: planned for planned in plan if planned.options.compensate is not None}
        self.todo = [by_name[name] for name in reversed(running.state["completed"]) if name in by_name]

    async def go(self, failed: str, error: str, *first: Write) -> NoReturn:
        """Undo everything, and raise what the run ends with; `first` is written with the first intent."""
        running, task = self._running, self._running.lease.task
        status = SetStatus(space=running.lease.space, task=task, status="compensating", fence=running.lease.fence)
        if not self.todo:
            await running.write(replace(status, status="failed"))
        units = [self._unit(planned) for planned in self.todo]
        for place, (planned, unit) in enumerate(zip(self.todo, units, strict=True)):
            if place == 0:
                await self._begin(unit, *first, status)
            following = units[place + 1] if place + 1 < len(units) else None
            try:
                await running.perform(unit, partial(self._undone, planned, following))
            except GaveUp as failure:
                await self._stuck(failure)
            await running.tell("compensated", running.unit(planned.name, unit.function, unit.options))
        undone = ", ".join(planned.name for planned in self.todo)
        raise StepFailed(
            f"{failed!r} of task {task!r} failed for good ({error}), and what was done was undone: {undone}; "
            "mend the cause and run it again under another id"
        )

    def _unit(self, planned: Planned) -> Unit:
        assert planned.options.compensate is not None
        key = UNDO + planned.name
        note = self._journal.get(key)
        if note is not None and key not in self._running.attempts:
            self._running.attempts[key] = note.attempts
        return self._running.unit(key, planned.options.compensate, Options())

    async def _begin(self, unit: Unit, *also: Write) -> None:
        spent = self._running.attempts.get(unit.key, 0)
        note = self._journal.get(unit.key)
        if spent >= self._running.conditions.max_attempts and note is not None:
            await self._stuck(GaveUp(unit, spent, RuntimeError(note.error or "the process ended in it"), spent=True))
        await self._running.begin(unit, *also)

    def _undone(self, planned: Planned, following: Unit | None, _: Any, copy: State) -> Change:
        now = self._running.state
        state: dict[str, Any] = {
            **copy,
            "completed": [name for name in now["completed"] if name != planned.name],
            "results": {name: result for name, result in now["results"].items() if name != planned.name},
        }
        step = self._running.unit(planned.name, planned.function, planned.options)
        note = self._running.note(step, "compensated", self._attempts(planned))
        return Change(state, (note,), status=None if following else "failed", then=following)

    def _attempts(self, planned: Planned) -> int:
        note = self._journal.get(planned.name)
        return self._running.attempts.get(planned.name, note.attempts if note is not None else 1)

    async def _stuck(self, failure: GaveUp) -> NoReturn:
        """A step that cannot be undone needs a person: the task stays half undone, and says so."""
        running, error = self._running, said(failure.error)
        await running.write(running.note(failure.unit, "poisoned", failure.attempt, error=error))
        await running.tell("poisoned", failure.unit, failure.attempt, error)
        raise TaskPoisoned(
            f"{failure.unit.key!r} of task {running.lease.task!r} failed {failure.attempt} times, at last with {error};"
            " mend the cause, call `checkpoints.retry` and run the task again to go on undoing it"
        ) from failure.error
