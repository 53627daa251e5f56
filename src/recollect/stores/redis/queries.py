"""Reads of logs, tasks and owners. Scripts and range commands skip what has expired."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from recollect.clock import to_utc
from recollect.stores import leases
from recollect.stores.base import Log, LogTail, SpaceTrace, TailLimits, Tasks, get_space_names
from recollect.stores.codec import detect_corruption
from recollect.stores.filters import find_prefix_range
from recollect.stores.redis import codec
from recollect.stores.redis.client import RedisClient
from recollect.stores.redis.codec import (
    OwnerNames,
    TaskName,
    decode_owner,
    decode_task,
    encode_text,
    encode_time,
    parse_space,
)
from recollect.stores.redis.commit import RedisServerClock
from recollect.stores.validation import ALL_VERSIONS, validate_limit
from recollect.stores.writes import Checkpoint, Entry, Step, Task, TaskStatus
from recollect.types import Space

_TASKS_PER_PAGE = 200
# A script blocks the server while it lists this many logs.
_LOGS_PER_PAGE = 500
_KEYS_PER_COMMAND = 500
# Lua numbers are doubles, exact up to here.
_MAX_SEQ = 1 << 53


class RedisOwners:
    """Reads across owners. A tenant's index may name owners without data, but never misses one with data."""

    def __init__(self, client: RedisClient, clock: RedisServerClock) -> None:
        self._client = client
        self._clock = clock

    async def trace_spaces(self, tenant: str | None = None) -> list[SpaceTrace]:
        traces: dict[Space, SpaceTrace] = {}
        async for prefix, owner, fields in self._iterate_owners(tenant):
            names = [name.partition(b":")[2] for name in fields if name.startswith((b"seq:", b"fence:"))]
            logs = await self._client.execute("HKEYS", prefix + b"logs")
            with_entries = await self._find_existing(prefix, logs)
            with_tasks = set(await self._client.execute("SMEMBERS", prefix + b"spaces"))
            with detect_corruption(f"the count of a log of tenant {owner[0]!r}"):
                for name in (*names, *logs, *with_tasks):
                    space, last = parse_space(owner, name), fields.get(b"seq:" + name)
                    traces[space] = SpaceTrace(
                        space,
                        has_entries=name in with_entries,
                        last_seq=None if last is None else int(last),
                        has_tasks=name in with_tasks,
                    )
            if not names and not logs and not with_tasks:  # all its tasks were dropped before any was claimed
                space = Space(owner[0], "checkpoints", owner[1], owner[2])
                traces[space] = SpaceTrace(space)
        return sorted(traces.values(), key=lambda trace: get_space_names(trace.space))

    async def _iterate_owners(
        self, tenant: str | None = None
    ) -> AsyncIterator[tuple[bytes, OwnerNames, dict[bytes, bytes]]]:
        """Yield key prefix, names and stored fields of each owner, of one tenant or of all."""
        # Indexes name tenants by a hash, so the names are read from the owners.
        every = codec.KEY_ROOT + b"{*}:owners"
        indexes = await self._client.scan_keys(every) if tenant is None else [codec.build_owner_index_key(tenant)]
        for index in indexes:
            for prefix in await self._client.execute("SMEMBERS", index):
                fields = await self._client.read_hash(prefix + b"owner")
                if b"names" in fields:
                    yield prefix, decode_owner(fields[b"names"]), fields

    async def _find_existing(self, prefix: bytes, names: Sequence[bytes]) -> set[bytes]:
        """Return the names of logs that have entries: the server may have purged a log that its owner still lists."""
        found: set[bytes] = set()
        for start in range(0, len(names), _KEYS_PER_COMMAND):
            page = names[start : start + _KEYS_PER_COMMAND]
            keys = [prefix + b"order:" + name for name in page]
            if await self._client.execute("EXISTS", *keys) == len(page):
                found.update(page)
            else:
                found.update(
                    [name for name, key in zip(page, keys, strict=True) if await self._client.execute("EXISTS", key)]
                )
        return found

    def _get_visibility_time(self, hidden: bool) -> datetime | None:
        """Return the time by which expired rows are hidden, or None to hide nothing."""
        return None if hidden else self._clock()


class RedisLogs(RedisOwners, Log):
    """Reads of logs."""

    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        names = [encode_text(id) for id in dict.fromkeys(ids)]
        if not names:
            return []
        now = self._clock()
        values = await self._client.execute("HMGET", codec.build_key(b"data", space), *names)
        found = [codec.decode_entry(value) for value in values if value is not None]
        return [entry for entry in found if _is_live(entry, now)]

    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        now, count = encode_time(self._clock()), b"%d" % validate_limit(limit)
        return await self._read_entries(space, now, b"", count, b"", b"", *map(encode_text, kinds))

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
        now = b"" if hidden else encode_time(self._clock())
        seq, count = b"%d" % max(min(after, _MAX_SEQ), -_MAX_SEQ), b"%d" % validate_limit(limit)
        times = (b"" if time is None else encode_time(time) for time in (since, until))
        return await self._read_entries(space, now, seq, count, *times)

    async def read_tails(self, space: Space, reach: TailLimits) -> list[LogTail]:
        limits = reach.validate()
        numbers = (b"%d" % number for number in (limits.own_entries, limits.other_logs, limits.entries_per_log))
        answer = await self._run_logs_script(space, self._clock(), codec.build_space_name(space), *numbers)
        # The rows of the log itself, then name and rows of each other log.
        spaces = [space, *(_parse_log(space, name) for name in answer[2::2])]
        return [_build_tail(log, rows) for log, rows in zip(spaces, answer[1::2], strict=True)]

    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        now = self._get_visibility_time(hidden)
        times: dict[bytes, bytes] = {}
        start = b"-"
        # Oldest first: a log that gets an entry meanwhile appears again on a later page.
        while True:
            last, *rows = await self._run_logs_script(owner, now, b"", start, b"%d" % _LOGS_PER_PAGE)
            times |= {name: time for time, name in rows}
            if not last:
                return [_parse_log(owner, name) for _, name in sorted((time, name) for name, time in times.items())]
            start = b"(" + last

    def _decode_added(self, seqs: bytes, entries: Sequence[bytes]) -> list[Entry | None]:
        """Return appended entries with the seqs that the server answered; None for those that it did not add."""
        now, pairs = self._clock(), zip(seqs.split(b","), entries, strict=True)
        added = [codec.decode_entry(seq + value) if seq else None for seq, value in pairs]
        return [entry if entry is not None and _is_live(entry, now) else None for entry in added]

    async def _read_entries(self, space: Space, *arguments: bytes) -> list[Entry]:
        keys = (codec.build_key(b"order", space), codec.build_key(b"data", space))
        answer = await self._client.run_script("read", keys, arguments)
        return [codec.build_entry(seq, fields) for seq, fields in codec.decode_entry_rows(answer)]

    async def _run_logs_script(self, space: Space, now: datetime | None, *rest: bytes) -> Any:
        prefix = codec.build_owner_prefix(space)
        keys = (prefix + b"logs", prefix + b"newest:" + space.tier.encode())
        visible_at = b"" if now is None else encode_time(now)
        return await self._client.run_script("logs", keys, (prefix, visible_at, *rest))


def _is_live(entry: Entry, now: datetime) -> bool:
    return entry.expires_at is None or entry.expires_at > now


def _parse_log(owner: Space, name: bytes) -> Space:
    return replace(owner, session=parse_space((owner.tenant, owner.user, owner.agent), name).session)


def _build_tail(space: Space, answer: bytes) -> LogTail:
    rows = codec.decode_entry_rows(answer)
    kinds, texts = [fields[1] for _, fields in rows], [fields[2] for _, fields in rows]
    return LogTail(space, texts, kinds, lambda at: codec.build_entry(*rows[at]))


class RedisTasks(RedisOwners, Tasks):
    """Reads of tasks: a hash of rows for each space, and sorted sets of task names and expiry times."""

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
        pages = self._iterate_pages(codec.build_key(b"names", space), b"[" + encode_text(start), stop)
        return await self._select_tasks(
            space,
            pages,
            lambda task: status in (None, task.status) and not leases.is_expired(task, now),
            validate_limit(limit),
        )

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        now, end = self._clock(), to_utc(before)
        start = b"-" if after is None else b"(" + codec.encode_expiry(after) + encode_text(after.id)
        # Members are `TIME:name`, and a semicolon sorts right after a colon.
        pages = self._iterate_pages(codec.build_key(b"ends", space), start, b"(" + encode_time(end) + b";")
        names = ([member.partition(b":")[2] for member in page] async for page in pages)
        return await self._select_tasks(
            space, names, lambda task: leases.is_expired_by(task, end, now), validate_limit(limit)
        )

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

    async def _find_damaged_checkpoints(self) -> list[str]:
        """Return a sentence for each checkpoint with a wrong checksum."""
        found = []
        for key in await self._client.scan_keys(codec.KEY_ROOT + b"*:versions:*"):
            task = key.partition(b"}:versions:")[2].decode("utf-8", "replace")
            found += [
                f"version {int(version)} of task {task!r} is damaged; an older version is used instead"
                for version, value in (await self._client.read_hash(key)).items()
                if not codec.decode_checkpoint(version, value).intact
            ]
        return found

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

    async def _iterate_pages(self, key: bytes, start: bytes, stop: bytes) -> AsyncIterator[list[bytes]]:
        while True:
            page = await self._client.execute("ZRANGEBYLEX", key, start, stop, "LIMIT", 0, _TASKS_PER_PAGE)
            if page:
                yield page
            if len(page) < _TASKS_PER_PAGE:
                return
            start = b"(" + page[-1]

    async def _select_tasks(
        self, space: Space, pages: AsyncIterator[list[bytes]], is_wanted: Callable[[Task], bool], limit: int
    ) -> list[Task]:
        """Return the first `limit` tasks of the pages of names that are wanted."""
        found: list[Task] = []
        if not limit:
            return found
        async for names in pages:
            rows = await self._client.execute("HMGET", codec.build_key(b"tasks", space), *names)
            tasks = (decode_task(name.decode(), row or b"") for name, row in zip(names, rows, strict=True))
            found += [task for task in tasks if task is not None and is_wanted(task)]
            if len(found) >= limit:
                break
        return found[:limit]

    def _decode_visible_task(self, name: str, row: bytes | None, hidden: bool) -> Task | None:
        task = decode_task(name, row or b"")
        return None if task is None or (not hidden and leases.is_expired(task, self._clock())) else task
