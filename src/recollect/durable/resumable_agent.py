"""`ResumableAgent`: runs the steps of a task on any worker, and continues after the last completed step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, Protocol

from recollect.durable.checkpoints import Checkpoints, LoadedTask, check_task_id, parse_ttl
from recollect.durable.events import EventEmitter, EventHandler
from recollect.durable.lease import Heartbeat, hold_lease
from recollect.durable.state_codec import State
from recollect.durable.steps import (
    UNDO_PREFIX,
    FittedPlan,
    PlanChangePolicy,
    PlannedStep,
    Timing,
    build_plan,
    check_state,
    fit_plan,
    hash_plan,
)
from recollect.durable.task_runner import Compensation, RunConfig, TaskRun, TaskRunner
from recollect.errors import FencedOut, LeaseHeld, StepFailed, TaskPoisoned
from recollect.stores.leases import LeaseRequest
from recollect.validation import check_choice, check_count, check_seconds

OnConflict = Literal["raise", "wait", "return"]


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

    @property
    def _checkpoints(self) -> Checkpoints:
        return self._config.checkpoints

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
        reason = (
            f"{stuck[-1].key!r} failed {stuck[-1].attempts} times ({stuck[-1].error})" if stuck else "no step says why"
        )
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
