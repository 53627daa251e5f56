"""`ResumableAgent`, which runs and resumes tasks: each step is one intent, one call and one durable completion."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, NoReturn, Protocol

from recollect.durable.checkpoints import (
    Checkpoints,
    LoadedTask,
    build_journal_entry,
    build_save,
    check_task_id,
    parse_ttl,
)
from recollect.durable.events import EventEmitter, EventHandler, EventKind, describe_error
from recollect.durable.failpoints import reach_failpoint
from recollect.durable.lease import Heartbeat, LeaseLost, hold_lease
from recollect.durable.state_codec import EncodedState, State
from recollect.durable.step_memory import RunMemory, StoreWrites, write_in_order
from recollect.durable.steps import (
    UNDO_PREFIX,
    FittedPlan,
    PlanChangePolicy,
    PlannedStep,
    StepContext,
    StepOptions,
    Timing,
    build_plan,
    check_state,
    fit_plan,
    hash_plan,
    is_async,
    make_idempotency_key,
    takes_context,
)
from recollect.errors import BadInput, Conflict, FencedOut, LeaseHeld, StepFailed, TaskPoisoned, UnknownOutcome
from recollect.security.redaction import RedactionPolicy
from recollect.stores.leases import LeaseRequest
from recollect.stores.writes import Journal, Save, SetStatus, Step, StepStatus, TaskStatus, Write
from recollect.validation import check_choice, check_count, check_seconds

OnConflict = Literal["raise", "wait", "return"]


@dataclass(frozen=True, slots=True)
class Transition:
    """The new state of the task after a step."""

    state: State
    entries: tuple[Write, ...] = ()
    status: TaskStatus | None = None
    """None keeps the stored status: the task may have been cancelled meanwhile."""
    next_step: PlannedStep | None = None
    """The step whose intent is committed together with this completion."""


BuildTransition = Callable[[Any, State], Transition]


@dataclass(eq=False)
class StepGaveUp(Exception):
    """A step that failed for good; `is_exhausted` tells whether all its attempts are used."""

    step: PlannedStep
    attempt: int
    error: Exception
    is_exhausted: bool


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Options of an agent that apply to all its runs."""

    checkpoints: Checkpoints
    events: EventEmitter
    timing: Timing
    max_attempts: int
    lease_ttl: timedelta
    ttl: timedelta | None
    view: Callable[[Any], Any] | None = None
    """Wraps the memory for steps that run in a thread."""


class TaskRun:
    """A leased task: its last committed state, and the calls of its steps and of their compensations."""

    def __init__(
        self, config: RunConfig, heartbeat: Heartbeat, run_memory: RunMemory, loaded: LoadedTask, state: State
    ) -> None:
        self.config = config
        self.heartbeat = heartbeat
        self.lease = heartbeat.lease
        self.journal = loaded.journal
        self.version = loaded.version
        self.attempts: dict[str, int] = {}
        # Distinguishes the task from an earlier task with the same id.
        self._created_at = "" if loaded.task is None else loaded.task.created_at.isoformat()
        self._run_memory = run_memory
        self._encoder = config.checkpoints._build_encoder()
        self.committed = self.encode_state(state)

    @property
    def state(self) -> State:
        """A new copy of the committed state."""
        return self.committed.decode()

    async def begin(
        self, step: PlannedStep, *writes: Write, saves: bool = False, status: TaskStatus | None = None
    ) -> None:
        """Commit the intent of a step before its body runs; with `saves`, the state with it."""
        save = (self.build_save(self.committed, status),) if saves else ()
        intent = self._build_intent(step, self.committed)
        reach_failpoint("intent.before")
        await self.write(*save, *writes, *intent)
        reach_failpoint("intent.after")
        if saves:
            self.mark_committed(self.committed)

    async def perform(self, step: PlannedStep, build_transition: BuildTransition) -> None:
        """Attempt a begun step until it is completed; raise `StepGaveUp` when it fails for good."""
        while True:
            attempt = self.attempts[step.name]
            await self.emit("started", step, attempt)
            failure = await self._attempt(step, attempt, build_transition)
            if failure is None:
                await self.emit("finished", step, attempt)
                return
            await self.emit("failed", step, attempt, describe_error(failure))
            is_exhausted = attempt >= step.options.get_max_attempts(self.config.max_attempts)
            # A BadInput of our own would be raised again.
            if is_exhausted or not isinstance(failure, step.options.retry_on) or isinstance(failure, BadInput):
                raise StepGaveUp(step, attempt, failure, is_exhausted=is_exhausted)
            await self._schedule_retry(step, attempt, failure)

    async def write(self, *writes: Write) -> None:
        """Write under the fence; raise `LeaseLost` without writing if the lease is lost."""
        self.heartbeat.check()
        await self.config.checkpoints._store.write(*writes)

    def mark_committed(self, state: EncodedState) -> None:
        self.committed, self.version = state, self.version + 1

    def build_save(self, state: EncodedState, status: TaskStatus | None) -> Save:
        return build_save(self.lease, state, self.version, ttl=self.config.ttl, status=status)

    def build_status(self, status: TaskStatus) -> SetStatus:
        return SetStatus(space=self.lease.space, task=self.lease.task, status=status, fence=self.lease.fence)

    def build_entry(self, step: PlannedStep, status: StepStatus, attempt: int, **fields: Any) -> Journal:
        return build_journal_entry(self.lease, step.name, status, attempt, step.idempotency_key, **fields)

    def close_previous_name(self, step: PlannedStep) -> tuple[Write, ...]:
        """Return the write that ends the entry of a step that began under another name."""
        if step.previous_name is None:
            return ()
        attempts, error = self.journal[step.previous_name].attempts, f"continues as {step.name}"
        name, key = step.previous_name, step.idempotency_key
        return (build_journal_entry(self.lease, name, "failed", attempts, key, error=error),)

    def encode_state(self, state: State) -> EncodedState:
        return self._encoder.encode(state, self._run_memory.snapshot())

    async def emit(self, kind: EventKind, step: PlannedStep, attempt: int | None = None, detail: str = "") -> None:
        await self.config.events.emit(kind, self.lease.task, step.name, attempt, detail)

    def _build_intent(self, step: PlannedStep, state: EncodedState) -> tuple[Write, ...]:
        attempt = self.attempts[step.name] = self.attempts.get(step.name, 0) + 1
        started = self.build_entry(step, "started", attempt, input_sha=state.sha256)
        return (started, *self.close_previous_name(step))

    async def _attempt(self, step: PlannedStep, attempt: int, build_transition: BuildTransition) -> Exception | None:
        """Run the body and commit its completion; return the error if this attempt failed."""
        context: StepContext[Any] = StepContext(
            self.lease.task,
            step.name,
            attempt,
            step.idempotency_key,
            self._run_memory,
            f"{step.idempotency_key} {self._created_at}",
            lambda: self.heartbeat.is_lost,
            None if self.config.view is None or is_async(step.function) else self.config.view,
        )
        state = self.state
        try:
            reach_failpoint("body.before")
            result = await self.heartbeat.guard(_call_step(step, state, context))
            reach_failpoint("body.after")
            if result is state:  # a step may return the state that it changed
                result = None
            transition = build_transition(result, state)
            encoded = self.encode_state(transition.state)
            stored_result = self._encode_result(step.name, result)
        except LeaseLost:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a step raises is a failure of the step
            return error
        completed = self.build_entry(step, "completed", attempt, result=stored_result)
        return await self._complete(transition, encoded, completed, context._writes)

    def _encode_result(self, step_name: str, result: Any) -> str:
        """Encode a result unchanged; secrets in it are refused or logged as the settings say."""
        text = self._encoder.encode_value(result)
        policy = RedactionPolicy.from_settings(self.config.checkpoints.settings)
        if result is not None and policy.is_active:
            policy.find_unaltered_kinds(f"the result of step {step_name!r}", text)
        return text

    async def _complete(
        self, transition: Transition, encoded: EncodedState, completed: Journal, memory_writes: Sequence[StoreWrites]
    ) -> Exception | None:
        """Commit result, checkpoint, next intent and memory writes; return the error if the memory writes are refused.

        Writes for other stores come first: a crash then repeats the step, and no completed step lacks its memory.
        """
        next_step = transition.next_step
        intent = self._build_intent(next_step, encoded) if next_step is not None else ()
        reach_failpoint("completion.before")
        try:
            self.heartbeat.check()
            task_writes = (self.build_save(encoded, transition.status), completed, *transition.entries, *intent)
            await write_in_order(*memory_writes, (self.config.checkpoints._store, task_writes))
        except (FencedOut, LeaseLost):
            raise
        except (Conflict, BadInput) as error:
            if next_step is not None:
                self.attempts[next_step.name] -= 1
            if isinstance(error, Conflict) and (not memory_writes or await self._is_superseded()):
                raise FencedOut(
                    f"task {self.lease.task!r} was changed by another worker; the result is discarded: {error}"
                ) from error
            return error
        reach_failpoint("completion.after")
        self.mark_committed(encoded)
        return None

    async def _is_superseded(self) -> bool:
        """Return True if another worker has changed the task; otherwise a conflict is about the step's memory."""
        task = await self.config.checkpoints._store.task(self.lease.space, self.lease.task, hidden=True)
        return task is None or (task.fence, task.version) != (self.lease.fence, self.version)

    async def _schedule_retry(self, step: PlannedStep, attempt: int, failure: Exception) -> None:
        reach_failpoint("failure.before")
        await self.write(self.build_entry(step, "failed", attempt, error=describe_error(failure)))
        reach_failpoint("failure.after")
        seconds = step.options.backoff.get_wait(attempt, self.config.timing.random())
        await self.emit("retried", step, attempt, f"in {seconds:.2f} s")
        await self.heartbeat.guard(self.config.timing.sleep(seconds))
        await self.begin(step)


async def _call_step(step: PlannedStep, state: State, context: StepContext[Any]) -> Any:
    """Call a step with the state and, if it takes one, the context; plain functions run in a thread."""
    arguments = (state, context) if step.takes_context else (state,)
    timeout = step.options.timeout
    async with nullcontext() if timeout is None else asyncio.timeout(timeout):
        if is_async(step.function):
            return await step.function(*arguments)
        result = await asyncio.to_thread(step.function, *arguments)
        return await result if inspect.isawaitable(result) else result


class Compensation:
    """Undoes completed steps in reverse order; steps without `compensate` stay completed."""

    def __init__(self, run: TaskRun, plan: Sequence[PlannedStep]) -> None:
        self._run = run
        by_name = {planned.name: planned for planned in plan if planned.options.compensate is not None}
        self.pending = [by_name[name] for name in reversed(run.state["completed"]) if name in by_name]

    async def run(self, failed: str, error: str, *writes: Write) -> NoReturn:
        """Undo all pending steps and raise `StepFailed`; `writes` are committed with the first intent."""
        run = self._run
        if not self.pending:
            await run.write(run.build_status("failed"))
        undos = [self._plan_undo(planned) for planned in self.pending]
        for planned, undo, next_undo in zip_longest(self.pending, undos, undos[1:]):
            if undo is undos[0]:
                attempts, entry = run.attempts.get(undo.name, 0), run.journal.get(undo.name)
                if attempts >= run.config.max_attempts and entry is not None:
                    reason = RuntimeError(entry.error or "the process ended during the call")
                    await self._poison(StepGaveUp(undo, attempts, reason, is_exhausted=True))
                await run.begin(undo, *writes, run.build_status("compensating"))
            try:
                await run.perform(undo, partial(self._build_transition, planned, next_undo))
            except StepGaveUp as failure:
                await self._poison(failure)
            await run.emit("compensated", planned)
        undone = ", ".join(planned.name for planned in self.pending)
        raise StepFailed(
            f"step {failed!r} of task {run.lease.task!r} failed for good: {error}. These steps were undone: {undone}; "
            "fix the cause and run the steps under another id"
        )

    def _plan_undo(self, planned: PlannedStep) -> PlannedStep:
        run, compensate = self._run, planned.options.compensate
        assert compensate is not None
        name = UNDO_PREFIX + planned.name
        if (entry := run.journal.get(name)) is not None:
            run.attempts.setdefault(name, entry.attempts)
        key = make_idempotency_key(run.lease.space, run.lease.task, name)
        return PlannedStep(name, compensate, StepOptions(), bool(takes_context(compensate)), key)

    def _build_transition(
        self, planned: PlannedStep, next_undo: PlannedStep | None, _: Any, state: State
    ) -> Transition:
        run = self._run
        committed = run.state
        completed = [name for name in committed["completed"] if name != planned.name]
        results = {name: result for name, result in committed["results"].items() if name != planned.name}
        new_state: dict[str, Any] = {**state, "completed": completed, "results": results}
        known = run.journal.get(planned.name)
        attempts = run.attempts.get(planned.name, known.attempts if known is not None else 1)
        entry = run.build_entry(planned, "compensated", attempts)
        return Transition(new_state, (entry,), None if next_undo else "failed", next_undo)

    async def _poison(self, failure: StepGaveUp) -> NoReturn:
        """Mark a compensation that failed for good and raise `TaskPoisoned`; the task stays half undone."""
        run, error = self._run, describe_error(failure.error)
        await run.write(run.build_entry(failure.step, "poisoned", failure.attempt, error=error))
        await run.emit("poisoned", failure.step, failure.attempt, error)
        raise TaskPoisoned(
            f"{failure.step.name!r} of task {run.lease.task!r} failed {failure.attempt} times, last with {error}; fix "
            "the cause, call `checkpoints.retry` and run the task again to continue the compensation"
        ) from failure.error


class TaskRunner:
    """Runs the pending steps of a task, from where it stands to its end."""

    def __init__(self, run: TaskRun, fit: FittedPlan, loaded: LoadedTask) -> None:
        self._run = run
        self._plan, self._pending = fit.plan, fit.pending
        self._completed: list[str] = [*fit.state["completed"]]
        self._is_reopened = loaded.task is not None and loaded.task.status == "done"
        """The task was done, and its plan has grown since."""
        is_stored = loaded.document is not None and loaded.document.state == fit.state
        self._is_saved = is_stored and not self._is_reopened
        """The stored state is the current one, so that the first commit need not write it."""

    async def run(self) -> State:
        """Run all pending steps and return the final state."""
        emit, task = self._run.config.events.emit, self._run.lease.task
        for planned in self._plan:
            if planned not in self._pending:
                await emit("skipped", task, planned.name)
        is_begun = False
        for step, next_step in zip_longest(self._pending, self._pending[1:]):
            is_last = next_step is None
            if not is_begun:
                if await self._handle_unknown_outcome(step, is_last=is_last):
                    continue
                await self._run.begin(step, saves=not self._is_saved, status="running" if self._is_reopened else None)
                self._is_saved = True
            # The intent of a next step without a journal entry is committed with this completion.
            is_begun = next_step is not None and self._find_journal_entry(next_step) is None
            begun = next_step if is_begun else None
            try:
                await self._run.perform(step, partial(self._build_transition, step, begun, is_last))
            except StepGaveUp as failure:
                await self._handle_failure(failure)
            self._completed.append(step.name)
        if not self._pending:
            await self._run.write(self._run.build_save(self._run.committed, "done"))
        await emit("done", task)
        return self._run.state

    def _find_journal_entry(self, step: PlannedStep) -> Step | None:
        return self._run.journal.get(step.previous_name or step.name)

    def _build_transition(
        self, step: PlannedStep, next_step: PlannedStep | None, is_last: bool, result: Any, state: State
    ) -> Transition:
        new_state = check_state(state)
        new_state["completed"] = [*self._completed, step.name]
        new_state["results"] = {**new_state["results"], step.name: result}
        return Transition(new_state, status="done" if is_last else None, next_step=next_step)

    async def _handle_unknown_outcome(self, step: PlannedStep, *, is_last: bool) -> bool:
        """Apply `on_unknown` to an attempt of an earlier run; return True if the step now counts as done."""
        entry = self._find_journal_entry(step)
        if entry is None:
            return False
        self._run.attempts[step.name] = entry.attempts
        # "completed", but missing in the state: the checkpoint that listed it is damaged.
        if entry.status in ("started", "completed"):
            await self._run.emit("unknown", step, entry.attempts)
            if step.options.on_unknown == "ask":
                raise UnknownOutcome(
                    f"{step.name!r} of task {self._run.lease.task!r} began, and its end was not recorded. Look for "
                    f"the idempotency key {step.idempotency_key} in the external service; call `checkpoints.skip` "
                    "with the result if the step was done, else `checkpoints.retry`, and run the task again"
                )
            if step.options.on_unknown == "skip":
                await self._skip(step, entry, is_last=is_last)
                return True
        if entry.attempts >= step.options.get_max_attempts(self._run.config.max_attempts):
            error = RuntimeError(entry.error or "the process ended during the step")
            await self._handle_failure(StepGaveUp(step, entry.attempts, error, is_exhausted=True))
        return False

    async def _skip(self, step: PlannedStep, entry: Step, *, is_last: bool) -> None:
        run = self._run
        transition = self._build_transition(step, None, is_last, json.loads(entry.result or "null"), run.state)
        encoded = run.encode_state(transition.state)
        completed = run.build_entry(step, "completed", entry.attempts, result=entry.result)
        await run.write(run.build_save(encoded, transition.status), completed, *run.close_previous_name(step))
        run.mark_committed(encoded)
        self._is_saved = True
        self._completed.append(step.name)
        await run.emit("skipped", step, entry.attempts, "its outcome is unknown and counts as done")

    async def _handle_failure(self, failure: StepGaveUp) -> NoReturn:
        """Compensate if possible; otherwise record the failure, poison an exhausted step, and raise."""
        run, step = self._run, failure.step
        task, error = run.lease.task, describe_error(failure.error)
        status: StepStatus = "poisoned" if failure.is_exhausted else "failed"
        entry = run.build_entry(step, status, failure.attempt, error=error)
        compensation = Compensation(run, self._plan)
        if compensation.pending:
            await compensation.run(step.name, error, entry)
        writes: list[Write] = [entry]
        if failure.is_exhausted:
            writes.append(run.build_status("poisoned"))
        await run.write(*writes, *run.close_previous_name(step))
        if failure.is_exhausted:
            await run.emit("poisoned", step, failure.attempt, error)
            raise TaskPoisoned(
                f"step {step.name!r} of task {task!r} failed {failure.attempt} times, last with {error}; fix the "
                f"cause, call `await memory.checkpoints.retry({task!r})`, and run the task again"
            ) from failure.error
        if isinstance(failure.error, BadInput):
            raise failure.error
        raise StepFailed(
            f"step {step.name!r} of task {task!r} failed with a non-retryable error: {error}; fix the cause and run "
            "the task again"
        ) from failure.error


class HasCheckpoints(Protocol):
    """An object with checkpoints, such as `AgentMemory`."""

    @property
    def checkpoints(self) -> Checkpoints: ...


class ResumableAgent:
    """Runner of tasks that resume after a crash. A completed step does not run again, unless its checkpoint is damaged.

    Steps run at least once, and state transitions apply exactly once. External effects happen effectively once if the
    service honors `ctx.idempotency_key`. `max_attempts` limits the attempts at a step in all runs together. If another
    worker has the task, `on_conflict` raises `LeaseHeld`, waits, or returns the stored state.
    """

    def __init__(
        self,
        memory: HasCheckpoints,
        *,
        lease_ttl: float = 30,
        max_attempts: int = 5,
        on_conflict: OnConflict = "raise",
        on_plan_change: PlanChangePolicy = "raise",
        on_event: EventHandler | None = None,
        ttl: float | None = None,
        _timing: Timing = Timing(),
    ) -> None:
        self._checkpoints = memory.checkpoints
        self._on_conflict: OnConflict = check_choice("on_conflict", on_conflict, ("raise", "wait", "return"))
        self._on_plan_change: PlanChangePolicy = check_choice("on_plan_change", on_plan_change, ("raise", "by_name"))
        self._config = RunConfig(
            checkpoints=memory.checkpoints,
            events=EventEmitter(on_event, memory.checkpoints.clock),
            timing=_timing,
            max_attempts=check_count("max_attempts", max_attempts, minimum=1),
            lease_ttl=timedelta(seconds=check_seconds("lease_ttl", lease_ttl)),
            ttl=None if ttl is None else parse_ttl(ttl),
        )

    async def run(
        self, task_id: str, steps: Iterable[Callable[..., Any]], initial_state: Mapping[str, Any] | None = None
    ) -> State:
        """Run the remaining steps of a task and return its state; a finished task returns at once.

        `initial_state` starts a new task; a task that exists continues with its own state.
        """
        plan = build_plan(steps, self._checkpoints._space, check_task_id(task_id))
        initial = check_state(dict(initial_state) if isinstance(initial_state, Mapping) else initial_state or {})
        self._checkpoints._build_encoder().encode(initial)
        while True:
            try:
                return await self._run(task_id, plan, initial)
            except (LeaseHeld, FencedOut):
                if self._on_conflict == "raise":
                    raise
            if self._on_conflict == "return":
                # An expired task counts too: its worker decides by its own clock.
                document = await self._checkpoints._load_newest(task_id, self._config.events, hidden=True)
                return initial if document is None else document.state
            await self._config.timing.sleep_before_claim(self._config.lease_ttl)

    def _set_memory_view(self, view: Callable[[Any], Any]) -> None:
        """Wrap the memory of steps that run in a thread with `view`."""
        self._config = replace(self._config, view=view)

    async def _run(self, task_id: str, plan: tuple[PlannedStep, ...], initial: State) -> State:
        """Claim the task, run what is left, and release the lease."""
        config, checkpoints = self._config, self._checkpoints
        # Events are emitted only by the load under the lease, so that each is emitted once.
        loaded = await checkpoints._load_task(task_id, EventEmitter(None, checkpoints.clock))
        fit = self._fit_plan(loaded, plan, initial)
        if loaded.task is not None and loaded.task.status == "done" and not fit.pending:
            return fit.state
        owner = checkpoints._make_worker_name()
        request = LeaseRequest(checkpoints._space, task_id, owner, config.lease_ttl, hash_plan(plan))
        try:
            async with hold_lease(checkpoints._store, request, config.timing) as heartbeat:
                return await self._run_under_lease(heartbeat, plan, initial)
        except FencedOut as error:
            await config.events.emit("lost", task_id, detail=str(error))
            raise

    async def _run_under_lease(self, heartbeat: Heartbeat, plan: tuple[PlannedStep, ...], initial: State) -> State:
        """Run what is left according to the stored task, which no other worker can change now."""
        loaded = await self._checkpoints._load_task(heartbeat.lease.task, self._config.events)
        fit = self._fit_plan(loaded, plan, initial)
        run_memory = self._checkpoints._begin_run()
        try:
            if loaded.working is not None:
                run_memory.restore(loaded.working)
            run = TaskRun(self._config, heartbeat, run_memory, loaded, fit.state)
            if loaded.task is not None and loaded.task.status == "compensating":
                failed = [note for note in loaded.journal.values() if note.status in ("poisoned", "failed")]
                name, error = next(((note.key, note.error) for note in failed if note.error), ("unknown", "unknown"))
                await Compensation(run, fit.plan).run(name, error)
            return await TaskRunner(run, fit, loaded).run()
        finally:
            run_memory.end_run()

    def _fit_plan(self, loaded: LoadedTask, plan: tuple[PlannedStep, ...], initial: State) -> FittedPlan:
        _check_runnable(loaded)
        state = initial if loaded.document is None else check_state(loaded.document.state)
        return fit_plan(plan, state, loaded.journal, self._on_plan_change)


def _check_runnable(loaded: LoadedTask) -> None:
    """Raise `TaskPoisoned` or `StepFailed` if the task needs a decision first."""
    if loaded.task is None:
        return
    task, status = loaded.task.id, loaded.task.status
    stuck = [entry for entry in loaded.journal.values() if entry.status == "poisoned"]
    is_undo_stuck = any(entry.key.startswith(UNDO_PREFIX) for entry in stuck)
    if status == "poisoned" or (status == "compensating" and is_undo_stuck):
        last = stuck[-1] if stuck else None
        reason = f"{last.key!r} failed {last.attempts} times ({last.error})" if last else "no step says why"
        raise TaskPoisoned(
            f"task {task!r} is poisoned: {reason}; fix the cause, call `await memory.checkpoints.retry({task!r})`, and "
            "run the task again"
        )
    if status == "failed" and loaded.is_compensated:
        raise StepFailed(f"task {task!r} failed and was undone; run the steps under another id")
    if status == "failed":
        raise StepFailed(
            f"task {task!r} was cancelled; call `await memory.checkpoints.retry({task!r})` before running it again"
        )
