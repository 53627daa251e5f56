"""One run of a task under its lease: steps are begun, attempted and completed, each in one durable commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from recollect.errors import BadInput, Conflict, FencedOut
from recollect.runtime.checkpoints import Checkpoints
from recollect.runtime.codec import SCHEMA, State
from recollect.runtime.draft import Draft, Drafts
from recollect.runtime.events import Telling
from recollect.runtime.failpoints import reach
from recollect.runtime.in_order import Share, write_in_order
from recollect.runtime.lease import Heartbeat, LeaseLost
from recollect.runtime.mind import Mind
from recollect.runtime.plan import Keys
from recollect.runtime.step import Options, Pace, StepContext, call, is_async
from recollect.stores.base import Lease
from recollect.stores.ops import Journal, Save, StepStatus, TaskStatus, Write

_LONGEST_ERROR = 2000


@dataclass(frozen=True, slots=True)
class Unit:
    """Something to be done once: a step, or the undoing of one. `key` is what it is journaled under."""

    key: str
    function: Callable[..., Any]
    options: Options
    idempotency_key: str
    also: tuple[Write, ...] = ()
    """Written together with the intent."""


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of the task when a unit is done."""

    state: State
    notes: tuple[Write, ...] = ()
    status: TaskStatus | None = None
    """None leaves it as it is: somebody may have cancelled the task meanwhile."""
    then: Unit | None = None
    """What is begun next: its intent rides on this commit."""


Settle = Callable[[Any, State], Change]


class GaveUp(Exception):
    """A unit failed for good; `spent` says that all its attempts are."""

    def __init__(self, unit: Unit, attempt: int, error: Exception, *, spent: bool) -> None:
        super().__init__(unit.key)
        self.unit = unit
        self.attempt = attempt
        self.error = error
        self.spent = spent


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run goes by."""

    checkpoints: Checkpoints
    telling: Telling
    pace: Pace
    max_attempts: int
    lease_ttl: timedelta
    ttl: timedelta | None
    view: Callable[[Any], Any] | None = None
    """How steps that run in a thread see the memory; None shows it as it is."""


@dataclass(slots=True)
class Running:
    """A task in our hands: its state as last committed, and the version that the next one has to follow."""

    conditions: Conditions
    lease: Lease
    heart: Heartbeat
    mind: Mind
    drafts: Drafts
    kept: Draft
    version: int
    begun: str
    """Tells the task from another that had its id before."""
    attempts: dict[str, int] = field(default_factory=dict)
    _keys: Keys = field(init=False)

    def __post_init__(self) -> None:
        self._keys = Keys(self.lease.space, self.lease.task)

    @property
    def state(self) -> State:
        """A copy: whoever changes it changes nothing of ours."""
        return self.kept.copy()

    def unit(self, key: str, function: Callable[..., Any], options: Options) -> Unit:
        return Unit(key, function, options, self._keys.of(key))

    async def begin(
        self, unit: Unit, *also: Write, draft: Draft | None = None, status: TaskStatus | None = None
    ) -> None:
        """The intent, durable before the body runs; with a draft also the state that it goes on from."""
        saves = () if draft is None else (self.save(draft, status),)
        intent = self._intent(unit, draft)
        reach("intent.before")
        await self.write(*saves, *also, *intent)
        reach("intent.after")
        if draft is not None:
            self.kept, self.version = draft, self.version + 1

    async def perform(self, unit: Unit, settle: Settle) -> None:
        """Attempt what has been begun until it is completed; `GaveUp` when it fails for good."""
        while True:
            attempt = self.attempts[unit.key]
            await self.tell("started", unit, attempt)
            failure = await self._attempt(unit, attempt, settle)
            if failure is None:
                await self.tell("finished", unit, attempt)
                return
            await self.tell("failed", unit, attempt, said(failure))
            spent = attempt >= unit.options.attempts(self.conditions.max_attempts)
            if spent or not _worth_retrying(unit, failure):
                raise GaveUp(unit, attempt, failure, spent=spent)
            await self._again(unit, attempt, failure)

    async def write(self, *writes: Write) -> None:
        """Write under the fence; once the lease is lost nothing is written at all."""
        self.heart.check()
        await self.conditions.checkpoints.store.write(*writes)

    def save(self, draft: Draft, status: TaskStatus | None) -> Save:
        return Save(
            space=self.lease.space,
            task=self.lease.task,
            state=draft.text,
            sha256=draft.sha256,
            schema=SCHEMA,
            expect=self.version,
            fence=self.lease.fence,
            ttl=self.conditions.ttl,
            status=status,
        )

    def note(self, unit: Unit, status: StepStatus, attempt: int, **more: Any) -> Journal:
        return Journal(
            space=self.lease.space,
            task=self.lease.task,
            step=unit.key,
            status=status,
            fence=self.lease.fence,
            attempts=attempt,
            idempotency_key=unit.idempotency_key,
            **more,
        )

    def draft(self, state: State) -> Draft:
        return self.drafts.draft(state, self.mind.snapshot())

    async def tell(self, kind: Any, unit: Unit, attempt: int | None = None, detail: str = "") -> None:
        await self.conditions.telling.tell(kind, self.lease.task, unit.key, attempt, detail)

    def _intent(self, unit: Unit, draft: Draft | None = None) -> tuple[Write, ...]:
        self.attempts[unit.key] = self.attempts.get(unit.key, 0) + 1
        given = draft or self.kept
        return (self.note(unit, "started", self.attempts[unit.key], input_sha=given.sha256), *unit.also)

    def _not_begun(self, unit: Unit | None) -> None:
        """Its intent was refused together with what it rode on."""
        if unit is not None:
            self.attempts[unit.key] -= 1

    async def _attempt(self, unit: Unit, attempt: int, settle: Settle) -> Exception | None:
        """Body, then completion; the failure of this attempt, if it is one that belongs to the step."""
        thoughts = self.mind.attempt(f"{unit.idempotency_key} {self.begun}")
        context = StepContext(
            task_id=self.lease.task,
            step=unit.key,
            attempt=attempt,
            idempotency_key=unit.idempotency_key,
            thoughts=thoughts,
            lost=lambda: self.heart.lost,
            view=None if self.conditions.view is None or is_async(unit.function) else self.conditions.view,
        )
        copy = self.state
        try:
            reach("body.before")
            result = await self.heart.guard(_timed(unit, copy, context))
            reach("body.after")
            if result is copy:  # a step may hand the state on, which it was free to change
                result = None
            change = settle(result, copy)
            draft = self.draft(change.state)
            kept = self.drafts.result(unit.key, result)
            told = thoughts.collected()
        except LeaseLost:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a step raises is its failure, and no reason for us to stop
            return error
        return await self._complete(unit, attempt, change, draft, kept, told)

    async def _complete(
        self, unit: Unit, attempt: int, change: Change, draft: Draft, result: str, told: Sequence[Share]
    ) -> Exception | None:
        """Result, checkpoint and the next intent in one transaction, with what the step told its memory.

        What lives in other stores, and what came before it, is written first: a crash then leaves the step to be
        done again, and never a step that is done and has not been remembered.
        """
        done = self.note(unit, "completed", attempt, result=result)
        intent = self._intent(change.then, draft) if change.then is not None else ()
        reach("completion.before")
        try:
            self.heart.check()
            ending = (self.save(draft, change.status), done, *change.notes, *intent)
            await write_in_order(*told, (self.conditions.checkpoints.store, ending))
        except (FencedOut, LeaseLost):
            raise
        except Conflict as error:
            self._not_begun(change.then)
            return await self._explained(error, bool(told))
        except BadInput as error:  # something that the step told its memory is not to be stored
            self._not_begun(change.then)
            return error
        reach("completion.after")
        self.kept, self.version = draft, self.version + 1
        return None

    async def _explained(self, error: Conflict, told: bool) -> Exception:
        """A conflict is either about the task, which then is no longer ours, or about what the step told its memory."""
        task = await self.conditions.checkpoints.store.task(self.lease.space, self.lease.task, hidden=True)
        if not told or task is None or (task.fence, task.version) != (self.lease.fence, self.version):
            raise FencedOut(
                f"task {self.lease.task!r} was changed by others; the result is discarded: {error}"
            ) from error
        return error

    async def _again(self, unit: Unit, attempt: int, failure: Exception) -> None:
        """Note the failure, wait, and note the next attempt."""
        reach("failure.before")
        await self.write(self.note(unit, "failed", attempt, error=said(failure)))
        reach("failure.after")
        seconds = unit.options.backoff.wait(attempt, self.conditions.pace.chance())
        await self.tell("retried", unit, attempt, f"in {seconds:.2f} s")
        await self.heart.guard(self.conditions.pace.sleep(seconds))
        await self.begin(unit)


async def _timed(unit: Unit, state: State, context: StepContext) -> Any:
    if unit.options.timeout is None:
        return await call(unit.function, state, context)
    async with asyncio.timeout(unit.options.timeout):
        return await call(unit.function, state, context)


def _worth_retrying(unit: Unit, failure: Exception) -> bool:
    """What we refuse ourselves is refused again; everything else may pass, unless the step says otherwise."""
    return isinstance(failure, unit.options.retry_on) and not isinstance(failure, BadInput)


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_ERROR].encode("utf-8", "replace").decode()
