"""A store on PostgreSQL: what one machine keeps in a file, for many machines at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from recollect.clock import Clock
from recollect.errors import RecollectError, StoreClosed, Unsupported
from recollect.stores import answers
from recollect.stores.admission import admitted, check_claim, check_ttl, count_of
from recollect.stores.base import Checkpoint, Lease, SpaceCount, Step, Task, Vector
from recollect.stores.erasing import Doomed, Erasure
from recollect.stores.evidence import Ask, Brief, Evidence, Found, Lookup, Matches
from recollect.stores.health import Repair, Soundness, Tell, Vitals, quiet
from recollect.stores.leases import Claim
from recollect.stores.ops import Append, Entry, Model, Put, Save, TaskStatus, Touch, Write
from recollect.stores.postgres import health, index, items, journal, ledger, logs, models, moving, search, tasks
from recollect.stores.postgres.address import parted
from recollect.stores.postgres.batch import apply
from recollect.stores.postgres.gather import Gathering
from recollect.stores.postgres.holdings import asked_for
from recollect.stores.postgres.locks import locks, task_lock
from recollect.stores.postgres.models import Models
from recollect.stores.postgres.scanning import Sought, scan
from recollect.stores.postgres.server import Server
from recollect.stores.postgres.settling import settle
from recollect.stores.postgres.soundness import soundness
from recollect.stores.postgres.standing import Standing
from recollect.stores.postgres.text import kept
from recollect.stores.postgres.wiping import holdings, wipe
from recollect.stores.receipts import ErasureReceipt, Scan
from recollect.stores.tails import Reach, Tail
from recollect.stores.vectors import is_unit, normalised
from recollect.stores.where import Where
from recollect.values import MemoryItem, Space

_CHECKED_AT_ONCE = 64
_COUNTED_WITHIN = 0.25

T = TypeVar("T")


class PostgresStore:
    """Records, Log, Tasks and Erasing in one database. Made by `PostgresStore.open`; it belongs to that event loop."""

    def __init__(self, server: Server, receipts: Path | None = None) -> None:
        self._server = server
        self._receipts = receipts
        self._salt: bytes | None = None
        self._waits: list[str] = []
        self._gathering = Gathering(server, self._see_to_index)
        self._touches: list[Touch] = []
        self._timer: asyncio.TimerHandle | None = None
        self._counting: asyncio.Task[None] | None = None
        self._building: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, url: str, *, connections: int = 8, clock: Clock | None = None) -> PostgresStore:
        """Open, and bring up to date, the database that a URL names. Without a clock, time is the server's.

        `?receipts=PATH` in the URL names the file that receipts of erasures are kept in, outside of the server.
        """
        address, receipts = parted(url)
        return cls(await Server.open(address, connections=connections, clock=clock), receipts)

    async def write(self, *writes: Write) -> None:
        if not writes:
            return
        # Checking takes some 30 µs an item: a large batch would hold up the loop for longer than its callers notice.
        large = len(writes) > _CHECKED_AT_ONCE
        checked = await asyncio.to_thread(_admitted, writes) if large else _admitted(writes)
        # Accesses alone may be given up in a crash of the server; whatever else is acknowledged is not.
        lasting = not all(isinstance(write, Touch) for write in checked)
        questions = asked_for(checked)
        first = questions[0]
        async with self._server.writing(first.tenant, locks(checked), first.statement, lasting=lasting) as work:
            await apply(work, checked, questions)

    async def close(self) -> None:
        with suppress(StoreClosed):  # closed before
            await self._touched()
        if self._building is not None:
            self._building.cancel()  # it goes on at the server, or is built again
            await asyncio.wait([self._building])
        await self._server.close()

    async def check(self) -> list[str]:
        return (await self.soundness()).sentences

    async def backup(self, path: str) -> None:
        raise Unsupported(
            f"a server's copy is made by its own tools; for one at {path}: pg_dump --format=custom --file={path} URL"
        )

    async def tenants(self) -> list[str]:
        async with self._server.reading(None) as work:
            return await moving.tenants(work)

    # Health

    async def vitals(self) -> Vitals:
        async with self._server.reading(None) as work:
            return await health.vitals(work)

    async def soundness(self, tell: Tell = quiet) -> Soundness:
        async with self._server.reading(None) as work:
            return await soundness(work, tell)

    async def repair(self, what: Repair) -> None:
        raise Unsupported(f"the {what} of a server is looked after by the server itself; there is nothing to repair")

    # Erasing

    @property
    def receipts(self) -> Path | None:
        return self._receipts

    async def salt(self) -> bytes:
        if self._salt is None:
            async with self._server.reading(None) as work:
                self._salt = await ledger.salt(work)
        return self._salt

    async def resalt(self, salt: bytes) -> None:
        async with self._server.writing(None, ledger.ALONE) as work:
            await ledger.resalt(work, salt)
        self._salt = None

    async def holdings(self) -> list[Space]:
        async with self._server.reading(None) as work:
            return await holdings(work)

    async def ledger(self, *, unfinished: bool = False) -> list[Erasure]:
        async with self._server.reading(None) as work:
            return await ledger.listed(work, unfinished=unfinished)

    async def enter(self, erasure: Erasure) -> None:
        async with self._server.writing(None, ledger.ALONE) as work:
            await ledger.enter(work, erasure)

    async def wipe(self, id: str, doomed: Doomed) -> None:
        await self._touched()
        checked = replace(doomed, writes=tuple(_admitted(doomed.writes)))
        async with self._server.writing(
            None, [*ledger.ALONE, *locks(checked.writes, checked.spaces)], hurried=False
        ) as work:
            await wipe(work, id, checked)

    async def deleted(self, id: str) -> None:
        async with self._server.writing(None, ledger.ALONE) as work:
            await ledger.deleted(work, id)

    async def settle(self) -> bool:
        self._waits = await self._server.alone(settle)
        return not self._waits

    async def scan(self, evidence: bytes) -> Scan:
        sought = Sought(await self.salt(), evidence, beside=self._receipts is not None)
        # Told once, to whoever has just had it settled: the same look serves those who check a receipt of long ago.
        waits, self._waits = tuple(self._waits), []
        return replace(await self._server.alone(lambda connection: scan(connection, sought)), waits=waits)

    async def finish(self, receipt: ErasureReceipt) -> ErasureReceipt:
        async with self._server.writing(None, ledger.ALONE) as work:
            return await ledger.finish(work, receipt)

    # Records

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        if not ids:
            return []
        await self._touched()
        return await items.get(self._server, space, ids)

    async def whole(self, space: Space, *ids: str) -> list[Put]:
        await self._touched()
        async with self._server.reading(space.tenant) as work:
            return await moving.whole(work, space, ids)

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        await self._touched()
        return await items.find(self._server, where, count_of(limit), after)

    def touch(self, touch: Touch) -> None:
        self._touches.append(touch)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_COUNTED_WITHIN, self._count)

    def _count(self) -> None:
        """Begin to write the accesses noted so far, after those before them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._touches and (self._counting is None or self._counting.done()):
            self._counting = asyncio.get_running_loop().create_task(self._counted())

    async def _counted(self) -> None:
        while self._touches:
            some = list(self._touches)
            try:
                await self.write(*some)
            except RecollectError:
                pass  # given up: a count is not worth failing anybody for
            finally:
                del self._touches[: len(some)]

    async def _touched(self) -> None:
        """Have all accesses counted."""
        self._count()
        if self._counting is not None and not self._counting.done():
            await asyncio.wait([self._counting])

    async def nearest(self, where: Where, vector: Vector, *, limit: int = 10) -> list[Found]:
        query, most = normalised(vector)[0], count_of(limit)
        return await search.nearest(self._server, where, query, most)

    async def matching(self, where: Where, terms: Sequence[str], *, limit: int = 10) -> Matches:
        return await search.matching(self._server, where, terms, count_of(limit))

    async def gather(self, ask: Ask, judge: Callable[[Evidence, Lookup], T]) -> T:
        checked = ask if ask.vector is None or is_unit(ask.vector) else replace(ask, vector=normalised(ask.vector)[0])
        return await self._gathering(checked, judge, self._touches)

    def _see_to_index(self, space: Space, at: Standing) -> None:
        """Have an index built for a space that has become too large to be without; nobody waits for it."""
        if at.indexed is False and at.models.active is not None and self._building is None:
            assert at.number is not None
            self._building = asyncio.create_task(self._built(kept(space.tenant), at.number, at.models))

    async def _built(self, tenant: str, number: int, models: Models) -> None:
        try:
            async with await self._server.made() as connection:
                await index.build(connection, tenant, number, models)
        except RecollectError:
            pass  # the next question tries again
        finally:
            self._building = None

    async def around(self, where: Where, places: Sequence[tuple[str, float]], *, reach: int = 1) -> list[Brief]:
        found = await items.around(self._server, where, places, reach)
        return sorted(found, key=lambda brief: (brief.session, brief.position, brief.id))

    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        return await items.last_turns(self._server, space, session, count_of(limit))

    async def paths(self, space: Space) -> frozenset[str]:
        return await items.paths(self._server, space)

    async def speakers(self, space: Space) -> frozenset[str]:
        return await items.speakers(self._server, space)

    async def size(self) -> int:
        async with self._server.reading(None) as work:
            return await items.size(work)

    async def spaces(self, tenant: str | None = None) -> list[SpaceCount]:
        async with self._server.reading(tenant) as work:
            return await items.spaces(work, tenant)

    async def model(self) -> Model | None:
        async with self._server.reading(None) as work:
            return (await models.read(work)).active

    async def adopt(self, model: Model) -> None:
        if await self.model() != model:
            async with self._server.writing(None) as work:
                await models.adopted(work, model)

    async def unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        most = count_of(limit)
        async with self._server.writing(None) as work:
            return await items.unembedded(work, model, most)

    async def switch(self, model: Model) -> None:
        async with self._server.writing(None) as work:
            await models.switch(work, model)

    # Log

    async def append(self, *appends: Append) -> list[Entry | None]:
        return await answers.appended(self, appends)

    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        return await logs.get(self._server, space, ids) if ids else []

    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        return await logs.recent(self._server, space, count_of(limit), kinds)

    async def tails(self, space: Space, reach: Reach) -> list[Tail]:
        return await logs.tails(self._server, space, reach.checked())

    async def read(self, space: Space, *, after: int = 0, limit: int = 1000, hidden: bool = False) -> list[Entry]:
        return await logs.read(self._server, space, after, count_of(limit), hidden=hidden)

    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        return await logs.logs(self._server, owner, hidden=hidden)

    async def counted(self, tenant: str | None = None) -> dict[Space, int]:
        async with self._server.reading(tenant) as work:
            return await moving.counted(work, tenant)

    async def owners(self, tenant: str) -> list[Space]:
        async with self._server.reading(tenant) as work:
            return await logs.owners(work, tenant)

    # Tasks

    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        check_claim(task, owner, ttl)
        async with self._server.writing(space.tenant, task_lock(space, task)) as work:
            return await tasks.claim(work, Claim(space, task, owner, ttl, plan_hash))

    async def save(self, save: Save) -> int:
        return await answers.saved(self, save)

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        check_ttl(ttl)
        async with self._server.writing(lease.space.tenant, task_lock(lease.space, lease.task)) as work:
            return await tasks.renew(work, lease, ttl)

    async def release(self, lease: Lease) -> None:
        async with self._server.writing(lease.space.tenant, task_lock(lease.space, lease.task)) as work:
            await tasks.release(work, lease)

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        async with self._server.reading(space.tenant) as work:
            return await journal.task(work, space, task, hidden=hidden)

    async def tasks(
        self, space: Space, *, status: TaskStatus | None = None, limit: int = 100, after: str | None = None
    ) -> list[Task]:
        page = journal.Page(space, status, count_of(limit), after)
        async with self._server.reading(space.tenant) as work:
            return await journal.listed(work, page)

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        most = count_of(limit)
        async with self._server.reading(space.tenant) as work:
            return await journal.expired(work, space, before, most, after)

    async def task_spaces(self, tenant: str) -> list[Space]:
        async with self._server.reading(tenant) as work:
            return await journal.spaces(work, tenant)

    async def checkpoint(
        self, space: Space, task: str, *, version: int | None = None, hidden: bool = False
    ) -> Checkpoint | None:
        async with self._server.reading(space.tenant) as work:
            return await journal.checkpoint(work, space, task, version, hidden=hidden)

    async def checkpoints(self, space: Space, task: str, *, hidden: bool = False) -> list[Checkpoint]:
        async with self._server.reading(space.tenant) as work:
            return await journal.checkpoints(work, space, task, hidden=hidden)

    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        async with self._server.reading(space.tenant) as work:
            return await journal.steps(work, space, task, hidden=hidden)


def _admitted(writes: Sequence[Write]) -> list[Write]:
    return [admitted(write) for write in writes]
