"""The Redis store: logs and tasks. Scripts and range commands skip what has expired; one script writes each batch.

A log is a sorted set of headers and a hash of entries. Tasks are a hash of rows for each space, and sorted sets of task
names and expiry times.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from recollect.clock import Clock, from_micros, system_clock, to_utc
from recollect.errors import StoreFull, StoreUnavailable, Unsupported
from recollect.stores import base, health, leases, writes
from recollect.stores.base import Log, LogTail, SpaceTrace, TailLimits, Tasks
from recollect.stores.codec import detect_corruption
from recollect.stores.filters import find_prefix_range
from recollect.stores.health import IntegrityReport, ProgressCallback, StoreStats
from recollect.stores.redis import codec
from recollect.stores.redis.client import RedisClient, RedisNode, RedisTimeouts, redact_url
from recollect.stores.redis.codec import TaskName, decode_task, encode_text, encode_time, parse_space
from recollect.stores.redis.commit import RedisBatch, RedisCommitter, RedisServerClock, TaskChange
from recollect.stores.redis.erasure import RedisErasures
from recollect.stores.validation import ALL_VERSIONS, check_claim, check_ttl, validate_limit, validate_writes
from recollect.stores.writes import Append, Checkpoint, Entry, Lease, Save, Step, Task, TaskStatus, Write
from recollect.types import Space

_TASKS_PER_PAGE = 200
# A script blocks the server while it lists this many logs.
_LOGS_PER_PAGE = 500
# Lua numbers are doubles, exact up to here.
_MAX_SEQ = 1 << 53
MIN_VERSION = (6, 2)
_FSYNC_ALWAYS = "CONFIG SET appendfsync always"

_logger = logging.getLogger("recollect.stores")
# Building a union for every isinstance call takes longer than the call.
_SUPPORTED_WRITES = writes.LogWrite | writes.TaskWrite


class RedisStore(Log, Tasks, RedisErasures):
    """Logs, tasks and erasures on a Redis or Valkey server or cluster, shared with other processes."""

    def __init__(self, client: RedisClient, clock: RedisServerClock, create_id: Callable[[], str]) -> None:
        self._client = client
        self._clock = clock
        self._committer = RedisCommitter(client, clock, create_id)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock = system_clock,
        patience: RedisTimeouts = RedisTimeouts(),
        ids: Callable[[], str] = partial(secrets.token_hex, 16),
    ) -> RedisStore:
        """Connect; raise Unsupported if the server is too old or loses acknowledged writes."""
        client = RedisClient(url, patience)
        try:
            check_nodes(redact_url(url), await client.read_nodes())
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
        task = decode_task(save.task, batch.rows[save.space, save.task])
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
        return build_stats(await self._client.read_nodes())

    async def check_integrity(self, tell: ProgressCallback = health.ignore_progress) -> IntegrityReport:
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
        task = decode_task(name, batch.rows[space, name])
        assert task is not None
        return leases.build_lease(space, task)

    # Reads

    async def trace_spaces(self, tenant: str | None = None) -> list[SpaceTrace]:
        # Indexes name tenants by a hash, so the names are read from the owners. They may list owners without data.
        every = codec.KEY_ROOT + b"{*}:owners"
        indexes = await self._client.scan_keys(every) if tenant is None else [codec.build_owner_index_key(tenant)]
        traces: list[SpaceTrace] = []
        for index in indexes:
            for prefix in await self._client.execute("SMEMBERS", index):
                fields = await self._client.execute("HGETALL", prefix + b"owner")
                if b"names" in fields:
                    traces += await self._trace_owner(prefix, fields)
        return sorted(traces, key=lambda trace: base.get_space_names(trace.space))

    async def _trace_owner(self, prefix: bytes, fields: dict[bytes, bytes]) -> list[SpaceTrace]:
        owner = codec.decode_owner(fields[b"names"])
        with_tasks = set(await self._client.execute("SMEMBERS", prefix + b"spaces"))
        names = [name.partition(b":")[2] for name in fields if name.startswith((b"seq:", b"fence:"))]
        with_entries: set[bytes] = set()
        for space in {parse_space(owner, name.partition(b"/")[0]) for name in names}:
            with_entries.update(await self._read_log_times(space, None))
        traces = []
        for name in {*names, *with_tasks}:
            last, is_log = fields.get(b"seq:" + name), name in with_entries
            with detect_corruption(f"the count of a log of tenant {owner.tenant!r}"):
                last_seq = None if last is None else int(last)
            space = parse_space(owner, name)
            traces.append(SpaceTrace(space, has_entries=is_log, last_seq=last_seq, has_tasks=name in with_tasks))
        # An owner has no spaces if all its tasks were dropped before any was claimed.
        return traces or [SpaceTrace(owner)]

    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        names = [encode_text(id) for id in dict.fromkeys(ids)]
        if not names:
            return []
        now = self._clock()
        values = await self._client.execute("HMGET", codec.build_key(b"data", space), *names)
        found = [codec.decode_entry(value) for value in values if value is not None]
        return [entry for entry in found if entry.expires_at is None or entry.expires_at > now]

    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        count = b"%d" % validate_limit(limit)
        return await self._read_entries(space, self._clock(), b"", count, b"", b"", *map(encode_text, kinds))

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
        seq, count = b"%d" % max(min(after, _MAX_SEQ), -_MAX_SEQ), b"%d" % validate_limit(limit)
        times = (b"" if time is None else encode_time(time) for time in (since, until))
        return await self._read_entries(space, None if hidden else self._clock(), seq, count, *times)

    async def read_tails(self, space: Space, reach: TailLimits) -> list[LogTail]:
        limits = reach.validate()
        numbers = (b"%d" % number for number in (limits.own_entries, limits.other_logs, limits.entries_per_log))
        answer = await self._run_read_script(space, self._clock(), b"tails", codec.build_space_name(space), *numbers)
        return [_build_tail(space, name, rows) for name, rows in zip(answer[::2], answer[1::2], strict=True)]

    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        times = await self._read_log_times(owner, None if hidden else self._clock())
        return [parse_space(owner, name) for _, name in sorted((time, name) for name, time in times.items())]

    async def _read_log_times(self, owner: Space, now: datetime | None) -> dict[bytes, bytes]:
        """Return the time of the last entry of each log with entries; with `now`, of those that are not expired."""
        times: dict[bytes, bytes] = {}
        start = b"-"
        # Oldest first: a log that gets an entry meanwhile appears again on a later page.
        while True:
            last, *rows = await self._run_read_script(owner, now, b"logs", start, b"%d" % _LOGS_PER_PAGE)
            times |= {name: time for time, name in rows}
            if not last:
                return times
            start = b"(" + last

    async def _read_entries(self, space: Space, now: datetime | None, *arguments: bytes) -> list[Entry]:
        name = codec.build_space_name(space)
        answer = await self._run_read_script(space, now, b"entries", name, *arguments)
        return [codec.build_entry(seq, fields) for seq, fields in codec.decode_entry_rows(answer)]

    async def _run_read_script(self, space: Space, now: datetime | None, *rest: bytes) -> Any:
        prefix = codec.build_owner_prefix(space)
        keys = (prefix + b"logs", prefix + b"newest:" + space.tier.encode())
        return await self._client.run_script("read", keys, (prefix, b"" if now is None else encode_time(now), *rest))

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        row = await self._client.execute("HGET", codec.build_key(b"tasks", space), encode_text(task))
        return self._decode_visible_task(task, row, hidden)

    async def tasks(
        self,
        space: Space,
        *,
        status: TaskStatus | None = None,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> list[Task]:
        now = self._clock()
        start, end = find_prefix_range(prefix, after)
        stop = b"+" if end is None else b"(" + encode_text(end)

        def is_wanted(task: Task) -> bool:
            return status in (None, task.status) and not leases.is_expired(task, now)

        return await self._select_tasks(space, b"names", b"[" + encode_text(start), stop, is_wanted, limit)

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        now, end = self._clock(), to_utc(before)
        start = b"-" if after is None else b"(" + codec.encode_expiry(after) + encode_text(after.id)

        def is_wanted(task: Task) -> bool:
            return leases.is_expired_by(task, end, now)

        # Members are `TIME:name`, and a semicolon sorts right after a colon.
        stop = b"(" + encode_time(end) + b";"
        return await self._select_tasks(space, b"ends", start, stop, is_wanted, limit)

    async def checkpoints(
        self, space: Space, task: str, *, version: int | None = None, limit: int = ALL_VERSIONS, hidden: bool = False
    ) -> list[Checkpoint]:
        # The script returns the newest version for an empty text, and all for an asterisk.
        wanted = b"%d" % version if version is not None else b"" if limit == 1 else b"*"
        pairs = await self._run_task_script((space, task), (b"versions",), wanted, hidden)
        found = [codec.decode_checkpoint(version, value) for version, value in pairs]
        return sorted(found, key=lambda saved: saved.version, reverse=True)[: validate_limit(limit)]

    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        pairs = await self._run_task_script((space, task), (b"steps", b"course"), b"", hidden)
        return [codec.decode_step(key, value) for key, value in pairs]

    async def _run_task_script(
        self, name: TaskName, kinds: Sequence[bytes], wanted: bytes, hidden: bool
    ) -> list[tuple[bytes, bytes]]:
        """Return fields and values of a task's hash, or nothing if the task is hidden."""
        space, task = name
        keys = (codec.build_key(b"tasks", space), *(codec.build_task_key(kind, name) for kind in kinds))
        row, *fields = await self._client.run_script("task", keys, (encode_text(task), wanted)) or [None]
        if self._decode_visible_task(task, row, hidden) is None:
            return []
        return list(zip(fields[::2], fields[1::2], strict=True))

    async def _select_tasks(
        self, space: Space, kind: bytes, start: bytes, stop: bytes, is_wanted: Callable[[Task], bool], limit: int
    ) -> list[Task]:
        """Return the first `limit` wanted tasks in a range of their names, or of their expiry times with the names."""
        found: list[Task] = []
        limit = validate_limit(limit)
        while True:
            key = codec.build_key(kind, space)
            page = await self._client.execute("ZRANGEBYLEX", key, start, stop, "LIMIT", 0, _TASKS_PER_PAGE)
            names = page if kind == b"names" else [member.partition(b":")[2] for member in page]
            rows = await self._client.execute("HMGET", codec.build_key(b"tasks", space), *names) if names else []
            tasks = (decode_task(name.decode(), row or b"") for name, row in zip(names, rows, strict=True))
            found += [task for task in tasks if task is not None and is_wanted(task)]
            if len(page) < _TASKS_PER_PAGE or len(found) >= limit:
                return found[:limit]
            start = b"(" + page[-1]

    def _decode_visible_task(self, name: str, row: bytes | None, hidden: bool) -> Task | None:
        task = decode_task(name, row or b"")
        return None if task is None or (not hidden and leases.is_expired(task, self._clock())) else task


def _build_tail(space: Space, name: bytes, answer: bytes) -> LogTail:
    rows = codec.decode_entry_rows(answer)
    kinds, texts = [fields[1] for _, fields in rows], [fields[2] for _, fields in rows]
    return LogTail(parse_space(space, name), texts, kinds, lambda at: codec.build_entry(*rows[at]))


# Checks of a server: version, durability settings, memory and connections.


def build_stats(nodes: Sequence[RedisNode]) -> StoreStats:
    """Return the stats of a server, or of a cluster by its worst node."""
    risks = [risk for node in nodes for risk in _find_setting_risks(node)]
    if any(node.info.get("aof_last_write_status", "ok") != "ok" for node in nodes):
        problem = "the last write to the append-only file failed"
        risks.append(health.DurabilityRisk(problem, "free space on the server's disk"))
    engine = "Valkey" if "valkey_version" in nodes[0].info else "Redis"
    limits = (("memory", "used_memory", "maxmemory"), ("connections", "connected_clients", "maxclients"))
    return StoreStats(
        engine=engine,
        versions={engine: min((node.version for node in nodes), key=_parse_version)},
        durability="a crash of its processes" if risks else "power loss",
        durability_risks=tuple(dict.fromkeys(risks)),
        now=from_micros(nodes[0].time_micros),
        bytes=sum(_read_int(node, "used_memory") for node in nodes),
        blocked_by="",
        resource_usage=tuple(
            health.ResourceUsage(resource, _read_int(node, used), _read_int(node, limit))
            for node in nodes
            for resource, used, limit in limits
        ),
    )


def _find_setting_risks(node: RedisNode) -> list[health.DurabilityRisk]:
    found = []
    policy = node.info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        problem = f"maxmemory-policy is {policy}: data is evicted when memory is full"
        found.append(health.DurabilityRisk(problem, "CONFIG SET maxmemory-policy noeviction"))
    if not _read_int(node, "aof_enabled"):
        problem = "appendonly is no: a crash loses all writes since the last snapshot"
        found.append(health.DurabilityRisk(problem, "CONFIG SET appendonly yes"))
    if node.fsync is None:
        problem = "appendfsync is not readable: unless it is always, a power loss may lose the last checkpoints"
        found.append(health.DurabilityRisk(problem, _FSYNC_ALWAYS, is_severe=False))
    elif node.fsync != "always":
        problem = f"appendfsync is {node.fsync}: a power loss loses the last writes"
        found.append(health.DurabilityRisk(problem, _FSYNC_ALWAYS, is_severe=node.fsync != "everysec"))
    return found


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _read_int(node: RedisNode, name: str) -> int:
    return int(node.info.get(name) or 0)


def check_version(address: str, info: Mapping[str, Any]) -> None:
    """Raise Unsupported below MIN_VERSION. Valkey reports the Redis version that it is compatible with."""
    version = str(info.get("redis_version", "0"))
    if _parse_version(version)[:2] < MIN_VERSION:
        raise Unsupported(f"{address} runs Redis {version}; upgrade it to {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer")


def check_nodes(address: str, nodes: Sequence[RedisNode]) -> None:
    """Raise Unsupported for an old server or one that loses acknowledged writes; warn if it may lose the last ones."""
    for node in nodes:
        check_version(address, node.info)
        for risk in _find_setting_risks(node):
            if risk.is_severe:
                raise Unsupported(f"{address}: {risk.problem}; run: {risk.fix}")
            _logger.warning("%s: %s; run: %s", address, risk.problem, risk.fix)
