"""The Redis store: logs and tasks, each batch written by one script."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from recollect.clock import Clock, system_clock
from recollect.errors import StoreFull, StoreUnavailable, Unsupported
from recollect.stores import base, leases
from recollect.stores.health import IntegrityReport, ProgressCallback, StoreStats, ignore_progress
from recollect.stores.redis import codec, health
from recollect.stores.redis.client import RedisClient, RedisTimeouts, redact_url
from recollect.stores.redis.commit import RedisBatch, RedisCommitter, RedisServerClock, TaskChange
from recollect.stores.redis.erasure import RedisErasures
from recollect.stores.redis.queries import RedisQueries
from recollect.stores.validation import check_claim, check_ttl, validate_writes
from recollect.stores.writes import Append, Entry, Lease, LogWrite, Save, Task, TaskWrite, Write
from recollect.types import Space

# Building a union for every isinstance call takes longer than the call.
_SUPPORTED_WRITES = LogWrite | TaskWrite


class RedisStore(RedisQueries, RedisErasures):
    """Logs, tasks and erasures on a Redis or Valkey server or cluster, shared with other processes."""

    def __init__(self, client: RedisClient, clock: RedisServerClock, create_id: Callable[[], str]) -> None:
        super().__init__(client, clock)
        self._committer = RedisCommitter(client, clock, create_id)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock = system_clock,
        patience: RedisTimeouts = RedisTimeouts(),
        ids: Callable[[], str] = secrets.token_hex,
    ) -> RedisStore:
        """Connect; raise Unsupported if the server is too old or loses acknowledged writes."""
        client = RedisClient(url, patience)
        try:
            health.check_nodes(redact_url(url), await client.read_nodes())
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
        pairs = zip(seqs.split(b","), batch.entries, strict=True)
        added = [codec.decode_entry(seq + value) if seq else None for seq, value in pairs]
        now, counts = self._clock(), Counter(append.space for append in appends)
        exceeds_cap = any(append.cap is not None and append.cap < counts[append.space] for append in appends)
        is_hidden = any(entry is None or (entry.expires_at and entry.expires_at <= now) for entry in added)
        # An id that existed keeps its earlier entry, and entries beyond the cap are trimmed: read what is stored.
        return await base.read_appended(self, appends) if is_hidden or exceeds_cap else added

    async def save(self, save: Save) -> int:
        _, batch = await self._commit([save])
        task = codec.decode_task(save.task, batch.rows[save.space, save.task])
        assert task is not None
        return task.version

    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        check_claim(task, owner, ttl)
        request = leases.LeaseRequest(space, task, owner, ttl, plan_hash)
        return await self._change_lease(space, task, lambda before, now: leases.claim_task(before, request, 0, now))

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        check_ttl(ttl)
        return await self._change_lease(
            lease.space, lease.task, lambda before, now: leases.renew_lease(before, lease, ttl, now)
        )

    async def release(self, lease: Lease) -> None:
        release = TaskChange(lease.space, lease.task, lambda before, now: leases.release_lease(before, lease, now))
        await self._committer.commit([release])

    async def close(self) -> None:
        await self._client.close()

    async def read_stats(self) -> StoreStats:
        return health.build_stats(await self._client.read_nodes())

    async def check_integrity(self, tell: ProgressCallback = ignore_progress) -> IntegrityReport:
        tell("checksums")
        faults = []
        for key in await self._client.scan_keys(codec.KEY_ROOT + b"*:versions:*"):
            task = key.partition(b"}:versions:")[2].decode("utf-8", "replace")
            faults += [
                f"version {int(version)} of task {task!r} is damaged; an older version is used instead"
                for version, value in (await self._client.execute("HGETALL", key)).items()
                if not codec.decode_checkpoint(version, value).intact
            ]
        return IntegrityReport(faults=tuple(faults))

    async def backup(self, path: str) -> None:
        raise Unsupported(
            f"{redact_url(self._client.url)} cannot be copied to {path}: run BGREWRITEAOF or BGSAVE on the server and "
            "copy its directory, or export the memory"
        )

    async def _commit(self, writes: Sequence[Write]) -> tuple[bytes, RedisBatch]:
        checked = validate_writes(writes)
        for write in checked:
            if not isinstance(write, _SUPPORTED_WRITES):
                raise Unsupported(
                    f"the Redis store keeps logs and tasks, not {type(write).__name__}; use another store for that tier"
                )
        return await self._committer.commit(checked)

    async def _change_lease(self, space: Space, name: str, change: Callable[[Task | None, datetime], Task]) -> Lease:
        _, batch = await self._committer.commit([TaskChange(space, name, change)])
        task = codec.decode_task(name, batch.rows[space, name])
        assert task is not None
        return leases.build_lease(space, task)
