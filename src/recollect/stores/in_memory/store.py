"""The reference store: what every other backend has to agree with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from recollect.clock import Clock, aware, system_clock
from recollect.errors import StoreClosed, Unsupported
from recollect.stores.admission import admitted, check_claim, check_ttl, count_of
from recollect.stores.base import Checkpoint, Lease, SpaceCount, Step, Task, Vector
from recollect.stores.erasing import Doomed, Erasure
from recollect.stores.evidence import Ask, Brief, Evidence, Found, Lookup, Matches
from recollect.stores.health import Repair, Soundness, Tell, Vitals, quiet
from recollect.stores.in_memory.erasing import Erasures
from recollect.stores.in_memory.log import Entries
from recollect.stores.in_memory.records import Items
from recollect.stores.in_memory.tasks import TaskTable
from recollect.stores.in_memory.undo import Undo
from recollect.stores.leases import Claim
from recollect.stores.ops import (
    Append,
    Clear,
    Delete,
    Drop,
    DropTask,
    Embed,
    Entry,
    Journal,
    Model,
    Put,
    Restore,
    Save,
    SetStatus,
    TaskStatus,
    Touch,
    Write,
)
from recollect.stores.receipts import ErasureReceipt, Scan
from recollect.stores.tails import Reach, Tail
from recollect.stores.vectors import normalised
from recollect.stores.where import Where
from recollect.values import MemoryItem, Space

T = TypeVar("T")


class InMemoryStore:
    """Records, Log and Tasks in plain dictionaries. Nothing here waits, so every call is atomic in its loop."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._closed = False
        self._held_items = Items()
        self._held_entries = Entries()
        self._held_tasks = TaskTable()
        self._held_erasures = Erasures()

    async def write(self, *writes: Write) -> None:
        checked = [admitted(write) for write in writes]
        now = self._now()
        with self._batch() as undo:
            self._apply(checked, now, undo)

    def _apply(self, writes: Sequence[Write], now: datetime, undo: Undo) -> None:
        for write in writes:
            match write:
                case Put() | Delete() | Touch() | Embed():
                    self._items.apply(write, undo)
                case Append() | Clear() | Drop():
                    self._entries.apply(write, now, undo)
                case Save() | Journal() | SetStatus() | DropTask() | Restore():
                    self._tasks.apply(write, now, undo)

    async def close(self) -> None:
        self._closed = True

    async def check(self) -> list[str]:
        return (await self.soundness()).sentences

    async def vitals(self) -> Vitals:
        items = sum(count.items for count in await self.spaces())
        return Vitals(engine="memory", survives="nothing", locked="", items=items)

    async def soundness(self, tell: Tell = quiet) -> Soundness:
        tell("nothing")
        self._check_open()
        return Soundness()

    async def repair(self, what: Repair) -> None:
        raise Unsupported(f"a store in memory has no {what}; there is nothing to repair")

    async def backup(self, path: str) -> None:
        raise Unsupported(f"this store lives in memory alone and cannot be copied to {path}; open a file to keep it")

    async def tenants(self) -> list[str]:
        return sorted({*self._items.tenants(), *self._entries.tenants(), *self._tasks.tenants()})

    # Erasing

    @property
    def receipts(self) -> Path | None:
        return None

    async def salt(self) -> bytes:
        self._check_open()
        return self._held_erasures.salt

    async def resalt(self, salt: bytes) -> None:
        self._erasures.resalt(salt)

    async def holdings(self) -> list[Space]:
        return list(dict.fromkeys((*self._items.held(), *self._entries.held(), *self._tasks.held())))

    async def ledger(self, *, unfinished: bool = False) -> list[Erasure]:
        return [row for row in self._erasures.rows() if not unfinished or row.phase != "complete"]

    async def enter(self, erasure: Erasure) -> None:
        self._erasures.enter(erasure)

    async def wipe(self, id: str, doomed: Doomed) -> None:
        checked, now = [admitted(write) for write in doomed.writes], self._now()
        with self._batch() as undo:
            counts = self._counted(checked)
            self._apply(checked, now, undo)
            for space in doomed.spaces:
                for table in (self._items, self._entries, self._tasks):
                    counts[space.tier] += table.wipe(space, undo)
            for space in {write.space for write in checked}:
                self._items.tidy_paths(space, undo)
            self._erasures.add(id, counts, sum(isinstance(write, Put) for write in checked), undo)

    def _counted(self, writes: Sequence[Write]) -> Counter[str]:
        """How much single writes will take away."""
        counts: Counter[str] = Counter()
        for write in writes:
            match write:
                case Delete():
                    counts[write.space.tier] += len(self._items.get(write.space, [write.id]))
                case DropTask():
                    counts[write.space.tier] += self._tasks.task((write.space, write.task), None) is not None
                case Drop():
                    held = {entry.seq for entry in self._entries.read(write.space, 0, 1 << 31, None)}
                    counts[write.space.tier] += len(held & {*write.seqs})
                case _:
                    continue
        return counts

    async def deleted(self, id: str) -> None:
        self._erasures.deleted(id, self._now())

    async def settle(self) -> bool:
        self._check_open()
        return True

    async def scan(self, evidence: bytes) -> Scan:
        """There is no file, and nothing is kept that is not asked."""
        self._check_open()
        return Scan()

    async def finish(self, receipt: ErasureReceipt) -> ErasureReceipt:
        return self._erasures.finish(receipt, self._now())

    # Records

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        return self._items.get(space, ids)

    async def whole(self, space: Space, *ids: str) -> list[Put]:
        return self._items.whole(space, ids)

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        return self._items.find(where, count_of(limit), after)

    def touch(self, touch: Touch) -> None:
        self._items.apply(touch, Undo())

    async def nearest(self, where: Where, vector: Vector, *, limit: int = 10) -> list[Found]:
        return self._items.nearest(where, normalised(vector)[0], count_of(limit))

    async def matching(self, where: Where, terms: Sequence[str], *, limit: int = 10) -> Matches:
        return self._items.matching(where, terms, count_of(limit))

    async def gather(self, ask: Ask, judge: Callable[[Evidence, Lookup], T]) -> T:
        await asyncio.sleep(0)  # every other store lets others run here, and a loop of searches must not starve them
        evidence = self._items.gather(replace(ask, vector=None if ask.vector is None else normalised(ask.vector)[0]))
        return judge(evidence, _Lookup(self._items, ask.where.space))

    async def around(self, where: Where, places: Sequence[tuple[str, float]], *, reach: int = 1) -> list[Brief]:
        return self._items.around(where, places, reach)

    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        return self._items.last_turns(space, session, count_of(limit))

    async def paths(self, space: Space) -> frozenset[str]:
        return self._items.paths(space)

    async def speakers(self, space: Space) -> frozenset[str]:
        return self._items.speakers(space)

    async def size(self) -> int:
        return self._items.size()

    async def spaces(self, tenant: str | None = None) -> list[SpaceCount]:
        return self._items.spaces(tenant)

    async def model(self) -> Model | None:
        return self._items.model()

    async def adopt(self, model: Model) -> None:
        with self._batch() as undo:
            self._items.adopt(model, undo)

    async def unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        with self._batch() as undo:
            self._items.prepare(model, undo)
        return self._items.unembedded(count_of(limit))

    async def switch(self, model: Model) -> None:
        with self._batch() as undo:
            self._items.switch(model, undo)

    # Log

    async def append(self, *appends: Append) -> list[Entry | None]:
        await self.write(*appends)
        now = self._now()
        held = [self._entries.get(one.space, (one.entry.id,), now) for one in appends]
        return [entries[0] if entries else None for entries in held]

    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        return self._entries.get(space, ids, self._now())

    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        return self._entries.recent(space, count_of(limit), kinds, self._now())

    async def tails(self, space: Space, reach: Reach) -> list[Tail]:
        return self._entries.tails(space, reach.checked(), self._now())

    async def read(self, space: Space, *, after: int = 0, limit: int = 1000, hidden: bool = False) -> list[Entry]:
        return self._entries.read(space, after, count_of(limit), None if hidden else self._now())

    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        return self._entries.logs(owner, None if hidden else self._now())

    async def counted(self, tenant: str | None = None) -> dict[Space, int]:
        return self._entries.counted(tenant)

    async def owners(self, tenant: str) -> list[Space]:
        return self._entries.owners(tenant)

    # Tasks

    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        check_claim(task, owner, ttl)
        with self._batch() as undo:
            return self._tasks.claim(Claim(space, task, owner, ttl, plan_hash), self._now(), undo)

    async def save(self, save: Save) -> int:
        await self.write(save)
        task = self._tasks.task((save.space, save.task), None)
        assert task is not None
        return task.version

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        check_ttl(ttl)
        with self._batch() as undo:
            return self._tasks.renew(lease, ttl, self._now(), undo)

    async def release(self, lease: Lease) -> None:
        with self._batch() as undo:
            self._tasks.release(lease, self._now(), undo)

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        return self._tasks.task((space, task), self._seen_from(hidden))

    async def tasks(
        self, space: Space, *, status: TaskStatus | None = None, limit: int = 100, after: str | None = None
    ) -> list[Task]:
        return self._tasks.listed(space, status, count_of(limit), after, self._now())

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        return self._tasks.expired(space, aware(before), count_of(limit), after, self._now())

    async def task_spaces(self, tenant: str) -> list[Space]:
        return self._tasks.spaces(tenant)

    async def checkpoint(
        self, space: Space, task: str, *, version: int | None = None, hidden: bool = False
    ) -> Checkpoint | None:
        kept = self._tasks.checkpoints((space, task), self._seen_from(hidden))
        return next((one for one in kept if version in (None, one.version)), None)

    async def checkpoints(self, space: Space, task: str, *, hidden: bool = False) -> list[Checkpoint]:
        return self._tasks.checkpoints((space, task), self._seen_from(hidden))

    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        return self._tasks.steps((space, task), self._seen_from(hidden))

    @property
    def _items(self) -> Items:
        self._check_open()
        return self._held_items

    @property
    def _entries(self) -> Entries:
        self._check_open()
        return self._held_entries

    @property
    def _tasks(self) -> TaskTable:
        self._check_open()
        return self._held_tasks

    @property
    def _erasures(self) -> Erasures:
        self._check_open()
        return self._held_erasures

    def _seen_from(self, hidden: bool) -> datetime | None:
        """The moment by which what has expired is hidden; None hides nothing."""
        return None if hidden else self._now()

    def _now(self) -> datetime:
        self._check_open()
        return aware(self._clock())

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this store was closed, and what it held went with it; open another")

    @contextmanager
    def _batch(self) -> Iterator[Undo]:
        """All changes made within, or none."""
        undo = Undo()
        try:
            yield undo
        except BaseException:
            undo.back()
            raise


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Reads for a judge."""

    kept: Items
    space: Space

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        return {item.id: item for item in self.kept.get(self.space, ids)}

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        return self.kept.terms(self.space, ids)
