"""Reads of logs and tasks. Scripts and range commands skip what has expired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from recollect.clock import to_utc
from recollect.stores import leases
from recollect.stores.base import Log, LogTail, SpaceTrace, TailLimits, Tasks, get_space_names
from recollect.stores.codec import detect_corruption
from recollect.stores.filters import find_prefix_range
from recollect.stores.redis import codec
from recollect.stores.redis.client import RedisClient
from recollect.stores.redis.codec import TaskName, decode_task, encode_text, encode_time, parse_space
from recollect.stores.redis.commit import RedisServerClock
from recollect.stores.validation import ALL_VERSIONS, validate_limit
from recollect.stores.writes import Checkpoint, Entry, Step, Task, TaskStatus
from recollect.types import Space

_TASKS_PER_PAGE = 200
# A script blocks the server while it lists this many logs.
_LOGS_PER_PAGE = 500
# Lua numbers are doubles, exact up to here.
_MAX_SEQ = 1 << 53


class RedisQueries(Log, Tasks):
    """Reads of logs and tasks.

    A log is a sorted set of headers and a hash of entries. Tasks are a hash of rows for each space, and sorted sets of
    task names and expiry times.
    """

    def __init__(self, client: RedisClient, clock: RedisServerClock) -> None:
        self._client = client
        self._clock = clock

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
        return sorted(traces, key=lambda trace: get_space_names(trace.space))

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
