"""The store on Redis: logs and tasks, every batch one script."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from recollect.clock import Clock, aware, system_clock
from recollect.errors import StoreFull, StoreUnavailable, Unsupported
from recollect.stores import answers, leases
from recollect.stores.admission import admitted, check_claim, check_ttl, count_of
from recollect.stores.base import Checkpoint, Lease, Step, Task
from recollect.stores.erasing import Doomed, Erasure
from recollect.stores.health import Repair, Soundness, Tell, Vitals, quiet
from recollect.stores.ops import Append, Entry, LogWrite, Save, TaskStatus, TaskWrite, Write, only_removes
from recollect.stores.receipts import ErasureReceipt, Scan
from recollect.stores.redis import health, values
from recollect.stores.redis.batch import Decision, Rows, decided, put_back, put_in_hands, tasks_in
from recollect.stores.redis.clock import SharedClock
from recollect.stores.redis.commits import Commit, Committer
from recollect.stores.redis.evidence import Evidence
from recollect.stores.redis.failures import shown
from recollect.stores.redis.ledger import Ledger
from recollect.stores.redis.logs import Logs
from recollect.stores.redis.owners import Owners
from recollect.stores.redis.physical import Physical
from recollect.stores.redis.server import Patience, Server
from recollect.stores.redis.tasks import Page, TaskTable
from recollect.stores.redis.wiping import Wiping
from recollect.stores.tails import Reach, Tail
from recollect.values import Space

# Put together once: for each write of each batch it would take longer than to look at the write.
_KEPT = LogWrite | TaskWrite


def new_id() -> str:
    """A name for a batch that no other has."""
    return secrets.token_hex(16)


class RedisStore:
    """Log and Tasks on a server that others use at the same time."""

    def __init__(self, server: Server, clock: SharedClock, ids: Callable[[], str]) -> None:
        self._server = server
        self._clock = clock
        self._ids = ids
        self._logs = Logs(server)
        self._table = TaskTable(server)
        self._owners = Owners(server)
        self._committer = Committer(server, clock)
        self._ledger = Ledger(server)
        self._wiping = Wiping(server, self._ledger)
        self._physical = Physical(server)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock = system_clock,
        patience: Patience = Patience(),
        ids: Callable[[], str] = new_id,
    ) -> RedisStore:
        """Reach the server, and see that it can keep what is promised."""
        server = Server(url, patience)
        try:
            await server.greet()
            shared = SharedClock(clock)
            shared.hear((await server.script("rows", (), ()))[0])
            store = cls(server, shared, ids)
            # Made with the store, so that every copy of it has it, and is known again by it; not where nothing can be
            # written now, and reading goes on.
            with suppress(StoreFull, StoreUnavailable):
                await store.salt()
        except BaseException:
            await server.close()
            raise
        return store

    @property
    def url(self) -> str:
        """Where it was opened, with the password if there is one."""
        return self._server.url

    async def write(self, *writes: Write) -> None:
        if writes:
            await self._carry_out(writes)

    async def _carry_out(self, writes: Sequence[Write]) -> tuple[bytes, Decision]:
        checked = [admitted(write) for write in writes]
        for write in checked:
            if not isinstance(write, _KEPT):
                raise Unsupported(
                    f"Redis keeps logs and tasks, and no {type(write).__name__}; put the tier that needs it elsewhere"
                )
        return await self._committer.carry_out(
            Commit(
                id=self._ids(),
                owners=tuple(write.space for write in checked),
                tasks=tuple(tasks_in(checked)),
                decide=lambda rows, now: decided(checked, rows, now),
                only_removes=all(only_removes(write) for write in checked),
            )
        )

    async def close(self) -> None:
        await self._server.close()

    async def check(self) -> list[str]:
        return (await self.soundness()).sentences

    async def vitals(self) -> Vitals:
        return health.vitals(await self._server.examined())

    async def soundness(self, tell: Tell = quiet) -> Soundness:
        tell("checksums")
        return Soundness(faults=tuple(await self._table.damaged()))

    async def repair(self, what: Repair) -> None:
        raise Unsupported(f"the {what} of a server is looked after by the server itself; there is nothing to repair")

    async def backup(self, path: str) -> None:
        raise Unsupported(
            f"what {shown(self._server.url)} holds is copied by the server itself and not to {path}: run "
            "BGREWRITEAOF or BGSAVE there and copy its directory, or export the memory"
        )

    async def tenants(self) -> list[str]:
        return await self._owners.tenants()

    # Erasing

    @property
    def receipts(self) -> Path | None:
        """There is no place beside a server; an older copy learns from the other stores of its memory."""
        return None

    async def salt(self) -> bytes:
        return await self._ledger.salt()

    async def resalt(self, salt: bytes) -> None:
        await self._ledger.resalt(salt)

    async def holdings(self) -> list[Space]:
        return await self._wiping.holdings()

    async def ledger(self, *, unfinished: bool = False) -> list[Erasure]:
        return await self._ledger.rows(unfinished=unfinished)

    async def enter(self, erasure: Erasure) -> None:
        await self._ledger.enter(erasure)

    async def wipe(self, id: str, doomed: Doomed) -> None:
        await self._wiping.wipe(id, doomed)
        await self._physical.deleted()

    async def deleted(self, id: str) -> None:
        await self._ledger.recover()
        await self._ledger.deleted(id, self._clock())

    async def settle(self) -> bool:
        self._committer.forget()
        return await self._physical.settled()

    async def scan(self, evidence: bytes) -> Scan:
        return await self._physical.scan(Evidence.of(await self._ledger.salt(), evidence))

    async def finish(self, receipt: ErasureReceipt) -> ErasureReceipt:
        return await self._ledger.finish(receipt, self._clock())

    # Log

    async def append(self, *appends: Append) -> list[Entry | None]:
        if not appends:
            return []
        places, decision = await self._carry_out(appends)
        added = self._logs.added(places, decision.entries, self._clock())
        # What was there before is another's word, and one of more than are kept may be gone again.
        if None in added or _crowded(appends):
            return await answers.held(self, appends)
        return added

    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        return await self._logs.get(space, ids, self._clock())

    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        return await self._logs.recent(space, count_of(limit), kinds, self._clock())

    async def tails(self, space: Space, reach: Reach) -> list[Tail]:
        return await self._logs.tails(space, reach.checked(), self._clock())

    async def read(self, space: Space, *, after: int = 0, limit: int = 1000, hidden: bool = False) -> list[Entry]:
        return await self._logs.read(space, after, count_of(limit), self._seen_from(hidden))

    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        return await self._logs.listed(owner, self._seen_from(hidden))

    async def counted(self, tenant: str | None = None) -> dict[Space, int]:
        return await self._owners.counted(tenant)

    async def owners(self, tenant: str) -> list[Space]:
        return await self._owners.of_logs(tenant)

    # Tasks

    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        check_claim(task, owner, ttl)
        claim = leases.Claim(space, task, owner, ttl, plan_hash)
        taken: list[Task] = []

        def decide(rows: Rows, now: datetime) -> Decision:
            claimed, decision = put_in_hands(claim, rows[space, task], now)
            taken[:] = [claimed]
            return decision

        fence, _ = await self._of_one(space, task, decide)
        return leases.lease_of(space, replace(taken[0], fence=int(fence)))

    async def save(self, save: Save) -> int:
        _, decision = await self._carry_out([save])
        task = values.task_from(save.task, decision.rows[save.space, save.task])
        assert task is not None
        return task.version

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        check_ttl(ttl)
        name = (lease.space, lease.task)

        def decide(rows: Rows, now: datetime) -> Decision:
            held = values.task_from(lease.task, rows[name])
            return put_back(name, leases.renewed(held, lease, ttl, now), rows[name])

        _, decision = await self._of_one(*name, decide)
        renewed = values.task_from(lease.task, decision.rows[name])
        assert renewed is not None
        return leases.lease_of(lease.space, renewed)

    async def release(self, lease: Lease) -> None:
        name = (lease.space, lease.task)

        def decide(rows: Rows, now: datetime) -> Decision:
            released = leases.released(values.task_from(lease.task, rows[name]), lease, now)
            return Decision() if released is None else put_back(name, released, rows[name])

        await self._of_one(*name, decide)

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        return await self._table.task((space, task), self._seen_from(hidden))

    async def tasks(
        self, space: Space, *, status: TaskStatus | None = None, limit: int = 100, after: str | None = None
    ) -> list[Task]:
        return await self._table.listed(Page(space, status, count_of(limit), after), self._clock())

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        return await self._table.expired(space, aware(before), count_of(limit), after, self._clock())

    async def task_spaces(self, tenant: str) -> list[Space]:
        return await self._owners.of_tasks(tenant)

    async def checkpoint(
        self, space: Space, task: str, *, version: int | None = None, hidden: bool = False
    ) -> Checkpoint | None:
        return await self._table.checkpoint((space, task), version, self._seen_from(hidden))

    async def checkpoints(self, space: Space, task: str, *, hidden: bool = False) -> list[Checkpoint]:
        return await self._table.checkpoints((space, task), self._seen_from(hidden))

    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        return await self._table.steps((space, task), self._seen_from(hidden))

    async def _of_one(
        self, space: Space, task: str, decide: Callable[[Rows, datetime], Decision]
    ) -> tuple[bytes, Decision]:
        return await self._committer.carry_out(Commit(self._ids(), (space,), ((space, task),), decide))

    def _seen_from(self, hidden: bool) -> datetime | None:
        """The moment by which what has expired is hidden; None hides nothing."""
        return None if hidden else self._clock()


def _crowded(appends: Sequence[Append]) -> bool:
    """Whether there are more for one log than it keeps."""
    many = Counter(one.space for one in appends)
    return any(one.cap is not None and one.cap < many[one.space] for one in appends)
