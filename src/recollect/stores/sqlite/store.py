"""The default store: everything in one SQLite file, shared safely by threads and processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw

from recollect.clock import Clock, system_clock
from recollect.errors import StoreClosed, StoreUnavailable
from recollect.stores.admission import admitted, check_claim, check_ttl, count_of
from recollect.stores.base import Checkpoint, Lease, SpaceCount, Step, Task, Vector
from recollect.stores.erasing import Doomed, Erasure
from recollect.stores.evidence import Ask, Brief, Evidence, Found, Lookup, Matches
from recollect.stores.health import Repair, Soundness, Tell, Vitals, quiet
from recollect.stores.leases import Claim
from recollect.stores.ops import Append, Entry, Model, Put, Save, TaskStatus, Touch, Write, is_durable, only_removes
from recollect.stores.receipts import ErasureReceipt, Scan
from recollect.stores.sqlite import batch, generations, health, ledger, logs, moving, tasks
from recollect.stores.sqlite.backup import copy
from recollect.stores.sqlite.connection import open_connection
from recollect.stores.sqlite.gather import gather
from recollect.stores.sqlite.key import Key
from recollect.stores.sqlite.migrations import migrate
from recollect.stores.sqlite.physical import emptied_log, scan, settled
from recollect.stores.sqlite.readers import Readers
from recollect.stores.sqlite.rows import forget_names
from recollect.stores.sqlite.search import Search
from recollect.stores.sqlite.soundness import rebuild_words, soundness
from recollect.stores.sqlite.wiping import holdings, wipe
from recollect.stores.sqlite.writer import Writer
from recollect.stores.tails import Reach, Tail
from recollect.stores.vectors import is_unit, normalised
from recollect.stores.where import Where
from recollect.values import MemoryItem, Space

_CHECKED_AT_ONCE = 64
_COUNTED_WITHIN = 0.25
# Somebody reads from the log for longer than that: they are asked again at the next run of the lifecycle.
_SETTLED_WITHIN = 20
_SETTLING_SECONDS = 0.05

T = TypeVar("T")


class SqliteStore:
    """Records, Log and Tasks in one file. Open it with `SqliteStore.open`, which may block: call it in a thread."""

    def __init__(
        self, path: Path, writer: Writer, readers: Readers, *, cache_bytes: int, clock: Clock, key: Key | None
    ) -> None:
        self.path = path
        self._key = key
        self._writer = writer
        self._readers = readers
        self._search = Search(cache_bytes)
        self._clock = clock
        self._counting: asyncio.TimerHandle | None = None
        self._counted: Future[object] | None = None
        self._noted: Future[object] | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        cache_bytes: int = 256 << 20,
        readers: int = 4,
        clock: Clock = system_clock,
        key: Key | None = None,
    ) -> SqliteStore:
        path = Path(os.path.abspath(os.path.expanduser(path)))
        if not path.parent.is_dir():
            raise StoreUnavailable(f"{path} cannot be opened: the directory {path.parent} does not exist; create it")
        connection = open_connection(path, writes=True, key=key)
        try:
            migrate(connection, path)
        except BaseException:
            connection.close()
            raise
        return cls(
            path,
            Writer(connection, path),
            Readers(path, threads=readers, cache_mib=16, key=key),
            cache_bytes=cache_bytes,
            clock=clock,
            key=key,
        )

    @property
    def encrypted(self) -> bool:
        """Whether the file, its log and its backups are encrypted."""
        return self._key is not None

    async def write(self, *writes: Write) -> None:
        if writes:
            await self._carry_out(batch.apply, writes)

    async def _carry_out(
        self, work: Callable[[apsw.Connection, Any, datetime], object], writes: Sequence[Write]
    ) -> object:
        # Checking takes some 30 µs an item: a large batch would hold up the loop for longer than its callers notice.
        large = len(writes) > _CHECKED_AT_ONCE
        checked = await asyncio.to_thread(_admitted, writes) if large else _admitted(writes)
        now = self._clock()
        return await self._writer.submit(
            lambda connection: work(connection, checked, now),
            durable=any(is_durable(write) for write in writes),
            frees=all(only_removes(write) for write in writes),
        )

    async def close(self) -> None:
        with suppress(StoreClosed):  # closed before
            await self._touched()
        await asyncio.to_thread(self._readers.close)
        await asyncio.to_thread(self._writer.close)

    async def check(self) -> list[str]:
        return (await self.soundness()).sentences

    async def backup(self, path: str) -> None:
        await self._readers.ask(lambda connection: copy(connection, Path(os.path.abspath(path)), self._key))
        # Not waited for: a copy is a copy, whoever holds the write lock and however full this disk is.
        now = self._clock()
        self._noted = self._writer.queue(lambda connection: health.note_backup(connection, now), durable=False)

    async def tenants(self) -> list[str]:
        return await self._readers.ask(moving.tenants)

    # Health

    async def vitals(self) -> Vitals:
        if self._noted is not None and not self._noted.done():
            await asyncio.wait([asyncio.wrap_future(self._noted)], timeout=_COUNTED_WITHIN)
        now = self._clock()
        told = await self._readers.ask(lambda connection: health.vitals(connection, self.path, self._key, now))
        return replace(told, locked=await asyncio.to_thread(health.locked, self.path, self._key))

    async def soundness(self, tell: Tell = quiet) -> Soundness:
        return await self._readers.ask(lambda connection: soundness(connection, tell))

    async def repair(self, what: Repair) -> None:
        match what:
            case "ballast":
                await asyncio.to_thread(self._writer.ballast.keep)
            case "log":
                await asyncio.to_thread(emptied_log, self.path, self._key)
            case "words":
                await self._writer.submit(rebuild_words, durable=True)

    # Erasing

    @property
    def receipts(self) -> Path:
        return self.path.with_name(self.path.name + ".erasures.jsonl")

    async def salt(self) -> bytes:
        return await self._readers.ask(ledger.salt)

    async def resalt(self, salt: bytes) -> None:
        await self._writer.submit(lambda connection: ledger.resalt(connection, salt), durable=True)

    async def holdings(self) -> list[Space]:
        return await self._readers.ask(holdings)

    async def ledger(self, *, unfinished: bool = False) -> list[Erasure]:
        return await self._readers.ask(lambda connection: ledger.rows(connection, unfinished=unfinished))

    async def enter(self, erasure: Erasure) -> None:
        await self._writer.submit(lambda connection: ledger.enter(connection, erasure), durable=True, frees=True)

    async def wipe(self, id: str, doomed: Doomed) -> None:
        await self._touched()
        now, checked = self._clock(), replace(doomed, writes=tuple(_admitted(doomed.writes)))
        await self._writer.submit(lambda connection: wipe(connection, id, checked, now), durable=True, frees=True)

    async def deleted(self, id: str) -> None:
        now = self._clock()
        await self._writer.submit(lambda connection: ledger.deleted(connection, id, now), durable=True, frees=True)

    async def settle(self) -> bool:
        self._search.forget()
        forget_names()
        for _ in range(_SETTLED_WITHIN):
            if await asyncio.to_thread(settled, self.path, self._key):
                return True
            await asyncio.sleep(_SETTLING_SECONDS)
        return False

    async def scan(self, evidence: bytes) -> Scan:
        return await self._readers.ask(lambda connection: scan(connection, self.path, evidence))

    async def finish(self, receipt: ErasureReceipt) -> ErasureReceipt:
        now = self._clock()
        done = await self._writer.submit(
            lambda connection: ledger.finish(connection, receipt, now), durable=True, frees=True
        )
        return cast(ErasureReceipt, done)

    # Records

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        await self._touched()
        return await self._readers.ask(lambda connection: self._search.get(connection, space, ids))

    async def whole(self, space: Space, *ids: str) -> list[Put]:
        await self._touched()
        return await self._readers.ask(lambda connection: moving.whole(connection, self._search, space, ids))

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        await self._touched()
        return await self._readers.ask(lambda connection: self._search.find(connection, where, count_of(limit), after))

    def touch(self, touch: Touch) -> None:
        self._search.accesses.note(touch)
        if self._counting is None:
            self._counting = asyncio.get_running_loop().call_later(_COUNTED_WITHIN, self._count)

    def _count(self) -> None:
        """Leave the accesses noted so far to the writer."""
        if self._counting is not None:
            self._counting.cancel()
            self._counting = None
        counted = self._search.accesses.take()
        if counted:
            self._counted = self._writer.queue(lambda connection: batch.count(connection, counted), durable=False)

    async def _touched(self) -> None:
        """Have all accesses counted: they are written in order, so the last one stands for all."""
        self._count()
        if self._counted is not None and not self._counted.done():
            waiting = asyncio.wrap_future(self._counted)
            await asyncio.wait([waiting])
            waiting.exception()  # looked at, and given up: a count is not worth failing a question for

    async def nearest(self, where: Where, vector: Vector, *, limit: int = 10) -> list[Found]:
        query = normalised(vector)[0]
        return await self._readers.ask(
            lambda connection: self._search.nearest(connection, where, query, count_of(limit))
        )

    async def matching(self, where: Where, terms: Sequence[str], *, limit: int = 10) -> Matches:
        return await self._readers.ask(
            lambda connection: self._search.matching(connection, where, terms, count_of(limit))
        )

    async def gather(self, ask: Ask, judge: Callable[[Evidence, Lookup], T]) -> T:
        # Most come from an embedding, which has made them of unit length.
        checked = ask if ask.vector is None or is_unit(ask.vector) else replace(ask, vector=normalised(ask.vector)[0])

        def answer(connection: apsw.Connection) -> T:
            return judge(*gather(self._search, connection, checked))

        return await self._readers.ask(answer)

    async def around(self, where: Where, places: Sequence[tuple[str, float]], *, reach: int = 1) -> list[Brief]:
        return await self._readers.ask(lambda connection: self._search.around(connection, where, places, reach))

    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        return await self._readers.ask(
            lambda connection: self._search.last_turns(connection, space, session, count_of(limit))
        )

    async def paths(self, space: Space) -> frozenset[str]:
        return await self._readers.ask(lambda connection: self._search.paths(connection, space))

    async def speakers(self, space: Space) -> frozenset[str]:
        return await self._readers.ask(lambda connection: self._search.speakers(connection, space))

    async def size(self) -> int:
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    async def spaces(self, tenant: str | None = None) -> list[SpaceCount]:
        return await self._readers.ask(lambda connection: self._search.spaces(connection, tenant))

    async def model(self) -> Model | None:
        return await self._readers.ask(self._search.model)

    async def adopt(self, model: Model) -> None:
        if await self.model() != model:
            await self._writer.submit(lambda connection: generations.adopt(connection, model), durable=True)

    async def unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        await self._writer.submit(lambda connection: generations.prepare(connection, model), durable=False)
        return await self._readers.ask(lambda connection: self._search.unembedded(connection, count_of(limit)))

    async def switch(self, model: Model) -> None:
        await self._writer.submit(lambda connection: generations.switch(connection, model), durable=True)

    # Log

    async def append(self, *appends: Append) -> list[Entry | None]:
        return cast("list[Entry | None]", await self._carry_out(batch.append, appends) if appends else [])

    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        now = self._clock()
        return await self._readers.ask(lambda connection: logs.get(connection, space, ids, now))

    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        now = self._clock()
        return await self._readers.ask(lambda connection: logs.recent(connection, space, count_of(limit), kinds, now))

    async def tails(self, space: Space, reach: Reach) -> list[Tail]:
        reach, now = reach.checked(), self._clock()
        return await self._readers.ask(lambda connection: logs.tails(connection, space, reach, now))

    async def read(self, space: Space, *, after: int = 0, limit: int = 1000, hidden: bool = False) -> list[Entry]:
        now = None if hidden else self._clock()
        return await self._readers.ask(lambda connection: logs.read(connection, space, after, count_of(limit), now))

    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        now = None if hidden else self._clock()
        return await self._readers.ask(lambda connection: logs.logs(connection, owner, now))

    async def counted(self, tenant: str | None = None) -> dict[Space, int]:
        return await self._readers.ask(lambda connection: moving.counted(connection, tenant))

    async def owners(self, tenant: str) -> list[Space]:
        return await self._readers.ask(lambda connection: logs.owners(connection, tenant))

    # Tasks

    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        check_claim(task, owner, ttl)
        # The time is asked for when the file is ours: another process may have claimed while we waited for it, and
        # by our earlier time its lease would seem to come from the future, which counts as expired.
        lease = await self._writer.submit(
            lambda connection: tasks.claim(connection, Claim(space, task, owner, ttl, plan_hash), self._clock()),
            durable=True,
        )
        return cast(Lease, lease)

    async def save(self, save: Save) -> int:
        return cast(int, await self._carry_out(batch.save, [save]))

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        check_ttl(ttl)
        renewed = await self._writer.submit(
            lambda connection: tasks.renew(connection, lease, ttl, self._clock()), durable=False
        )
        return cast(Lease, renewed)

    async def release(self, lease: Lease) -> None:
        now = self._clock()
        await self._writer.submit(lambda connection: tasks.release(connection, lease, now), durable=True)

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        now = None if hidden else self._clock()
        return await self._readers.ask(lambda connection: tasks.task(connection, space, task, now))

    async def tasks(
        self, space: Space, *, status: TaskStatus | None = None, limit: int = 100, after: str | None = None
    ) -> list[Task]:
        page = tasks.Page(space, status, count_of(limit), after)
        now = self._clock()
        return await self._readers.ask(lambda connection: tasks.listed(connection, page, now))

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        now, most = self._clock(), count_of(limit)
        return await self._readers.ask(lambda connection: tasks.expired(connection, space, before, most, after, now))

    async def task_spaces(self, tenant: str) -> list[Space]:
        return await self._readers.ask(lambda connection: tasks.spaces(connection, tenant))

    async def checkpoint(
        self, space: Space, task: str, *, version: int | None = None, hidden: bool = False
    ) -> Checkpoint | None:
        now = None if hidden else self._clock()
        return await self._readers.ask(lambda connection: tasks.checkpoint(connection, space, task, version, now))

    async def checkpoints(self, space: Space, task: str, *, hidden: bool = False) -> list[Checkpoint]:
        now = None if hidden else self._clock()
        return await self._readers.ask(lambda connection: tasks.checkpoints(connection, space, task, now))

    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        now = None if hidden else self._clock()
        return await self._readers.ask(lambda connection: tasks.steps(connection, space, task, now))


def _admitted(writes: Sequence[Write]) -> list[Write]:
    return [admitted(write) for write in writes]
