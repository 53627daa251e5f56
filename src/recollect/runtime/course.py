"""The course of a run: which steps are still to be done, and what follows when one is unknown or fails for good."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from recollect.errors import BadInput, StepFailed, TaskPoisoned, UnknownOutcome
from recollect.runtime.codec import State
from recollect.runtime.plan import Fitted, Planned, checked_state
from recollect.runtime.running import Change, GaveUp, Running, Unit, said
from recollect.runtime.undoing import Undoing
from recollect.stores.base import Step
from recollect.stores.ops import SetStatus, Write


class Course:
    """Takes a task from where it stands to its end, or to where it cannot go on."""

    def __init__(
        self, running: Running, fit: Fitted, journal: Mapping[str, Step], *, saved: bool, reopened: bool
    ) -> None:
        self._running = running
        self._plan = fit.plan
        self._pending = fit.pending
        self._journal = journal
        self._completed: list[str] = [*fit.state["completed"]]
        self._saved = saved and not reopened
        """Whether the state is the stored one, so that the first commit need not bring it."""
        self._reopened = reopened
        """Whether the task was done, and its plan has grown since."""

    async def go(self) -> State:
        """Every pending step, one after the other; the state when all are done."""
        await self._tell_skipped()
        following: Unit | None = None
        for place, planned in enumerate(self._pending):
            rest = self._pending[place + 1 :]
            unit = following or self._unit(planned)
            if following is None:
                if await self._skipped_as_unknown(planned, unit, last=not rest):
                    continue
                await self._begin(unit)
            following = self._fresh(rest)
            try:
                await self._running.perform(unit, partial(self._done, planned, rest, following))
            except GaveUp as failure:
                await self._gave_up(failure)
            self._completed.append(planned.name)
        if not self._pending:
            await self._nothing_to_do()
        await self._running.conditions.telling.tell("done", self._running.lease.task)
        return self._running.state

    def _unit(self, planned: Planned) -> Unit:
        unit = self._running.unit(planned.name, planned.function, planned.options)
        if planned.was is None:
            return unit
        # Begun under another name: whoever received its key must see the same again, and the old note is closed.
        old = self._journal[planned.was]
        closed = replace(unit, key=planned.was, idempotency_key=old.idempotency_key)
        note = self._running.note(closed, "failed", old.attempts, error=f"goes on as {planned.name}")
        return replace(unit, idempotency_key=old.idempotency_key, also=(note,))

    def _note(self, planned: Planned) -> Step | None:
        return self._journal.get(planned.was or planned.name)

    def _fresh(self, rest: list[Planned]) -> Unit | None:
        """The next step, when nothing is known of it: then its intent can ride on this one's completion."""
        return self._unit(rest[0]) if rest and self._note(rest[0]) is None else None

    async def _begin(self, unit: Unit) -> None:
        draft = None if self._saved else self._running.kept
        await self._running.begin(unit, draft=draft, status="running" if self._reopened else None)
        self._saved = True

    def _done(self, planned: Planned, rest: list[Planned], following: Unit | None, result: Any, copy: State) -> Change:
        state = checked_state(copy)
        state["completed"] = [*self._completed, planned.name]
        state["results"] = {**state["results"], planned.name: result}
        return Change(state, status=None if rest else "done", then=following)

    async def _skipped_as_unknown(self, planned: Planned, unit: Unit, *, last: bool) -> bool:
        """What a run before this one left: True when the step counts as done."""
        note = self._note(planned)
        if note is None:
            return False
        self._running.attempts[unit.key] = note.attempts
        # "completed" without being in the state: it was done, but the checkpoint that said so is damaged.
        if note.status in ("started", "completed"):
            await self._running.tell("unknown", unit, note.attempts)
            if planned.options.on_unknown == "ask":
                raise UnknownOutcome(
                    f"{unit.key!r} of task {self._running.lease.task!r} was begun and nobody knows how it ended; look "
                    f"for the idempotency key {unit.idempotency_key}, then call `checkpoints.skip` with the result if "
                    "it was done, or `checkpoints.retry` if it was not, and run the task again"
                )
            if planned.options.on_unknown == "skip":
                await self._skip(planned, unit, note, last=last)
                return True
        if note.attempts >= unit.options.attempts(self._running.conditions.max_attempts):
            error = RuntimeError(note.error or "the process ended in the middle of it")
            await self._gave_up(GaveUp(unit, note.attempts, error, spent=True))
        return False

    async def _skip(self, planned: Planned, unit: Unit, note: Step, *, last: bool) -> None:
        running = self._running
        result = json.loads(note.result) if note.result is not None else None
        change = self._done(planned, [] if last else [planned], None, result, running.state)
        draft = running.draft(change.state)
        await running.write(
            running.save(draft, change.status),
            running.note(unit, "completed", note.attempts, result=note.result),
            *unit.also,
        )
        running.kept, running.version, self._saved = draft, running.version + 1, True
        self._completed.append(planned.name)
        await running.tell("skipped", unit, note.attempts, "its outcome is unknown and counts as done")

    async def _gave_up(self, failure: GaveUp) -> None:
        """Undo what can be undone; else poison the step when its attempts are spent; and say so in any case."""
        running, unit = self._running, failure.unit
        task, error = running.lease.task, said(failure.error)
        note = running.note(unit, "poisoned" if failure.spent else "failed", failure.attempt, error=error)
        undoing = Undoing(running, self._plan, self._journal)
        if undoing.todo:
            await undoing.go(unit.key, error, note)
        closing: list[Write] = [note]
        if failure.spent:
            closing.append(
                SetStatus(space=running.lease.space, task=task, status="poisoned", fence=running.lease.fence)
            )
        await running.write(*closing, *unit.also)
        if failure.spent:
            await running.tell("poisoned", unit, failure.attempt, error)
            raise TaskPoisoned(
                f"{unit.key!r} of task {task!r} failed {_times(failure.attempt)}, at last with {error}; "
                f"mend the cause, call `await memory.checkpoints.retry({task!r})`, and run it again"
            ) from failure.error
        if isinstance(failure.error, BadInput):
            raise failure.error
        raise StepFailed(
            f"{unit.key!r} of task {task!r} failed with {error}, which is not worth retrying; mend the cause and run "
            "the task again"
        ) from failure.error

    async def _tell_skipped(self) -> None:
        pending = {planned.name for planned in self._pending}
        for planned in self._plan:
            if planned.name not in pending:
                await self._running.conditions.telling.tell("skipped", self._running.lease.task, planned.name)

    async def _nothing_to_do(self) -> None:
        await self._running.write(self._running.save(self._running.kept, "done"))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
