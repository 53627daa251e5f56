"""Store protocols: the contract that every backend implements and `recollect.testing` checks.

A backend inherits the protocols that it supports and implements their abstract methods. The other methods have default
implementations that combine these; a backend overrides one only if its engine does it better.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeVar, overload, runtime_checkable

from recollect.errors import Conflict, Unsupported
from recollect.stores.filters import Where
from recollect.stores.health import IntegrityReport, ProgressCallback, RepairTarget, StoreStats, ignore_progress
from recollect.stores.search import EvidenceLookup, EvidenceQuery, SearchEvidence
from recollect.stores.validation import ALL_VERSIONS, validate_limit
from recollect.stores.writes import Append, Entry, Model, Put, Save, TaskStatus, Touch, Vectors, Write
from recollect.stores.writes import Checkpoint as Checkpoint
from recollect.stores.writes import Lease as Lease
from recollect.stores.writes import Step as Step
from recollect.stores.writes import Task as Task
from recollect.types import MemoryItem, Space


@dataclass(frozen=True, slots=True)
class TailLimits:
    """Limits of `read_tails`: entries of the log, other logs of its owner, and entries of each of those."""

    own_entries: int
    other_logs: int
    entries_per_log: int

    def validate(self) -> TailLimits:
        return TailLimits(*map(validate_limit, (self.own_entries, self.other_logs, self.entries_per_log)))


class LogTail(Sequence[Entry]):
    """The newest entries of one log, newest last.

    Entries are built on access: recall rejects most of them by their text, and building one costs more than reading it.
    """

    __slots__ = ("_build", "_entries", "kinds", "space", "texts")

    def __init__(self, space: Space, texts: Iterable[str], kinds: Iterable[str], build: Callable[[int], Entry]) -> None:
        self.space = space
        self.texts = tuple(texts)
        self.kinds = tuple(kinds)
        self._build = build
        self._entries: dict[int, Entry] = {}

    @classmethod
    def from_entries(cls, space: Space, entries: Sequence[Entry]) -> LogTail:
        """Return a tail of existing entries."""
        return cls(space, [entry.content for entry in entries], [entry.kind for entry in entries], entries.__getitem__)

    def select(self, indexes: Iterable[int]) -> LogTail:
        """Return a tail of the entries at `indexes`."""
        chosen = list(indexes)
        if len(chosen) == len(self):
            return self
        texts, kinds = [self.texts[index] for index in chosen], [self.kinds[index] for index in chosen]
        return LogTail(self.space, texts, kinds, lambda index: self[chosen[index]])

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            return [self[number] for number in chosen]
        if chosen not in self._entries:
            self._entries[chosen] = self._build(chosen)
        return self._entries[chosen]


Vector = Vectors
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SpaceTrace:
    """Everything that a store has of a space, expired rows included. An empty space may still have a trace."""

    space: Space
    items: int = 0
    newest: datetime | None = None
    """Creation time of the newest item."""
    has_entries: bool = False
    last_seq: int | None = None
    """Last `seq` that the log has assigned; None if the space has never held a log."""
    has_tasks: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Guarantees that not every backend has. A store without the attribute `capabilities` has all of them."""

    exact_search: bool = True
    """The best items by vector are exact, and so are the statistics of terms."""
    atomic_batches: bool = True
    """A crash leaves all writes of a batch or none. An error before the first write leaves none in any case."""
    compare_and_set: bool = True
    """`expect` detects the writes of clients at the same moment; otherwise only earlier ones."""
    durable: bool = True
    """An acknowledged durable write survives power loss."""
    erasure: Literal["proved", "delete"] = "proved"
    """The store can prove that the bytes of deleted data are gone; otherwise an erasure stays pending."""


def get_capabilities(store: object) -> Capabilities:
    capabilities: Capabilities = getattr(store, "capabilities", Capabilities())
    return capabilities


class Store(Protocol):
    """Methods that every backend has."""

    @abstractmethod
    async def write(self, *writes: Write) -> None:
        """Apply all writes in one transaction, or apply none and raise the reason.

        Returns when the batch has reached the strongest durability that one of its writes asks for. A store on several
        servers may raise `Unsupported` for a batch of more than one owner (tenant, user and agent).
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish pending work and release files and connections; safe to call twice."""

    @abstractmethod
    async def trace_spaces(self, tenant: str | None = None) -> list[SpaceTrace]:
        """Return every space that the store has a trace of, also empty ones, in the order of their names."""

    @abstractmethod
    async def read_stats(self) -> StoreStats:
        """Return statistics that are cheap to read."""

    @abstractmethod
    async def check_integrity(self, tell: ProgressCallback = ignore_progress) -> IntegrityReport:
        """Scan the whole store and return its problems."""

    async def backup(self, path: str) -> None:
        """Write a consistent copy to the new file `path` while readers and writers go on."""
        raise Unsupported(f"{type(self).__name__} cannot be copied to {path}; use the tools of its engine, or export")

    async def repair(self, what: RepairTarget) -> None:
        """Repair one part without loss; raise `Unsupported` if the backend does not have it."""
        raise Unsupported(f"{type(self).__name__} has no {what} to repair; its engine maintains its indexes itself")

    async def check(self) -> list[str]:
        """Return the problems of the stored data, one sentence each; empty if there are none."""
        return (await self.check_integrity()).problems

    async def tenants(self) -> list[str]:
        """Return the names of all tenants with stored data, including expired rows, sorted."""
        traces = await self.trace_spaces()
        return sorted({trace.space.tenant for trace in traces if trace.items or trace.has_entries or trace.has_tasks})


@runtime_checkable
class Records(Store, Protocol):
    """Items within a space, found by id, key, filter, vector and terms."""

    @abstractmethod
    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        """Return the items that exist, in the order of `ids`."""

    @abstractmethod
    async def get_full(self, space: Space, *ids: str) -> list[Put]:
        """Return the items that exist as writes for another store: with their terms, exact vectors and model."""

    @abstractmethod
    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        """Return items newest first by `created_at`, then by id; `after` is the last item of the previous page."""

    @abstractmethod
    async def gather(self, ask: EvidenceQuery, judge: Callable[[SearchEvidence, EvidenceLookup], T]) -> T:
        """Return the result of `judge` on the best items by vector and by terms, with their neighboring turns.

        The best items by vector have the highest cosine of their best passage, ties by id. They are exact up to 20,000
        items in a space; beyond that, an index must find 99 % of the first ten. The best items by terms have the
        highest BM25 over the distinct terms, with the statistics of this space alone. All evidence is from one moment:
        every candidate has its exact cosine and the BM25 part of each term. `judge` is a pure function and may run in
        another thread. Raises `EmbeddingModelMismatch` if the vectors were made with another model than that of `ask`.
        """

    @abstractmethod
    def touch(self, touch: Touch) -> None:
        """Count an access without waiting. Later calls on this store see it.

        The write may be delayed and batched. It is lost if the disk is full or the process is killed first.
        """

    @abstractmethod
    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        """Return the turns with the highest positions of a session, highest first."""

    @abstractmethod
    async def paths(self, space: Space) -> frozenset[str]:
        """Return the metadata paths (`a`, `a.b`) that items of this space have ever had; filters may use them."""

    @abstractmethod
    async def model(self) -> Model | None:
        """Return the model that made the vectors; None before the first vector."""

    @abstractmethod
    async def bind_model(self, model: Model) -> None:
        """Bind an empty store to a model; raise `EmbeddingModelMismatch` if it is bound to another."""

    @abstractmethod
    async def find_unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        """Return items without vectors of `model`, which becomes the model in preparation."""

    @abstractmethod
    async def activate_model(self, model: Model) -> None:
        """Replace the active model by the prepared one; raise `Conflict` if an item has no vectors of it yet."""

    async def spaces(self, tenant: str | None = None) -> list[SpaceTrace]:
        """Return every space that holds items, with its count."""
        return [trace for trace in await self.trace_spaces(tenant) if trace.items]

    async def size(self) -> int:
        """Return the size of the store in bytes."""
        return (await self.read_stats()).bytes


@runtime_checkable
class Log(Store, Protocol):
    """Append-only entries with one sequence for each space. Expired entries are hidden immediately."""

    @abstractmethod
    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        """Return the entries that exist, in the order of `ids`, without duplicates."""

    @abstractmethod
    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        """Return the newest entries, newest last."""

    @abstractmethod
    async def read(
        self,
        space: Space,
        *,
        after: int = 0,
        limit: int = 1000,
        since: datetime | None = None,
        until: datetime | None = None,
        hidden: bool = False,
    ) -> list[Entry]:
        """Return entries with a `seq` above `after`, in that order; with `hidden`, also expired ones still stored.

        `since` is inclusive and `until` exclusive. They are compared with the time of each entry (`at`), which may be
        in another order than `seq`.
        """

    @abstractmethod
    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        """Return the logs of the same tenant, tier, user and agent, by the time of the last entry, newest last.

        With `hidden`, logs that hold only expired entries are included.
        """

    async def append(self, *appends: Append) -> list[Entry | None]:
        """Write entries and return each as stored; an entry with the same id that existed before is returned.

        None stands for an entry that has expired, or that the cap removed within the same batch.
        """
        await self.write(*appends)
        return await read_appended(self, appends)

    async def read_tails(self, space: Space, reach: TailLimits) -> list[LogTail]:
        """Return the tail of a log and of the newest other logs of its owner.

        The log itself is first, also if it is empty. The others follow in the order of `logs`, newest last. Engines
        that can read all tails at one moment do.
        """
        limits = reach.validate()
        others = [log for log in await self.logs(space) if log != space]
        tails = [LogTail.from_entries(space, await self.recent(space, limit=limits.own_entries))]
        for log in others[max(len(others) - limits.other_logs, 0) :]:
            tails.append(LogTail.from_entries(log, await self.recent(log, limit=limits.entries_per_log)))
        return tails

    async def last_seqs(self, tenant: str | None = None) -> dict[Space, int]:
        """Return the last `seq` that each log has assigned, also for empty logs; for one tenant or for all.

        `Append.expect_last` is compared with this number. It may be higher if items are stored under the name of the
        log.
        """
        traces = await self.trace_spaces(tenant)
        return {trace.space: trace.last_seq for trace in traces if trace.last_seq is not None}

    async def owners(self, tenant: str) -> list[Space]:
        """Return a space without session for each tier, user and agent with entries, expired ones included."""
        owners = {replace(trace.space, session="") for trace in await self.trace_spaces(tenant) if trace.has_entries}
        return sorted(owners, key=get_space_names)


@runtime_checkable
class Tasks(Store, Protocol):
    """Checkpoints by version, leases with fences, and a journal of steps.

    An expired task is hidden from readers unless they pass `hidden`. Writers still find it: a claim, a save or a
    renewal makes it visible again. Only `DropTask` deletes it, so that a fast clock does not destroy work.
    """

    @abstractmethod
    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        """Take the lease with a higher fence and create the task if it is missing.

        Raises `LeaseHeld` while the lease of another owner is valid. A lease with `renewed_at` in the future counts as
        expired, so that a clock that ran ahead does not block a task.
        """

    @abstractmethod
    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        """Extend the lease; raise `FencedOut` if another owner has taken it."""

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Release the lease; do nothing if it is no longer held."""

    @abstractmethod
    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        """Return the task; None if it does not exist or has expired."""

    @abstractmethod
    async def tasks(
        self,
        space: Space,
        *,
        status: TaskStatus | None = None,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> list[Task]:
        """Return the tasks that have not expired, whose id starts with `prefix` and is above `after`, by id."""

    @abstractmethod
    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        """Return tasks without a lease that expired by `before`, ordered by expiry, then by id.

        `after` is the last task of the previous page. `DropTask` with `expired_by` checks the expiry again.
        """

    @abstractmethod
    async def checkpoints(
        self, space: Space, task: str, *, version: int | None = None, limit: int = ALL_VERSIONS, hidden: bool = False
    ) -> list[Checkpoint]:
        """Return the stored versions, newest first, or one of them. Damage shows as `intact=False`."""

    @abstractmethod
    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        """Return the newest note of each step, in the order in which the steps were first noted."""

    async def save(self, save: Save) -> int:
        """Write a state and return the version it was given."""
        if save.expect is not None:
            await self.write(save)
            return save.expect + 1
        while True:
            task = await self.task(save.space, save.task, hidden=True)
            try:
                return await self.save(replace(save, expect=0 if task is None else task.version))
            except Conflict as error:
                if type(error) is not Conflict:
                    raise

    async def checkpoint(
        self, space: Space, task: str, *, version: int | None = None, hidden: bool = False
    ) -> Checkpoint | None:
        """Return a version of the state, or the newest; None if there is none. Damage shows as `intact=False`."""
        found = await self.checkpoints(space, task, version=version, limit=1, hidden=hidden)
        return found[0] if found else None

    async def task_spaces(self, tenant: str) -> list[Space]:
        """Return the spaces of a tenant that hold tasks, expired ones included."""
        return [trace.space for trace in await self.trace_spaces(tenant) if trace.has_tasks]


def get_space_names(space: Space) -> tuple[str, ...]:
    """Return the sort key of a space."""
    return space.tenant, space.tier, space.user, space.agent, space.session


async def read_appended(log: Log, appends: Sequence[Append]) -> list[Entry | None]:
    """Return the stored entry of each append, or None."""
    ids = group_ids(appends)
    found = {(space, entry.id): entry for space in ids for entry in await log.entries(space, *ids[space])}
    return [found.get((append.space, append.entry.id)) for append in appends]


def group_ids(appends: Sequence[Append]) -> dict[Space, list[str]]:
    """Return the ids of the entries of each log."""
    ids: dict[Space, list[str]] = {}
    for append in appends:
        ids.setdefault(append.space, []).append(append.entry.id)
    return ids


def count_cancellations() -> int:
    """Return the number of cancellation requests of the current task.

    A driver may wait for the server after a cancellation, and then raise a connection error or return an answer.
    Compare the count before and after the call to detect that.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
