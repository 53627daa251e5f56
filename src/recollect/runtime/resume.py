"""ResumableAgent: runs the steps of a task on whichever worker comes, from where the last one stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, Protocol

from recollect.errors import BadInput, FencedOut, LeaseHeld, StepFailed, StoreError, TaskPoisoned
from recollect.guard.policy import Policy
from recollect.runtime.checkpoints import Checkpoints, Loaded, checked_task, checked_ttl
from recollect.runtime.claiming import claimed
from recollect.runtime.codec import State
from recollect.runtime.course import Course
from recollect.runtime.draft import Drafts
from recollect.runtime.events import Telling, Watcher, log
from recollect.runtime.failpoints import reach
from recollect.runtime.lease import Heartbeat, LeaseLost
from recollect.runtime.plan import UNDO, Fitted, OnPlanChange, Planned, checked_state, fitted, plan_hash, plan_of
from recollect.runtime.running import Conditions, Running
from recollect.runtime.step import Pace
from recollect.runtime.undoing import Undoing
from recollect.stores.base import Lease
from recollect.stores.leases import Claim

OnConflict = Literal["raise", "wait", "return"]

# How long one who waits for another's task waits before looking again.
_LOOKING = 1.0


class HasCheckpoints(Protocol):
    """An AgentMemory, as far as the runtime needs to know it."""

    @property
    def checkpoints(self) -> Checkpoints: ...


class ResumableAgent:
    """Runs tasks that survive crashes: a completed step is never run again, and its result is in the checkpoint.

    Steps run at least once; state transitions apply exactly once; outside effects are effectively once when the
    receiver honours `ctx.idempotency_key`. `max_attempts` bounds how often a step is begun, in all runs together.
    When another worker has the task, `on_conflict` raises `LeaseHeld`, waits for it, or returns the state so far.
    """

    def __init__(  # noqa: PLR0913 - the front door fixes these
        self,
        memory: HasCheckpoints,
        *,
        lease_ttl: float = 30,
        max_attempts: int = 5,
        on_conflict: OnConflict = "raise",
        on_plan_change: OnPlanChange = "raise",
        on_event: Watcher | None = None,
        ttl: float | None = None,
        pace: Pace = Pace(),
    ) -> None:
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 1:
            raise BadInput(f"max_attempts is a whole number from 1, not {max_attempts!r:.80}")
        if isinstance(lease_ttl, bool) or not isinstance(lease_ttl, int | float) or not 0 < lease_ttl < math.inf:
            raise BadInput(f"lease_ttl is a number of seconds above 0, not {lease_ttl!r:.80}")
        if on_conflict not in ("raise", "wait", "return"):
            raise BadInput(f"on_conflict is 'raise', 'wait' or 'return', not {on_conflict!r:.80}")
        if on_plan_change not in ("raise", "by_name"):
            raise BadInput(f"on_plan_change is 'raise' or 'by_name', not {on_plan_change!r:.80}")
        self._on_conflict = on_conflict
        self._on_plan_change = on_plan_change
        self._conditions = Conditions(
            checkpoints=memory.checkpoints,
            telling=Telling(on_event, memory.checkpoints.clock),
            pace=pace,
            max_attempts=max_attempts,
            lease_ttl=timedelta(seconds=lease_ttl),
            ttl=None if ttl is None else checked_ttl(ttl),
        )

    async def run(
        self, task_id: str, steps: Iterable[Callable[..., Any]], initial_state: Mapping[str, Any] | None = None
    ) -> State:
        """Do what is left of a task and return its state; a task that is done is only looked up.

        `initial_state` begins a new task and is ignored by one that was begun: its own state goes on.
        """
        plan = plan_of(steps)
        checked_task(task_id)
        initial = checked_state(dict(initial_state) if isinstance(initial_state, Mapping) else initial_state or {})
        self._checkpoints.encoded(initial)
        while True:
            try:
                return await self._run(task_id, plan, initial)
            except (LeaseHeld, FencedOut):
                if self._on_conflict == "raise":
                    raise
            if self._on_conflict == "return":
                # However late our clock believes it to be: the one who has the task goes by their own.
                found = await self._checkpoints.newest(task_id, self._conditions.telling, hidden=True)
                return initial if found is None else found.state
            pace = self._conditions.pace
            await pace.sleep(min(_LOOKING, self._conditions.lease_ttl.total_seconds() / 3) * (0.5 + pace.chance() / 2))

    def seen_as(self, view: Callable[[Any], Any]) -> None:
        """How steps that run in a thread are to see `ctx.memory`: without await, say."""
        self._conditions = replace(self._conditions, view=view)

    @property
    def _checkpoints(self) -> Checkpoints:
        return self._conditions.checkpoints

    async def _run(self, task_id: str, plan: tuple[Planned, ...], initial: State) -> State:
        """One claim of the task, from looking at it to giving it back."""
        conditions = self._conditions
        # Only a look: what is worth telling is told once, when the task is ours.
        seen = await self._checkpoints.loaded(task_id, Telling(None, self._checkpoints.clock))
        fit = self._fitted(seen, plan, initial)
        if seen.task is not None and seen.task.status == "done" and not fit.pending:
            return fit.state
        asked = conditions.pace.monotonic()
        checkpoints = self._checkpoints
        wish = Claim(checkpoints.space, task_id, checkpoints.workers(), conditions.lease_ttl, plan_hash(plan))
        lease = await claimed(checkpoints.store, wish)
        reach("claim.after")
        async with Heartbeat(self._checkpoints.store, lease, conditions.lease_ttl, conditions.pace, asked) as heart:
            try:
                return await self._under(lease, heart, plan, initial)
            except (LeaseLost, FencedOut) as error:
                await conditions.telling.tell("lost", task_id, detail=str(error))
                raise FencedOut(
                    f"the lease of task {task_id!r} was lost: {error}; what was under way here is discarded"
                ) from error
            finally:
                await self._release(lease, heart)

    async def _under(self, lease: Lease, heart: Heartbeat, plan: tuple[Planned, ...], initial: State) -> State:
        """What is left to do, decided by what the store says now that nobody else can change it."""
        loaded = await self._checkpoints.loaded(lease.task, self._conditions.telling)
        fit = self._fitted(loaded, plan, initial)
        mind = self._checkpoints.minds()
        try:
            if loaded.document is not None and loaded.document.working is not None:
                mind.restore(loaded.document.working)
            settings = self._checkpoints.settings
            drafts = Drafts(settings.max_state, Policy.of(settings), self._checkpoints.by)
            draft = drafts.draft(fit.state, mind.snapshot())
            begun = "" if loaded.task is None else loaded.task.created_at.isoformat()
            running = Running(self._conditions, lease, heart, mind, drafts, draft, loaded.version, begun)
            if loaded.task is not None and loaded.task.status == "compensating":
                await self._go_on_undoing(running, fit, loaded)
            same = loaded.document is not None and loaded.document.state == fit.state
            reopened = loaded.task is not None and loaded.task.status == "done"
            return await Course(running, fit, loaded.journal, saved=same, reopened=reopened).go()
        finally:
            mind.leave()

    def _fitted(self, loaded: Loaded, plan: tuple[Planned, ...], initial: State) -> Fitted:
        """The plan and the state to go on from; refused when somebody has to decide something first."""
        if loaded.task is not None:
            _refuse(loaded)
        state = initial if loaded.document is None else checked_state(loaded.document.state)
        return fitted(plan, state, loaded.journal, self._on_plan_change)

    async def _go_on_undoing(self, running: Running, fit: Fitted, loaded: Loaded) -> None:
        failed = [note for note in loaded.journal.values() if note.status in ("poisoned", "failed") and note.error]
        name, error = (failed[0].key, failed[0].error or "") if failed else ("a step", "unknown")
        await Undoing(running, fit.plan, loaded.journal).go(name, error)

    async def _release(self, lease: Lease, heart: Heartbeat) -> None:
        reach("release.before")
        if heart.lost:
            return
        try:
            await self._checkpoints.store.release(lease)
        except StoreError:  # what was done is kept; the lease runs out by itself
            log.warning("the lease of task %r could not be given back", lease.task)


def _refuse(loaded: Loaded) -> None:
    """What a person has to decide about first."""
    assert loaded.task is not None
    task, status = loaded.task.id, loaded.task.status
    stuck = [note for note in loaded.journal.values() if note.status == "poisoned"]
    way_out = f"mend the cause, call `await memory.checkpoints.retry({task!r})`, and run it again"
    if status == "poisoned" or (status == "compensating" and any(note.key.startswith(UNDO) for note in stuck)):
        what = (
            f"{stuck[-1].key!r} failed {stuck[-1].attempts} times ({stuck[-1].error})" if stuck else "it is quarantined"
        )
        raise TaskPoisoned(f"task {task!r} is poisoned: {what}; {way_out}")
    if status == "failed" and any(note.status == "compensated" for note in loaded.journal.values()):
        raise StepFailed(f"task {task!r} failed and was undone; run it under another id")
    if status == "failed":
        raise StepFailed(
            f"task {task!r} was cancelled; call `await memory.checkpoints.retry({task!r})` to go on with it"
        )
