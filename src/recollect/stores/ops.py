"""Writes as values: a batch of these lands in a store whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.stores.damage import text, whole
from recollect.stores.task import Checkpoint, Step, Task
from recollect.stores.task import StepStatus as StepStatus
from recollect.stores.task import TaskStatus as TaskStatus
from recollect.values import NOTHING, MemoryItem, Space

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Model:
    """The embedding model a store's vectors were made with."""

    name: str
    dim: int
    fingerprint: str

    @classmethod
    def as_read(cls, name: Any, dim: Any, fingerprint: Any) -> Model:
        """As a store has kept it; `MISREAD` where that is of another shape."""
        return cls(text("name", name), whole("dim", dim), text("fingerprint", fingerprint))


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Keep an item. One that is there already (same space and id) is replaced, and its accesses stay as counted.

    `vectors` has a row for each passage and `terms` the analysed words; None keeps what is stored.
    `expect` is the version seen (0: must be new); another version is a `Conflict`.
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
    """Drop an item with its words and vectors; one that is not there is no error.

    `expect` is the version seen; another version, or none, is a `Conflict`.
    """

    space: Space
    id: str
    expect: int | None = None


@dataclass(frozen=True, slots=True)
class Touch:
    """Count an access to some items; does not change their version."""

    space: Space
    ids: tuple[str, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class Embed:
    """Give an item its vectors under a model that is being prepared.

    `expect` is the version that was embedded: an item that has changed since is passed over, to be embedded again.
    """

    space: Space
    id: str
    vectors: Vectors
    model: Model
    expect: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a log. Its `seq` is given by the store and grows within its space."""

    id: str
    kind: str
    content: str
    at: datetime
    metadata: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    importance: float = 0.5
    expires_at: datetime | None = None
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Add an entry at the end of a log; the same id twice is one entry. `cap` keeps only the newest so many.

    `seq` is the least that its place may be: what comes from another store, in its order, keeps its places.
    """

    space: Space
    entry: Entry
    cap: int | None = None
    durable: bool = False
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Clear:
    """Empty a log."""

    space: Space


@dataclass(frozen=True, slots=True)
class Drop:
    """Take entries out of a log by their `seq`; what is not there is no error. The others keep their places."""

    space: Space
    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Keep a task's state as its next version. `state` is JSON text; its sha256 is stored beside it.

    `sha256` is that in hex, of whoever knows it already.

    `expect` is the version seen, `fence` the lease's; either being stale refuses the whole batch.
    Without a fence the write is refused while somebody holds the lease.
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
    keep: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Note what a step of a task is doing or did; the newest note of a step replaces the one before."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStatus:
    """Change a task's status; with a fence, only for the lease's holder."""

    space: Space
    task: str
    status: TaskStatus
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class DropTask:
    """Drop a task with its checkpoints and journal.

    With `expired_by` only one whose time was up at that moment and that nobody holds; any other, or none, is a
    `Conflict`.
    """

    space: Space
    task: str
    expired_by: datetime | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """Keep a task as another store knew it: its row, versions and journal, and nobody's lease.

    `Conflict` when there is a task of that id. Fences given here later are higher than all that come with it.
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
        kept = [one.fence for one in self.checkpoints] + [step.fence for step in self.steps]
        return max(self.known.fence, *kept, 0)


Write = Put | Delete | Touch | Embed | Append | Clear | Drop | Save | Journal | SetStatus | DropTask | Restore

RecordWrite = Put | Delete | Touch | Embed
LogWrite = Append | Clear | Drop
TaskWrite = Save | Journal | SetStatus | DropTask | Restore
_REMOVING = Delete | Clear | Drop | DropTask


def is_durable(write: Write) -> bool:
    """Whether the write is promised to survive a power cut once acknowledged."""
    match write:
        case Touch() | Embed() | Clear() | Drop():
            return False
        case Append():
            return write.durable
        case _:
            return True


def only_removes(write: Write) -> bool:
    """Whether the write takes away and adds nothing: it is made possible even on a full disk."""
    return isinstance(write, _REMOVING)
