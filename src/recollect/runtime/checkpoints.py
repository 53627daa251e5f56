"""Checkpoints: the state of each task by version, and what a person can do about a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from recollect.clock import Clock
from recollect.errors import BadInput, NotFound, StepFailed, StoreCorrupt
from recollect.guard.policy import Policy
from recollect.runtime.claiming import claimed
from recollect.runtime.codec import SCHEMA, Author, Document, State, decode, encode
from recollect.runtime.events import Telling, Watcher
from recollect.runtime.lease import worker_name
from recollect.runtime.mind import MindMaker
from recollect.runtime.plan import UNDO, checked_state
from recollect.settings import Settings
from recollect.stores.base import Checkpoint, Lease, Step, Task, Tasks
from recollect.stores.leases import Claim
from recollect.stores.ops import DropTask, Journal, Save, SetStatus, TaskStatus, Write
from recollect.values import Scope

HOUR = 3600.0
_STATUSES = ("ready", "running", "done", "failed", "poisoned", "compensating")
_LONGEST_ID = 512
# What every store can count to.
_MOST = 1 << 53
_A_MOMENT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Version:
    """One kept version of a task's state; `state` is None where it is damaged."""

    version: int
    at: datetime
    fence: int
    intact: bool
    state: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A task as it stands: what to go on from, and the version that the next one has to follow."""

    task: Task | None
    document: Document | None
    journal: Mapping[str, Step]

    @property
    def version(self) -> int:
        return self.task.version if self.task is not None else 0


class Checkpoints:
    """The tasks of one tenant and agent."""

    def __init__(
        self,
        store: Tasks,
        *,
        scope: Scope,
        settings: Settings,
        clock: Clock,
        minds: MindMaker,
        workers: Callable[[], str] = worker_name,
    ) -> None:
        self.store = store
        self.space = scope.space("checkpoints")
        self.by = Author.of(scope)
        self.settings = settings
        self.clock = clock
        self.minds = minds
        self.workers = workers
        self.on_event: Watcher | None = None
        """Told of a damaged checkpoint when no agent runs that could tell."""

    async def checkpoint(
        self, task_id: str, state: Mapping[str, Any], *, expected_version: int | None = None, ttl: float | None = HOUR
    ) -> int:
        """Keep a task's state and return its version; the last writer wins, unless the version seen is given.

        Refused with `LeaseHeld` while a worker has the task. The task is hidden `ttl` seconds after its last sign of
        life and dropped by the lifecycle some time later; until then a checkpoint goes on with its versions. None
        keeps it, or leaves the time it has.
        """
        text = self.encoded(dict(state) if isinstance(state, Mapping) else state)
        # Never blotted out: a state that comes back otherwise than it was saved would be a fault, and not a precaution.
        Policy.of(self.settings).unaltered(f"the state of task {task_id!r:.80}", text)
        lasts = None if ttl is None else checked_ttl(ttl)
        if expected_version is not None:
            _check_whole("expected_version", expected_version)
        return await self.store.save(
            Save(
                space=self.space,
                task=checked_task(task_id),
                state=text,
                schema=SCHEMA,
                expect=expected_version,
                ttl=lasts,
            )
        )

    async def restore(self, task_id: str, *, version: int | None = None) -> State | None:
        """The newest state that is intact, or one version of it; None when there is none, or when it has expired."""
        if version is None:
            document = await self.newest(task_id, Telling(self.on_event, self.clock))
            return None if document is None else document.state
        _check_whole("version", version)
        held = await self.store.checkpoint(self.space, checked_task(task_id), version=version)
        if held is None:
            return None
        document = _readable(held)
        if document is None:
            raise StoreCorrupt(
                f"version {version} of task {task_id!r} is damaged; leave the version out for the newest intact one"
            )
        return document.state

    async def history(self, task_id: str) -> list[Version]:
        """The versions that are kept, newest first."""
        held = await self.store.checkpoints(self.space, checked_task(task_id))
        readable = [(one, _readable(one)) for one in held]
        return [
            Version(one.version, one.at, one.fence, found is not None, None if found is None else found.state)
            for one, found in readable
        ]

    async def tasks(
        self, status: TaskStatus | None = None, *, limit: int = 100, after: str | None = None
    ) -> list[Task]:
        """The tasks by id, of one status or of any; `after` is the last id of the page before."""
        if status is not None and status not in _STATUSES:
            raise BadInput(f"a task's status is one of {', '.join(_STATUSES)}, not {status!r:.80}")
        _check_whole("limit", limit)
        if after is not None and not isinstance(after, str):
            raise BadInput(f"after is the id of a task, not {type(after).__name__}")
        return await self.store.tasks(self.space, status=status, limit=limit, after=after)

    async def task(self, task_id: str) -> Task | None:
        """Where a task stands; None when there is none of this id."""
        return await self.store.task(self.space, checked_task(task_id))

    async def steps(self, task_id: str) -> list[Step]:
        """The journal of a task: the newest note of each step, in the order they were begun."""
        return await self.store.steps(self.space, checked_task(task_id))

    async def retry(self, task_id: str) -> bool:
        """Let a poisoned, cancelled or asking task be run again, with all its attempts; False when there is none.

        Not one that was undone: whoever received its idempotency keys has seen them all, and would do nothing.
        """
        if await self._kept(task_id) is None:
            return False
        lease = await self._claim(task_id)
        try:
            loaded = await self.loaded(task_id, Telling(self.on_event, self.clock))
            status = loaded.task.status if loaded.task is not None else "ready"
            if status == "failed" and any(note.status == "compensated" for note in loaded.journal.values()):
                raise StepFailed(f"task {task_id!r} was undone and cannot be run again; run it under another id")
            writes: list[Write] = [_cleared(note, lease) for note in _open(loaded)]
            if status in ("poisoned", "failed"):
                writes.append(SetStatus(space=self.space, task=task_id, status="running", fence=lease.fence))
            await self.store.write(*writes)
        finally:
            await self.store.release(lease)
        return True

    async def skip(self, task_id: str, result: Any = None) -> str:
        """Say that the step whose outcome is unknown has been done, and with which result; returns its name."""
        if await self._kept(task_id) is None:
            raise NotFound(f"there is no task {task_id!r}; `tasks` lists those there are")
        lease = await self._claim(task_id)
        try:
            loaded = await self.loaded(task_id, Telling(self.on_event, self.clock))
            state = checked_state(loaded.document.state if loaded.document is not None else {})
            begun = [note for note in _open(loaded) if not note.key.startswith(UNDO)]
            if not begun:
                raise NotFound(f"no step of task {task_id!r} is open; `steps` lists what was begun")
            note = begun[-1]
            state["completed"] = [*state["completed"], note.key]
            state["results"] = {**state["results"], note.key: result}
            await self.store.write(
                Save(
                    space=self.space,
                    task=task_id,
                    state=self.encoded(state, loaded.document.working if loaded.document is not None else None),
                    schema=SCHEMA,
                    expect=loaded.version,
                    fence=lease.fence,
                    status="running",
                ),
                _noted(note, lease, "completed"),
            )
        finally:
            await self.store.release(lease)
        return note.key

    async def cancel(self, task_id: str) -> bool:
        """Give a task up: a worker that has it stops at its next heartbeat, and nobody runs it until `retry`.

        What it did stays done. False when there is no such task, or when it is done already.
        """
        task = await self._kept(task_id)
        if task is None or task.status in ("done", "failed"):
            return False
        await self.store.write(SetStatus(space=self.space, task=task_id, status="failed"))
        return True

    async def delete(self, task_id: str) -> bool:
        """Drop a task with its checkpoints and journal, and fence out its worker; False when there is none."""
        if await self._kept(task_id) is None:
            return False
        await self.store.write(DropTask(self.space, task_id))
        return True

    # For the agent

    def encoded(self, state: Any, working: Mapping[str, Any] | None = None) -> str:
        return encode(state, working, by=self.by, largest=self.settings.max_state)

    async def loaded(self, task_id: str, telling: Telling) -> Loaded:
        """The task, its newest intact state and its journal, also of one that has expired: what it did stays done."""
        task = await self._kept(task_id)
        if task is None:
            return Loaded(None, None, {})
        document = await self.newest(task_id, telling, hidden=True)
        journal = await self.store.steps(self.space, task_id, hidden=True)
        return Loaded(task, document, {note.key: note for note in journal})

    async def newest(self, task_id: str, telling: Telling, *, hidden: bool = False) -> Document | None:
        held = await self.store.checkpoint(self.space, checked_task(task_id), hidden=hidden)
        if held is None:
            return None
        document = _readable(held)
        if document is not None:
            return document
        for older in await self.store.checkpoints(self.space, task_id, hidden=hidden):
            document = _readable(older)
            if document is not None:
                await telling.tell(
                    "corrupt", task_id, detail=f"version {held.version} is damaged; {older.version} is used instead"
                )
                return document
        await telling.tell("corrupt", task_id, detail="every version that is kept is damaged")
        raise StoreCorrupt(
            f"every kept version of task {task_id!r} is damaged; restore a backup, or `delete` the task to begin again"
        )

    async def _kept(self, task_id: str) -> Task | None:
        """A task that somebody names in order to act on it: one that has expired may be there still."""
        return await self.store.task(self.space, checked_task(task_id), hidden=True)

    async def _claim(self, task_id: str) -> Lease:
        return await claimed(self.store, Claim(self.space, task_id, self.workers(), _A_MOMENT))


def checked_task(task_id: Any) -> str:
    if not isinstance(task_id, str) or not task_id.strip():
        raise BadInput(f"a task's id is a non-empty text, not {task_id!r:.80}")
    if len(task_id) > _LONGEST_ID:
        raise BadInput(f"a task's id has at most {_LONGEST_ID} characters, not {len(task_id):,}")
    return task_id


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
        raise BadInput(f"{name} is a whole number from 0 and below {_MOST:,}, not {value!r:.80}")


def checked_ttl(seconds: Any) -> timedelta:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise BadInput(f"ttl is a number of seconds above 0, or None, not {seconds!r:.80}")
    try:
        return timedelta(seconds=seconds)
    except OverflowError as error:
        raise BadInput(f"ttl is {seconds!r:.80} seconds, which no date can be that far from now; use None") from error


def _readable(held: Checkpoint) -> Document | None:
    """The document, unless it is damaged; one from a newer Recollect raises, for it is no damage."""
    if not held.intact:
        return None
    try:
        return decode(held.schema, held.state)
    except StoreCorrupt:
        return None


def _cleared(note: Step, lease: Lease) -> Journal:
    return Journal(
        space=lease.space,
        task=lease.task,
        step=note.key,
        status="failed",
        fence=lease.fence,
        attempts=0,
        idempotency_key=note.idempotency_key,
        input_sha=note.input_sha,
        error=note.error,
    )


def _noted(note: Step, lease: Lease, status: Any) -> Journal:
    return Journal(
        space=lease.space,
        task=lease.task,
        step=note.key,
        status=status,
        fence=lease.fence,
        attempts=note.attempts,
        idempotency_key=note.idempotency_key,
        input_sha=note.input_sha,
    )


def _open(loaded: Loaded) -> list[Step]:
    """The steps that were begun and are not done, by what the state says: a note may outlive a damaged checkpoint."""
    state = loaded.document.state if loaded.document is not None else {}
    done = {*state.get("completed", [])}
    done |= {note.key for note in loaded.journal.values() if note.status == "completed" and note.key.startswith(UNDO)}
    return [note for note in loaded.journal.values() if note.key not in done and note.status != "compensated"]
