"""The store protocols: what each backend promises, method by method, and a contract test says the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from recollect.stores.evidence import Ask, Brief, Evidence, Found, Lookup, Matches
from recollect.stores.ops import Append, Entry, Model, Put, Save, TaskStatus, Touch, Write
from recollect.stores.tails import Reach, Tail
from recollect.stores.task import Checkpoint as Checkpoint
from recollect.stores.task import Lease as Lease
from recollect.stores.task import Step as Step
from recollect.stores.task import Task as Task
from recollect.stores.where import Where
from recollect.values import MemoryItem, Space

Vector = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SpaceCount:
    """How much one space holds."""

    space: Space
    items: int
    newest: datetime | None


class Store(Protocol):
    """What every backend can do, whatever it keeps."""

    async def write(self, *writes: Write) -> None:
        """Apply all of the writes in one transaction, or none and raise why.

        Returns when the batch has reached its durability class: the strongest that any of its writes asks for.
        A store that is spread over several servers may refuse (`Unsupported`) a batch of more than one owner, which
        is a tenant with a user and an agent; within one every store takes it.
        """

    async def close(self) -> None:
        """Finish what was begun and let go; safe to call twice."""

    async def check(self) -> list[str]:
        """What is wrong with the stored data, a sentence each; empty when it is sound."""

    async def backup(self, path: str) -> None:
        """A consistent copy as a new file at `path`, made while others read and write."""

    async def tenants(self) -> list[str]:
        """Everybody of whom the store holds something, whatever it is and hidden or not, by name."""


@runtime_checkable
class Records(Store, Protocol):
    """Items that are kept by id, and found by key, by filter, by meaning and by words, each within one space."""

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        """The items that exist, in the order asked for."""

    async def whole(self, space: Space, *ids: str) -> list[Put]:
        """The items that exist, in the order asked for, as writes that make them anew in another store.

        Each with its terms, and with its vectors and their model if it has any: to the bit as they are kept here.
        """

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        """Items newest first (by `created_at`, then id); `after` is the last item of the page before."""

    async def nearest(self, where: Where, vector: Vector, *, limit: int = 10) -> list[Found]:
        """The items with the highest cosine (the best of their passages), exact, best first, ties by id.

        A store may use an index for a space of more than 20 000 items, if it finds 99 % of the first ten.
        """

    async def matching(self, where: Where, terms: Sequence[str], *, limit: int = 10) -> Matches:
        """The items with the highest BM25 over distinct analysed terms, with the statistics of this space alone."""

    async def around(self, where: Where, places: Sequence[tuple[str, float]], *, reach: int = 1) -> list[Brief]:
        """Turns up to `reach` places before or after the given (session, position) places, those included."""

    async def gather(self, ask: Ask, judge: Callable[[Evidence, Lookup], T]) -> T:
        """What `judge` makes of what `nearest` and `matching` find, with the turns around it, all at one moment.

        Every candidate has its exact cosine and what every term says for it, however it came to be one. The judge
        is a pure function: it may be called in another thread, so that ranking never holds up the event loop.
        `EmbeddingModelMismatch` when the vectors are of another model than the asked vector's.
        """

    def touch(self, touch: Touch) -> None:
        """Count an access, without waiting for it: whoever asks this store later sees it.

        It is in nobody's way: it may be written a moment later with others, and where it cannot be, on a full disk
        say, or when the process is killed before, it is given up.
        """

    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        """The turns with the highest positions of a session, highest first."""

    async def paths(self, space: Space) -> frozenset[str]:
        """The metadata paths (`a`, `a.b`) that items of this space have ever carried: what may be filtered by."""

    async def speakers(self, space: Space) -> frozenset[str]:
        """Everybody of whom this space still holds something that they said."""

    async def size(self) -> int:
        """How many bytes the store takes up."""

    async def spaces(self, tenant: str | None = None) -> list[SpaceCount]:
        """Every space that holds items, for statistics and for those who look after the store."""

    async def model(self) -> Model | None:
        """The model that the vectors were made with; None before the first vector."""

    async def adopt(self, model: Model) -> None:
        """Bind an empty store to a model; `EmbeddingModelMismatch` when it is bound to another."""

    async def unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        """Items that have no vectors yet under a model that is being prepared."""

    async def switch(self, model: Model) -> None:
        """Make a prepared model the one that answers; `Conflict` while an item still lacks its vectors."""


@runtime_checkable
class Log(Store, Protocol):
    """Entries in the order they came, one sequence for each space. Expired ones are hidden at once."""

    async def append(self, *appends: Append) -> list[Entry | None]:
        """What `write` does, and what `entries` says of each afterwards: the entry that was there before, if one was.

        None for one that nobody can see: newer ones of the same batch have taken its place, or it has expired.
        """

    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        """The entries that exist, in the order asked for, each once."""

    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        """The newest entries, newest last."""

    async def tails(self, space: Space, reach: Reach) -> list[Tail]:
        """What `recent` says of a log and of the newest other ones of its owner, all at one moment.

        The log itself comes first, also when it holds nothing; then the others as `logs` lists them, newest last.
        """

    async def read(self, space: Space, *, after: int = 0, limit: int = 1000, hidden: bool = False) -> list[Entry]:
        """Entries with a `seq` above `after`, oldest first; with `hidden`, also expired ones that are still there."""

    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        """The spaces of the same tenant, tier, user and agent that hold entries, whatever their session.

        By the time of their last entry, newest last. With `hidden`, also those that hold nothing but expired ones.
        """

    async def counted(self, tenant: str | None = None) -> dict[Space, int]:
        """The last `seq` that each log has given, of a tenant or of all, also where nothing is left in the log.

        Where items are kept under the name of a log, as of what was said in no session, it may be more than that.
        """

    async def owners(self, tenant: str) -> list[Space]:
        """Whose logs a tenant holds, hidden entries included: a space of each tier, user and agent, without session."""


@runtime_checkable
class Tasks(Store, Protocol):
    """Checkpoints by version, leases with fences, and a journal of steps.

    A task that has expired is hidden from those who read, unless they ask for what is `hidden`, and from nobody who
    writes: a claim, a save or a renewal goes on with it, and it is seen again. What expired is dropped by `DropTask`
    alone, since a clock that merely runs fast must not cost anybody their work.
    """

    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        """Take the lease, creating the task if need be; the fence grows. `LeaseHeld` while another's lease lives.

        A lease whose `renewed_at` lies in the future counts as expired: a clock that ran ahead must not block a task.
        """

    async def save(self, save: Save) -> int:
        """What `write` does, and the version that the state has been given: each has one of its own."""

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        """Extend the lease; `FencedOut` when somebody else has taken it."""

    async def release(self, lease: Lease) -> None:
        """Give the lease back; nothing happens when it is no longer held."""

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        """The task, unless it does not exist or has expired."""

    async def tasks(
        self, space: Space, *, status: TaskStatus | None = None, limit: int = 100, after: str | None = None
    ) -> list[Task]:
        """Tasks by id, those after `after`; none that have expired."""

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        """Hidden tasks whose time was up at `before`, in that order, then by id; those after `after`.

        None that somebody holds. `DropTask` with `expired_by` looks again when it drops one.
        """

    async def task_spaces(self, tenant: str) -> list[Space]:
        """The spaces of a tenant that hold tasks, expired ones included."""

    async def checkpoint(
        self, space: Space, task: str, *, version: int | None = None, hidden: bool = False
    ) -> Checkpoint | None:
        """A version of the state, or the newest; None when there is none. Never raises for damage: see `intact`."""

    async def checkpoints(self, space: Space, task: str, *, hidden: bool = False) -> list[Checkpoint]:
        """The versions still kept, newest first."""

    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        """The journal: each step's newest note, in the order the steps were first noted."""
