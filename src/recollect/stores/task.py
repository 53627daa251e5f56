"""A task as stores know it: its row, its lease, the versions of its state and the journal of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from recollect.values import Space

TaskStatus = Literal["ready", "running", "done", "failed", "poisoned", "compensating"]
StepStatus = Literal["started", "completed", "failed", "poisoned", "compensated"]
TASK_STATUSES: tuple[TaskStatus, ...] = get_args(TaskStatus)
STEP_STATUSES: tuple[StepStatus, ...] = get_args(StepStatus)


@dataclass(frozen=True, slots=True)
class Task:
    """A long-running piece of work, as the store knows it."""

    id: str
    status: TaskStatus
    version: int
    fence: int
    owner: str | None
    renewed_at: datetime | None
    lease_ttl: timedelta | None
    plan_hash: str | None
    ttl: timedelta | None
    expires_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a task until `expires_at`; `fence` grows with every holder."""

    space: Space
    task: str
    owner: str
    fence: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A task's state at a version. `intact` is False when the stored sha256 does not fit the state."""

    version: int
    fence: int
    schema: int
    state: str
    at: datetime
    intact: bool


@dataclass(frozen=True, slots=True)
class Step:
    """The newest note about one step of a task."""

    key: str
    status: StepStatus
    attempts: int
    fence: int
    idempotency_key: str
    input_sha: str | None
    result: str | None
    error: str | None
    at: datetime
