"""Write operations as values, and the tasks, checkpoints and entries they write. A batch is one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from recollect.stores.codec import decode_int, decode_text
from recollect.types import EMPTY_MAPPING, MemoryItem, Space

TaskStatus = Literal["ready", "running", "done", "failed", "poisoned", "compensating"]
StepStatus = Literal["started", "completed", "failed", "poisoned", "compensated"]
TASK_STATUSES: tuple[TaskStatus, ...] = get_args(TaskStatus)
STEP_STATUSES: tuple[StepStatus, ...] = get_args(StepStatus)


@dataclass(frozen=True, slots=True)
class Task:
    """Row of a long-running task."""

    id: str
    created_at: datetime
    updated_at: datetime
    status: TaskStatus = "ready"
    version: int = 0
    fence: int = 0
    owner: str | None = None
    renewed_at: datetime | None = None
    lease_ttl: timedelta | None = None
    plan_hash: str | None = None
    ttl: timedelta | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Right to work on a task until `expires_at`; `fence` grows with every claim."""

    space: Space
    task: str
    owner: str
    fence: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a task at a version. `intact` is False if the stored sha256 does not match the state."""

    version: int
    fence: int
    schema: int
    state: str
    at: datetime
    intact: bool


@dataclass(frozen=True, slots=True)
class Step:
    """Newest journal note of a step of a task."""

    key: str
    status: StepStatus
    attempts: int
    fence: int
    idempotency_key: str
    input_sha: str | None
    result: str | None
    error: str | None
    at: datetime


Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Model:
    """Embedding model that made the vectors of a store."""

    name: str
    dim: int
    fingerprint: str

    @classmethod
    def decode(cls, name: Any, dim: Any, fingerprint: Any) -> Model:
        """Return the model from stored values; raise one of `DECODE_ERRORS` if they have the wrong type."""
        return cls(decode_text("name", name), decode_int("dim", dim), decode_text("fingerprint", fingerprint))


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Insert or replace an item by space and id. A replaced item keeps its access count.

    `vectors` has a row for each passage, `terms` the analyzed terms; None keeps the stored ones. `expect` is the
    version read before (0: the item must be new); another stored version raises `Conflict`.
    """

    item: MemoryItem
    vectors: Vectors | None = None
    terms: tuple[str, ...] | None = None
    model: Model | None = None
    expect: int | None = None

    @property
    def space(self) -> Space:
        return self.item.scope.space(self.item.tier)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an item with its terms and vectors; a missing item is not an error.

    With `expect`, another stored version or a missing item raises `Conflict`.
    """

    space: Space
    id: str
    expect: int | None = None


@dataclass(frozen=True, slots=True)
class Touch:
    """Count an access to items without a change of their version."""

    space: Space
    ids: tuple[str, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class Embed:
    """Store the vectors of an item for the model in preparation.

    `expect` is the version that was embedded. An item that has changed since is skipped, to be embedded again.
    """

    space: Space
    id: str
    vectors: Vectors
    model: Model
    expect: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Log entry. The store assigns `seq`, which grows within the space."""

    id: str
    kind: str
    content: str
    at: datetime
    metadata: Mapping[str, Any] = field(default_factory=lambda: EMPTY_MAPPING)
    importance: float = 0.5
    expires_at: datetime | None = None
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append an entry to a log; an id that exists is not appended again.

    `expect_last` is the last `seq` that the log has assigned (0: none); another one raises `Conflict`. Only the first
    write of a batch to a log may have it. It is not checked if the log stores the id, also if that entry has expired,
    so that a caller can retry after an unknown outcome.
    `cap` keeps that many of the newest entries. `seq` is a lower bound for the assigned one: migration passes the
    sequence of the source.
    """

    space: Space
    entry: Entry
    expect_last: int | None = None
    cap: int | None = None
    durable: bool = False
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete all entries of a log."""

    space: Space


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete entries of a log by `seq`; missing ones are not an error, and the others keep their `seq`."""

    space: Space
    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Write the state of a task as its next version.

    `state` is JSON text; its sha256 is computed unless it is given in hex. A stale version (`expect`) raises
    `Conflict`, and a stale fence `FencedOut`; both reject the whole batch. Without a fence, the write raises
    `LeaseHeld` while the task has a valid lease. `keep` is the number of versions to keep; None keeps all.
    """

    space: Space
    task: str
    state: str
    sha256: str | None = None
    schema: int = 1
    expect: int | None = None
    fence: int | None = None
    ttl: timedelta | None = None
    status: TaskStatus | None = None
    keep: int | None = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Write the journal note of a step; it replaces the earlier note of the step."""

    space: Space
    task: str
    step: str
    status: StepStatus
    fence: int
    attempts: int
    idempotency_key: str
    input_sha: str | None = None
    result: str | None = None
    error: str | None = None

    def build_step(self, at: datetime) -> Step:
        """Return the note as it is read back."""
        return Step(
            self.step, self.status, self.attempts, self.fence, self.idempotency_key, self.input_sha, self.result,
            self.error, at,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStatus:
    """Change the status of a task; with a fence, only for the owner of the lease."""

    space: Space
    task: str
    status: TaskStatus
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class DropTask:
    """Delete a task with its checkpoints and journal.

    With `expired_by`, a task that is missing, leased, or was not expired at that time raises `Conflict`.
    """

    space: Space
    task: str
    expired_by: datetime | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """Write a task from another store with its versions and journal, but without its lease.

    A task with that id raises `Conflict`. Later fences of this store are higher than all fences of the task.
    """

    space: Space
    known: Task
    checkpoints: tuple[Checkpoint, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def task(self) -> str:
        return self.known.id

    @property
    def highest_fence(self) -> int:
        fences = [checkpoint.fence for checkpoint in self.checkpoints] + [step.fence for step in self.steps]
        return max(0, self.known.fence, *fences)


Write = Put | Delete | Touch | Embed | Append | Clear | Drop | Save | Journal | SetStatus | DropTask | Restore

RecordWrite = Put | Delete | Touch | Embed
LogWrite = Append | Clear | Drop
TaskWrite = Save | Journal | SetStatus | DropTask | Restore
_Deferrable = Touch | Embed | Clear | Drop
_Removal = Delete | Clear | Drop | DropTask


def is_durable(write: Write) -> bool:
    """Return whether an acknowledged write survives a power failure."""
    return write.durable if isinstance(write, Append) else not isinstance(write, _Deferrable)


def is_removal(write: Write) -> bool:
    """Return whether the write only deletes; stores accept such writes even on a full disk."""
    return isinstance(write, _Removal)
