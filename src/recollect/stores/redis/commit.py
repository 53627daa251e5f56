"""Commits: one Lua script compares the tasks' rows with those that a batch was built from, and writes.

The lease rules are in Python only. A batch is built from the rows that this process saw last. If another client has
changed a row, the script answers with the current rows and the batch is built again. A write is refused only on rows
that were just read. Without conflicts a commit is one round trip.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from recollect.clock import Clock, from_micros, system_clock, to_micros, to_utc
from recollect.errors import Conflict, RecollectError, StoreUnavailable, Unsupported
from recollect.stores import leases
from recollect.stores.redis import codec
from recollect.stores.redis.client import RedisClient
from recollect.stores.redis.codec import TaskName, encode_expiry, encode_text
from recollect.stores.validation import check_last_seq
from recollect.stores.writes import (
    Append,
    Clear,
    Drop,
    DropTask,
    Journal,
    LogWrite,
    Restore,
    Save,
    SetStatus,
    Task,
    TaskWrite,
    Write,
    is_removal,
)
from recollect.types import Space

# The server keeps a batch's answer longer than any client retries.
_RESULT_TTL_MS = b"60000"
_MAX_ATTEMPTS = 1000
_MAX_CACHED_ROWS = 4096
# A batch is built again if its time differs from the server's by more.
_MAX_SKEW_MICROS = b"2000000"
# Arguments of the script for a batch whose owners are assumed to be indexed already.
_NO_NEW_OWNERS = (b"0", b"0")

TaskRows = Mapping[TaskName, bytes]


@dataclass(slots=True)
class RedisBatch:
    """The commands for the script, and the task rows after it. It completes `open_rows` with the fence it assigns."""

    commands: list[bytes] = field(default_factory=list)
    rows: dict[TaskName, bytes] = field(default_factory=dict)
    open_rows: dict[TaskName, bytes] = field(default_factory=dict)
    entries: list[bytes] = field(default_factory=list)
    """Appended log entries, in order; the server answers with their seqs."""
    expectations: list[Append] = field(default_factory=list)
    """Entries that expect the last seq of their log; the server answers with the number of one that fails."""

    def add_command(self, verb: bytes, space: Space, *rest: bytes) -> None:
        self.commands += (verb, codec.build_owner_prefix(space), codec.build_space_name(space), *rest)

    def add_row(self, name: TaskName, task: Task, previous_expiry: bytes, *, claims: bool = False) -> None:
        row = codec.encode_open_row(task) if claims else codec.encode_task_row(task)
        (self.open_rows if claims else self.rows)[name] = row
        verb = b"claim" if claims else b"row"
        self.add_command(verb, name[0], encode_text(name[1]), row, previous_expiry, encode_expiry(task))


Build = Callable[[TaskRows, datetime], RedisBatch]
"""Builds a batch from the tasks' rows at a time, or raises the refusal."""


def build_batch(writes: Sequence[Write], rows: TaskRows, now: datetime) -> RedisBatch:
    """Return the batch of all writes, or raise the first refusal."""
    batch = RedisBatch()
    stored = dict(rows)
    tasks = {name: codec.decode_task(name[1], row) for name, row in rows.items()}
    expiries = {name: encode_expiry(task) for name, task in tasks.items()}
    for write in writes:
        if isinstance(write, LogWrite):
            _add_log_write(batch, write)
        elif isinstance(write, TaskWrite):
            name = (write.space, write.task)
            tasks[name] = _add_task_write(batch, write, tasks[name], now)
            if isinstance(write, DropTask):
                batch.add_command(b"gone", write.space, encode_text(write.task), expiries[name])
                expiries[name], stored[name] = b"", b""
    for name, task in tasks.items():
        if task is None:
            batch.rows[name] = b""
        elif codec.encode_task_row(task) == stored[name]:
            batch.rows[name] = stored[name]
        else:
            batch.add_row(name, task, expiries[name])
    return batch


def _add_log_write(batch: RedisBatch, write: LogWrite) -> None:
    match write:
        case Append():
            entry, value = write.entry, codec.encode_entry(write.entry)
            batch.entries.append(value)
            if write.expect_last is not None:
                batch.expectations.append(write)
            limits = _encode_optional(write.cap), b"%d" % write.seq
            header = codec.encode_entry_header(entry)
            batch.add_command(b"append", write.space, encode_text(entry.id), header, value, *limits)
        case Clear():
            batch.add_command(b"clear", write.space)
        case Drop():
            batch.add_command(b"drop", write.space, b"%d" % len(write.seqs), *(b"%d" % seq for seq in write.seqs))


def _add_task_write(batch: RedisBatch, write: TaskWrite, before: Task | None, now: datetime) -> Task | None:
    """Add a write's commands, and return the task after it."""
    name = encode_text(write.task)
    match write:
        case DropTask():
            leases.check_drop(before, write, now)
            return None
        case Save():
            task = leases.save_version(before, write, now)
            state = codec.encode_state(task, write)
            batch.add_command(b"state", write.space, name, b"%d" % task.version, state, _encode_optional(write.keep))
            return task
        case Journal():
            task = leases.apply_note(before, write, now)
            batch.add_command(
                b"note", write.space, name, encode_text(write.step), codec.encode_step(write.build_step(now))
            )
            return task
        case SetStatus():
            return leases.apply_note(before, write, now)
        case Restore():
            task = leases.restore_task(before, write)
            for row in write.checkpoints:
                state = codec.encode_checkpoint(row)
                batch.add_command(b"state", write.space, name, b"%d" % row.version, state, b"")
            for step in write.steps:
                batch.add_command(b"note", write.space, name, encode_text(step.key), codec.encode_step(step))
            batch.add_command(b"fenced", write.space, b"%d" % write.highest_fence)
            return task


def _encode_optional(number: int | None) -> bytes:
    return b"" if number is None else b"%d" % number


class RedisServerClock:
    """The server's time, extrapolated with the local monotonic clock; a clock other than the system's is used as is."""

    def __init__(self, clock: Clock) -> None:
        self._fixed_clock = None if clock is system_clock else clock
        self._server_micros = 0
        self._synchronized_at = time.monotonic()

    @property
    def max_skew(self) -> bytes:
        """The difference from the server's time at which the script refuses a batch; empty for no limit."""
        return _MAX_SKEW_MICROS if self._fixed_clock is None else b""

    def __call__(self) -> datetime:
        if self._fixed_clock is not None:
            return from_micros(to_micros(to_utc(self._fixed_clock())))
        return from_micros(self._server_micros + int((time.monotonic() - self._synchronized_at) * 1_000_000))

    def synchronize(self, micros: bytes) -> None:
        """Set the clock to the server's time, in microseconds."""
        self._server_micros, self._synchronized_at = int(micros), time.monotonic()


class RedisCommitter:
    """Commits batches, each exactly once, and caches the task rows that this process saw last."""

    def __init__(self, client: RedisClient, clock: RedisServerClock) -> None:
        self._client = client
        self._clock = clock
        # The server purges by its own time, which another clock does not follow.
        self._purge_after_ms = client.purge_after_ms if clock.max_skew else b""
        self._cached_rows: OrderedDict[TaskName, bytes] = OrderedDict()

    async def commit_writes(self, batch_id: str, writes: Sequence[Write]) -> tuple[bytes, RedisBatch]:
        """Commit writes. Return the seqs of the appended entries, and the batch."""
        tasks = dict.fromkeys((write.space, write.task) for write in writes if isinstance(write, TaskWrite))
        only_deletes = all(is_removal(write) for write in writes)
        spaces = [write.space for write in writes]
        return await self.commit(batch_id, spaces, list(tasks), partial(build_batch, writes), only_deletes=only_deletes)

    async def commit(
        self,
        batch_id: str,
        spaces: Sequence[Space],
        tasks: Sequence[TaskName],
        build: Build,
        *,
        only_deletes: bool = False,
    ) -> tuple[bytes, RedisBatch]:
        """Build and write a batch until no row has changed meanwhile. Return the server's answer and the batch.

        Raises what `build` raises on current rows, and Unsupported for several owners on a cluster.
        """
        owners = {codec.build_owner_prefix(space): space for space in spaces}
        if self._client.is_cluster and len(owners) > 1:
            raise Unsupported(
                f"a batch on a cluster must have one owner (tenant, user and agent); got {len(owners)}. Their keys may "
                "be on different nodes, which share no transaction: write one batch for each"
            )
        names = {prefix: b"" if only_deletes else codec.encode_owner(space) for prefix, space in owners.items()}
        rows, is_current = await self._get_rows(tasks)
        new_owners = _NO_NEW_OWNERS
        for _ in range(_MAX_ATTEMPTS):
            now = self._clock()
            try:
                batch = build(rows, now)
            except RecollectError:
                if is_current:
                    raise
                rows, is_current = await self._load_rows(tasks), True
                continue
            verdict, *answer = await self._run(batch_id, names, rows, batch, new_owners, now)
            match verdict:
                case b"ok":
                    fenced = {name: row + answer[0] + b"]" for name, row in batch.open_rows.items()}
                    self._cache_rows(batch.rows | fenced)
                    if new_owners is not _NO_NEW_OWNERS:  # a concurrent erasure may have removed them from the index
                        await self._register_owners(owners.values())
                    return answer[0], batch
                case b"stale":
                    rows, is_current = dict(zip(tasks, answer, strict=True)), True
                    self._cache_rows(rows)
                case b"index":
                    new_owners = await self._register_owners(owners[prefix] for prefix in answer)
                case _:
                    pass  # the clock differed too much, and is synchronized now
        raise _build_attempts_error(tasks)

    async def _run(
        self,
        batch_id: str,
        owners: Mapping[bytes, bytes],
        rows: TaskRows,
        batch: RedisBatch,
        new_owners: tuple[bytes, bytes],
        now: datetime,
    ) -> list[bytes]:
        """Run the script once, with the names of the owners by prefix. Return its verdict and answer."""
        limits = (_RESULT_TTL_MS, codec.encode_time(now), self._clock.max_skew, self._purge_after_ms)
        arguments = [batch_id.encode(), *limits, *new_owners, b"%d" % len(owners)]
        for prefix, names in owners.items():
            arguments += (prefix, names)
        arguments.append(b"%d" % len(rows))
        for (space, task), row in rows.items():
            arguments += (codec.build_key(b"tasks", space), encode_text(task), row)
        arguments.append(b"%d" % len(batch.expectations))
        for append in batch.expectations:
            log = codec.build_owner_prefix(append.space), codec.build_space_name(append.space)
            arguments += (*log, encode_text(append.entry.id), b"%d" % (append.expect_last or 0))
        keys = [prefix + b"done" for prefix in owners]
        verdict, micros, *answer = await self._client.run_script("commit", keys, [*arguments, *batch.commands])
        self._clock.synchronize(micros)
        if verdict == b"denied":
            raise self._client.build_permission_error(answer[0].decode())
        if verdict == b"conflict":
            number, last_seq = map(int, answer)
            check_last_seq(batch.expectations[number - 1], last_seq)
        return [verdict, *answer]

    async def _get_rows(self, names: Sequence[TaskName]) -> tuple[TaskRows, bool]:
        """Return the tasks' rows, from the cache if it has all, and whether they were just read."""
        if names and all(name in self._cached_rows for name in names):
            return {name: self._cached_rows[name] for name in names}, False
        return await self._load_rows(names) if names else {}, True

    async def _load_rows(self, names: Sequence[TaskName]) -> dict[TaskName, bytes]:
        micros, *rows = await self._client.run_script(
            "rows", [codec.build_key(b"tasks", space) for space, _ in names], [encode_text(task) for _, task in names]
        )
        self._clock.synchronize(micros)
        found = dict(zip(names, rows, strict=True))
        self._cache_rows(found)
        return found

    async def _register_owners(self, spaces: Iterable[Space]) -> tuple[bytes, bytes]:
        """Add owners to their tenant's index, which may be on another node, before anything is written for them.

        After a crash in between the index has an owner without data, which readers skip. Returns for the script that
        the owners are registered, and the highest erased fence, which may have been theirs.
        """
        for space in spaces:
            await self._client.execute(
                "SADD", codec.build_owner_index_key(space.tenant), codec.build_owner_prefix(space)
            )
        highest = await self._client.execute("ZSCORE", codec.ERASED_FENCE_KEY, codec.ERASED_FENCE_KEY)
        return b"1", b"%d" % int(float(highest or 0))

    def clear_cache(self) -> None:
        self._cached_rows.clear()

    def _cache_rows(self, rows: TaskRows) -> None:
        for name, row in rows.items():
            self._cached_rows[name] = row
            self._cached_rows.move_to_end(name)
        while len(self._cached_rows) > _MAX_CACHED_ROWS:
            self._cached_rows.popitem(last=False)


def _build_attempts_error(tasks: Sequence[TaskName]) -> RecollectError:
    if tasks:
        return Conflict(f"too many clients write task {tasks[0][1]!r} at once; try again later")
    return StoreUnavailable("the Redis server's clock changed during every attempt; check NTP on the server")
