"""Checkpoints of tasks: versioned states, the journal of steps, and the operations on a task."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, get_args

from recollect.clock import Clock
from recollect.durable.events import EventEmitter, EventHandler
from recollect.durable.lease import build_worker_name, claim_lease
from recollect.durable.state_codec import SCHEMA, CheckpointDocument, EncodedState, State, StateEncoder, decode_document
from recollect.durable.step_memory import RunMemory
from recollect.durable.steps import UNDO_PREFIX, check_state
from recollect.errors import BadInput, NotFound, StepFailed, StoreCorrupt
from recollect.security.redaction import RedactionPolicy
from recollect.settings import Settings
from recollect.stores.base import Tasks
from recollect.stores.leases import LeaseRequest
from recollect.stores.writes import (
    Checkpoint,
    DropTask,
    Journal,
    Lease,
    Save,
    SetStatus,
    Step,
    StepStatus,
    Task,
    TaskStatus,
    Write,
)
from recollect.types import Scope
from recollect.validation import check_choice, check_count, check_seconds, check_text

_MAX_ID_CHARS = 512
_MAX_VERSION = (1 << 53) - 1  # JSON numbers are exact up to 2^53
_OPERATOR_LEASE_TTL = timedelta(seconds=30)
# 100 years: a checkpoint with ttl=math.inf, which also replaces a shorter time that the task had.
_NEVER = timedelta(days=36_525)


@dataclass(frozen=True, slots=True)
class CheckpointVersion:
    """A stored version of a task's state; `state` is None if it is damaged."""

    version: int
    at: datetime
    fence: int
    intact: bool
    state: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task with its newest intact checkpoint and its journal."""

    task: Task | None
    document: CheckpointDocument | None
    journal: Mapping[str, Step]

    @property
    def version(self) -> int:
        return self.task.version if self.task is not None else 0

    @property
    def state(self) -> State:
        return self.document.state if self.document is not None else {}

    @property
    def working(self) -> Mapping[str, Any] | None:
        return self.document.working if self.document is not None else None

    @property
    def is_compensated(self) -> bool:
        return any(entry.status == "compensated" for entry in self.journal.values())


class Checkpoints:
    """The tasks of one tenant and agent."""

    def __init__(
        self,
        store: Tasks,
        *,
        scope: Scope,
        settings: Settings,
        clock: Clock,
        begin_run: Callable[[], RunMemory],
        workers: Callable[[], str] = build_worker_name,
    ) -> None:
        self._store = store
        self._space = scope.space("checkpoints")
        self._author = (scope.user, scope.session)
        self.settings = settings
        self.clock = clock
        self._begin_run = begin_run
        self._make_worker_name = workers
        self.on_event: EventHandler | None = None
        """Called when a checkpoint is damaged and no agent is running."""

    async def checkpoint(
        self, task_id: str, state: Mapping[str, Any], *, expected_version: int | None = None, ttl: float | None = None
    ) -> int:
        """Store the state of a task and return its version.

        The last write wins, unless `expected_version` is given; then another version raises `Conflict`. Raises
        `LeaseHeld` while a worker has the task. The task expires `ttl` seconds after its last checkpoint or heartbeat;
        None takes the setting `checkpoint_ttl`, and `math.inf` means that it does not expire.
        """
        encoded = self._build_encoder().encode(dict(state) if isinstance(state, Mapping) else state)
        # Secrets are never redacted here: a state must come back as it was stored.
        policy = RedactionPolicy.from_settings(self.settings)
        policy.find_unaltered_kinds(f"the state of task {task_id!r:.80}", encoded.text)
        return await self._store.save(
            Save(
                space=self._space,
                task=check_task_id(task_id),
                state=encoded.text,
                sha256=encoded.sha256,
                schema=SCHEMA,
                expect=None if expected_version is None else _check_integer("expected_version", expected_version),
                ttl=parse_ttl(self.settings.checkpoint_ttl if ttl is None else ttl),
            )
        )

    async def restore(self, task_id: str, *, version: int | None = None) -> State | None:
        """Return the newest intact state, or that of `version`; None if there is none or the task has expired."""
        if version is None:
            document = await self._load_newest(task_id, self._build_emitter())
            return None if document is None else document.state
        _check_integer("version", version)
        checkpoint = await self._store.checkpoint(self._space, check_task_id(task_id), version=version)
        if checkpoint is None:
            return None
        document = _decode_checkpoint(checkpoint)
        if document is None:
            raise StoreCorrupt(
                f"version {version} of task {task_id!r} is damaged; omit `version` to get the newest intact one"
            )
        return document.state

    async def history(self, task_id: str) -> list[CheckpointVersion]:
        """Return the stored versions, newest first."""
        checkpoints = await self._store.checkpoints(self._space, check_task_id(task_id))
        states = [None if found is None else found.state for found in map(_decode_checkpoint, checkpoints)]
        return [
            CheckpointVersion(checkpoint.version, checkpoint.at, checkpoint.fence, state is not None, state)
            for checkpoint, state in zip(checkpoints, states, strict=True)
        ]

    async def tasks(
        self, status: TaskStatus | None = None, *, limit: int = 100, after: str | None = None
    ) -> list[Task]:
        """Return the tasks by id, of one status or of all; `after` is the last id of the previous page."""
        if status is not None:
            check_choice("status", status, get_args(TaskStatus))
        _check_integer("limit", limit)
        if after is not None and not isinstance(after, str):
            raise BadInput(f"after must be the id of a task; got {type(after).__name__}")
        return await self._store.tasks(self._space, status=status, limit=limit, after=after)

    async def task(self, task_id: str) -> Task | None:
        """Return the task, or None if it does not exist or has expired."""
        return await self._store.task(self._space, check_task_id(task_id))

    async def steps(self, task_id: str) -> list[Step]:
        """Return the newest journal entry of each step, in the order in which the steps began."""
        return await self._store.steps(self._space, check_task_id(task_id))

    async def retry(self, task_id: str) -> bool:
        """Allow a poisoned, canceled or undecided task to run again, with all its attempts; False if there is none.

        Raises `StepFailed` for a task that was compensated: its idempotency keys are used up.
        """
        if await self._find_task(task_id) is None:
            return False
        async with self._lease(task_id) as lease:
            loaded = await self._load_task(task_id, self._build_emitter())
            status = loaded.task.status if loaded.task is not None else "ready"
            if status == "failed" and loaded.is_compensated:
                raise StepFailed(f"task {task_id!r} was undone and cannot be run again; run the steps under another id")
            writes: list[Write] = [
                build_journal_entry(lease, entry.key, "failed", 0, entry.idempotency_key, error=entry.error)
                for entry in _find_open_steps(loaded)
            ]
            if status in ("poisoned", "failed"):
                writes.append(SetStatus(space=self._space, task=task_id, status="running", fence=lease.fence))
            await self._store.write(*writes)
        return True

    async def skip(self, task_id: str, result: Any = None) -> str:
        """Record the step with the unknown outcome as done, with this result; return the name of the step."""
        if await self._find_task(task_id) is None:
            raise NotFound(f"no task {task_id!r}; `tasks` lists the tasks")
        async with self._lease(task_id) as lease:
            loaded = await self._load_task(task_id, self._build_emitter())
            state = check_state(loaded.state)
            open_steps = [entry for entry in _find_open_steps(loaded) if not entry.key.startswith(UNDO_PREFIX)]
            if not open_steps:
                raise NotFound(f"task {task_id!r} has no step with an unknown outcome; `steps` lists its steps")
            entry = open_steps[-1]
            state["completed"] = [*state["completed"], entry.key]
            state["results"] = {**state["results"], entry.key: result}
            encoded = self._build_encoder().encode(state, loaded.working)
            await self._store.write(
                build_save(lease, encoded, loaded.version, status="running"),
                build_journal_entry(lease, entry.key, "completed", entry.attempts, entry.idempotency_key),
            )
        return entry.key

    async def cancel(self, task_id: str) -> bool:
        """Cancel a task: its worker stops at the next heartbeat, and the task does not run before `retry`.

        Completed steps stay completed. Returns False if the task does not exist or has ended.
        """
        task = await self._find_task(task_id)
        if task is None or task.status in ("done", "failed"):
            return False
        await self._store.write(SetStatus(space=self._space, task=task_id, status="failed"))
        return True

    async def delete(self, task_id: str) -> bool:
        """Delete a task with its checkpoints and journal, and fence out its worker; False if there is none."""
        if await self._find_task(task_id) is None:
            return False
        await self._store.write(DropTask(self._space, task_id))
        return True

    def _build_emitter(self) -> EventEmitter:
        return EventEmitter(self.on_event, self.clock)

    def _build_encoder(self) -> StateEncoder:
        return StateEncoder(self.settings.max_state, self._author)

    async def _load_task(self, task_id: str, emitter: EventEmitter) -> LoadedTask:
        """Load a task, also an expired one, so that its completed steps do not run again."""
        task = await self._find_task(task_id)
        if task is None:
            return LoadedTask(None, None, {})
        document = await self._load_newest(task_id, emitter, hidden=True)
        journal = await self._store.steps(self._space, task_id, hidden=True)
        return LoadedTask(task, document, {entry.key: entry for entry in journal})

    async def _load_newest(
        self, task_id: str, emitter: EventEmitter, *, hidden: bool = False
    ) -> CheckpointDocument | None:
        """Return the newest intact checkpoint; raise `StoreCorrupt` if all stored versions are damaged."""
        newest = await self._store.checkpoint(self._space, check_task_id(task_id), hidden=hidden)
        if newest is None:
            return None
        document = _decode_checkpoint(newest)
        if document is not None:
            return document
        for older in await self._store.checkpoints(self._space, task_id, hidden=hidden):
            document = _decode_checkpoint(older)
            if document is not None:
                detail = f"version {newest.version} is damaged; {older.version} is used instead"
                await emitter.emit("corrupt", task_id, detail=detail)
                return document
        await emitter.emit("corrupt", task_id, detail="all stored versions are damaged")
        raise StoreCorrupt(
            f"all stored versions of task {task_id!r} are damaged; restore a backup, or `delete` the task"
        )

    async def _find_task(self, task_id: str) -> Task | None:
        return await self._store.task(self._space, check_task_id(task_id), hidden=True)

    @asynccontextmanager
    async def _lease(self, task_id: str) -> AsyncIterator[Lease]:
        request = LeaseRequest(self._space, task_id, self._make_worker_name(), _OPERATOR_LEASE_TTL)
        lease = await claim_lease(self._store, request)
        try:
            yield lease
        finally:
            await self._store.release(lease)


def check_task_id(task_id: Any) -> str:
    return check_text("task_id", task_id, max_length=_MAX_ID_CHARS)


def parse_ttl(seconds: float) -> timedelta:
    """Return a time to live in seconds as a timedelta; infinity becomes 100 years."""
    if seconds == math.inf:
        return _NEVER
    return timedelta(seconds=check_seconds("ttl", seconds, maximum=_NEVER.total_seconds()))


def _check_integer(name: str, value: Any) -> int:
    return check_count(name, value, maximum=_MAX_VERSION)


def _decode_checkpoint(checkpoint: Checkpoint) -> CheckpointDocument | None:
    """Return the document, or None if it is damaged; a newer format raises `SchemaTooNew`."""
    if not checkpoint.intact:
        return None
    try:
        return decode_document(checkpoint.schema, checkpoint.state)
    except StoreCorrupt:
        return None


def build_save(lease: Lease, state: EncodedState, version: int, **fields: Any) -> Save:
    """Return the write of a state after `version`, under the fence of the lease."""
    return Save(
        space=lease.space,
        task=lease.task,
        state=state.text,
        sha256=state.sha256,
        schema=SCHEMA,
        expect=version,
        fence=lease.fence,
        **fields,
    )


def build_journal_entry(
    lease: Lease, step: str, status: StepStatus, attempts: int, idempotency_key: str, **fields: Any
) -> Journal:
    return Journal(
        space=lease.space,
        task=lease.task,
        step=step,
        status=status,
        fence=lease.fence,
        attempts=attempts,
        idempotency_key=idempotency_key,
        **fields,
    )


def _find_open_steps(loaded: LoadedTask) -> list[Step]:
    """Return the begun steps that the state does not list as completed; a journal may outlive a damaged checkpoint."""
    entries = loaded.journal.values()
    done = {*loaded.state.get("completed", [])}
    done |= {entry.key for entry in entries if entry.status == "completed" and entry.key.startswith(UNDO_PREFIX)}
    return [entry for entry in entries if entry.key not in done and entry.status != "compensated"]
