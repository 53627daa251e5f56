"""The Redis store: logs and tasks, each batch written by one script."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from recollect.clock import Clock, system_clock
from recollect.errors import StoreFull, StoreUnavailable, Unsupported
from recollect.stores import base, leases
from recollect.stores.erasure import ByteScan, ErasureSelection
from recollect.stores.health import IntegrityReport, ProgressCallback, StoreStats, ignore_progress
from recollect.stores.redis import health
from recollect.stores.redis.client import RedisClient, RedisTimeouts, redact_url
from recollect.stores.redis.codec import decode_task, encode_expiry
from recollect.stores.redis.commit import RedisBatch, RedisCommitter, RedisServerClock, TaskRows
from recollect.stores.redis.erasure import RedisErasureEvidence, RedisErasureLedger, RedisPhysicalErasure
from recollect.stores.redis.queries import RedisLogs, RedisTasks
from recollect.stores.validation import check_claim, check_ttl, validate_writes
from recollect.stores.writes import Append, Entry, Lease, LogWrite, Save, Task, TaskWrite, Write
from recollect.types import Space

# Building a union for every isinstance call takes longer than the call.
_SUPPORTED_WRITES = LogWrite | TaskWrite


def create_batch_id() -> str:
    return secrets.token_hex(16)


class RedisStore(RedisLogs, RedisTasks, RedisErasureLedger):
    """Logs, tasks and erasures on a Redis or Valkey server or cluster, shared with other processes."""

    def __init__(self, client: RedisClient, clock: RedisServerClock, create_id: Callable[[], str]) -> None:
        super().__init__(client, clock)
        self._create_id = create_id
        self._committer = RedisCommitter(client, clock)
        self._physical_erasure = RedisPhysicalErasure(client)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock = system_clock,
        patience: RedisTimeouts = RedisTimeouts(),
        ids: Callable[[], str] = create_batch_id,
    ) -> RedisStore:
        """Connect; raise Unsupported if the server is too old or loses acknowledged writes."""
        client = RedisClient(url, patience)
        try:
            await client.check_server()
            server_clock = RedisServerClock(clock)
            server_clock.synchronize((await client.run_script("rows", (), ()))[0])
            store = cls(client, server_clock, ids)
            # Created with the store, so that its backups have it too. Reads work if nothing can be written now.
            with suppress(StoreFull, StoreUnavailable):
                await store.salt()
        except BaseException:
            await client.close()
            raise
        return store

    @property
    def url(self) -> str:
        """The URL it was opened with, including the password."""
        return self._client.url

    async def write(self, *writes: Write) -> None:
        if writes:
            await self._commit(writes)

    async def append(self, *appends: Append) -> list[Entry | None]:
        if not appends:
            return []
        seqs, batch = await self._commit(appends)
        added = self._decode_added(seqs, batch.entries)
        counts = Counter(append.space for append in appends)
        exceeds_cap = any(append.cap is not None and append.cap < counts[append.space] for append in appends)
        # An id that existed keeps its earlier entry, and entries beyond the cap are trimmed: read what is stored.
        return await base.read_appended(self, appends) if None in added or exceeds_cap else added

    async def save(self, save: Save) -> int:
        _, batch = await self._commit([save])
        task = decode_task(save.task, batch.rows[save.space, save.task])
        assert task is not None
        return task.version

    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        check_claim(task, owner, ttl)
        request = leases.LeaseRequest(space, task, owner, ttl, plan_hash)
        claimed = await self._change_task(
            space, task, lambda before, now: leases.claim_task(before, request, 0, now), claims=True
        )
        assert claimed is not None
        return leases.build_lease(space, claimed)

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        check_ttl(ttl)
        renewed = await self._change_task(
            lease.space, lease.task, lambda before, now: leases.renew_lease(before, lease, ttl, now)
        )
        assert renewed is not None
        return leases.build_lease(lease.space, renewed)

    async def release(self, lease: Lease) -> None:
        await self._change_task(lease.space, lease.task, lambda before, now: leases.release_lease(before, lease, now))

    async def close(self) -> None:
        await self._client.close()

    async def read_stats(self) -> StoreStats:
        return health.build_stats(await self._client.read_nodes())

    async def check_integrity(self, tell: ProgressCallback = ignore_progress) -> IntegrityReport:
        tell("checksums")
        return IntegrityReport(faults=tuple(await self._find_damaged_checkpoints()))

    async def backup(self, path: str) -> None:
        raise Unsupported(
            f"{redact_url(self._client.url)} cannot be copied to {path}: run BGREWRITEAOF or BGSAVE on the server and "
            "copy its directory, or export the memory"
        )

    # Erasure

    async def wipe(self, id: str, doomed: ErasureSelection) -> None:
        await self._delete(id, doomed)
        await self._physical_erasure.reset_seen_rewrites()

    async def purge_copies(self, *, thorough: bool = False, deferrable: bool = False) -> bool:
        self._committer.clear_cache()
        return await self._physical_erasure.rewrite_files()

    async def scan(self, evidence: bytes, key: bytes) -> ByteScan:
        return await self._physical_erasure.scan(RedisErasureEvidence.decode(key, evidence))

    async def _commit(self, writes: Sequence[Write]) -> tuple[bytes, RedisBatch]:
        checked = validate_writes(writes)
        for write in checked:
            if not isinstance(write, _SUPPORTED_WRITES):
                raise Unsupported(
                    f"the Redis store keeps logs and tasks, not {type(write).__name__}; use another store for that tier"
                )
        return await self._committer.commit_writes(self._create_id(), checked)

    async def _change_task(
        self, space: Space, task: str, change: Callable[[Task | None, datetime], Task | None], *, claims: bool = False
    ) -> Task | None:
        """Replace a task by the result of `change`, unless that is None. The server assigns the fence of a claim."""
        name, changed = (space, task), cast(Task | None, None)

        def build(rows: TaskRows, now: datetime) -> RedisBatch:
            nonlocal changed
            before, batch = decode_task(task, rows[name]), RedisBatch()
            changed = change(before, now)
            if changed is not None:
                batch.add_row(name, changed, encode_expiry(before), claims=claims)
            return batch

        fence, _ = await self._committer.commit(self._create_id(), [space], [name], build)
        return replace(changed, fence=int(fence)) if claims and changed is not None else changed
