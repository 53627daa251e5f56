"""Commits: one Lua script compares the tasks' rows with those that a batch was built from, and writes.

The lease rules are in Python only. A batch is built from the rows that this process saw last. If another client has
changed a row, the script answers with the current rows and the batch is built again. A write is refused only on rows
that were just read. Without conflicts a commit is one round trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from recollect.clock import Clock, from_micros, system_clock, to_utc
from recollect.errors import Conflict, RecollectError, StoreUnavailable, Unsupported
from recollect.stores import leases, writes
from recollect.stores.redis import codec
from recollect.stores.redis.client import RedisClient
from recollect.stores.redis.codec import TaskName, encode_expiry, encode_text
from recollect.stores.validation import check_last_seq
from recollect.stores.writes import Append, LogWrite, Task, TaskWrite, Write
from recollect.types import Space

# The server keeps a batch's answer longer than any client retries.
_RESULT_TTL_MS = b"60000"
_MAX_ATTEMPTS = 1000
_MAX_CACHED_ROWS = 4096
# A batch is built again if its time differs from the server's by more.
_MAX_SKEW_MICROS = b"2000000"

TaskRows = Mapping[TaskName, bytes]


@dataclass(frozen=True, slots=True)
class TaskChange:
    """A change of a lease; None changes nothing. A claim returns the task with a fence of 0: the server assigns it."""

    space: Space
    task: str
    apply: Callable[[Task | None, datetime], Task | None]


_AnyTaskWrite = TaskWrite | TaskChange


@dataclass(slots=True)
class RedisBatch:
    """Arguments of the script: values that must be unchanged, and commands."""

    expected: list[bytes] = field(default_factory=list)
    """Key, field and value of each expected value; for an empty field, the number of fields of the key."""
    commands: list[bytes] = field(default_factory=list)
    rows: dict[TaskName, bytes] = field(default_factory=dict)
    """The rows of the tasks after the batch."""
    entries: list[bytes] = field(default_factory=list)
    """Appended log entries, in order; the server answers with their seqs."""
    expectations: list[Append] = field(default_factory=list)
    """Entries that expect the last seq of their log; the server answers with the number of one that fails."""

    def expect_row(self, name: TaskName, row: bytes) -> None:
        self.expected += (codec.build_key(b"tasks", name[0]), encode_text(name[1]), row)

    def add_fence(self, fence: bytes) -> dict[TaskName, bytes]:
        """Complete the row of a claim with the fence that the server assigned, and return all rows."""
        self.rows = {name: row + fence + b"]" if row.endswith(b",") else row for name, row in self.rows.items()}
        return self.rows

    def add_command(self, verb: bytes, space: Space, *rest: bytes) -> None:
        self.commands += (verb, codec.build_owner_prefix(space), codec.build_space_name(space), *rest)


def build_batch(changes: Sequence[Write | TaskChange], rows: TaskRows, now: datetime) -> RedisBatch:
    """Return the batch of all changes, or raise the first refusal."""
    batch = RedisBatch()
    stored = dict(rows)
    tasks = {name: codec.decode_task(name[1], row) for name, row in rows.items()}
    expiries = {name: encode_expiry(task) for name, task in tasks.items()}
    for name, row in rows.items():
        batch.expect_row(name, row)
    for write in changes:
        if isinstance(write, LogWrite):
            _add_log_write(batch, write)
        elif isinstance(write, _AnyTaskWrite):
            name = (write.space, write.task)
            tasks[name] = _add_task_write(batch, write, tasks[name], now)
            if isinstance(write, writes.DropTask):
                batch.add_command(b"gone", write.space, encode_text(write.task), expiries[name])
                expiries[name], stored[name] = b"", b""
    for name, task in tasks.items():
        batch.rows[name] = row = b"" if task is None else codec.encode_row(task)
        if task is not None and row != stored[name]:
            if task.owner is not None and not task.fence:
                batch.rows[name] = row = row.removesuffix(b"0]")
            batch.add_command(b"row", name[0], encode_text(name[1]), row, expiries[name], encode_expiry(task))
    return batch


def _add_log_write(batch: RedisBatch, write: LogWrite) -> None:
    match write:
        case Append():
            entry, value = write.entry, codec.encode_row(write.entry)
            batch.entries.append(value)
            if write.expect_last is not None:
                batch.expectations.append(write)
            limits = _encode_optional(write.cap), b"%d" % write.seq
            header = codec.encode_entry_header(entry)
            batch.add_command(b"append", write.space, encode_text(entry.id), header, value, *limits)
        case writes.Clear():
            batch.add_command(b"clear", write.space)
        case writes.Drop():
            batch.add_command(b"drop", write.space, b"%d" % len(write.seqs), *(b"%d" % seq for seq in write.seqs))


def _add_task_write(
    batch: RedisBatch, write: TaskWrite | TaskChange, before: Task | None, now: datetime
) -> Task | None:
    """Add the commands for the data of a task, and return the task after the write."""
    name = encode_text(write.task)
    match write:
        case TaskChange():
            return write.apply(before, now) or before
        case writes.DropTask():
            leases.check_drop(before, write, now)
            return None
        case writes.Save():
            task = leases.save_version(before, write, now)
            state = codec.encode_checkpoint(write.state, task.fence, write.schema, now, write.sha256)
            batch.add_command(b"state", write.space, name, b"%d" % task.version, state, _encode_optional(write.keep))
            return task
        case writes.Journal():
            note = codec.encode_row(write.build_step(now))
            batch.add_command(b"note", write.space, name, encode_text(write.step), note)
            return leases.apply_note(before, write, now)
        case writes.SetStatus():
            return leases.apply_note(before, write, now)
        case writes.Restore():
            for row in write.checkpoints:
                state = codec.encode_checkpoint(row.state, row.fence, row.schema, row.at)
                batch.add_command(b"state", write.space, name, b"%d" % row.version, state, b"")
            for step in write.steps:
                batch.add_command(b"note", write.space, name, encode_text(step.key), codec.encode_row(step))
            batch.add_command(b"fenced", write.space, b"%d" % write.highest_fence)
            return leases.restore_task(before, write)


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
            return to_utc(self._fixed_clock())
        return from_micros(self._server_micros + int((time.monotonic() - self._synchronized_at) * 1_000_000))

    def synchronize(self, micros: bytes) -> None:
        """Set the clock to the server's time, in microseconds."""
        self._server_micros, self._synchronized_at = int(micros), time.monotonic()


class RedisCommitter:
    """Commits batches, each exactly once, and caches the task rows that this process saw last."""

    def __init__(self, client: RedisClient, clock: RedisServerClock, create_id: Callable[[], str]) -> None:
        self._client = client
        self._clock = clock
        self._create_id = create_id
        # The server purges by its own time, which another clock does not follow.
        self._purge_after_ms = client.purge_after_ms if clock.max_skew else b""
        self.cached_rows: dict[TaskName, bytes] = {}

    async def commit(self, changes: Sequence[Write | TaskChange]) -> tuple[bytes, RedisBatch]:
        """Build and write a batch until no row has changed meanwhile. Return the server's answer and the batch.

        The answer has the seqs of the appended entries. Raises Unsupported for several owners on a cluster.
        """
        owners = {codec.build_owner_prefix(write.space): write.space for write in changes}
        if self._client.is_cluster and len(owners) > 1:
            raise Unsupported(
                f"a batch on a cluster must have one owner (tenant, user and agent); got {len(owners)}. Their keys may "
                "be on different nodes, which share no transaction: write one batch for each"
            )
        only_deletes = all(not isinstance(write, TaskChange) and writes.is_removal(write) for write in changes)
        names = {prefix: b"" if only_deletes else codec.encode_owner(space) for prefix, space in owners.items()}
        tasks = list(dict.fromkeys((write.space, write.task) for write in changes if isinstance(write, _AnyTaskWrite)))
        rows, is_current = {name: self.cached_rows.get(name, b"") for name in tasks}, not tasks
        keys, batch_id, erased_fence = [prefix + b"done" for prefix in owners], self._create_id(), b""
        for _ in range(_MAX_ATTEMPTS):
            now = self._clock()
            try:
                batch = build_batch(changes, rows, now)
            except RecollectError:
                if is_current:
                    raise
                rows, is_current = await self._load_rows(tasks), True
                continue
            settings = (_RESULT_TTL_MS, codec.encode_time(now), self._clock.max_skew, self._purge_after_ms)
            verdict, *answer = await self.run_batch(keys, batch_id, batch, names, *settings, erased_fence)
            if verdict == b"ok":
                self._cache_rows(batch.add_fence(answer[0]))
                if erased_fence:  # a concurrent erasure may have removed new owners from the index
                    await self._register_owners(owners.values())
                return answer[0], batch
            if verdict == b"stale":
                rows, is_current = dict(zip(tasks, answer, strict=True)), True
            elif verdict == b"index":
                erased_fence = await self._register_owners(owners[prefix] for prefix in answer)
            # Otherwise the clock differed too much, and is synchronized now.
        if tasks:
            raise Conflict(f"too many clients write task {tasks[0][1]!r} at once; try again later")
        raise StoreUnavailable("the Redis server's clock changed during every attempt; check NTP on the server")

    async def run_batch(
        self, keys: Sequence[bytes], batch_id: str, batch: RedisBatch, owners: Mapping[bytes, bytes], *settings: bytes
    ) -> list[bytes]:
        """Run the script once, with the names of the owners by prefix. Return its verdict and answer."""
        arguments = [batch_id.encode(), *settings, b"%d" % (len(batch.expected) // 3), *batch.expected]
        arguments.append(b"%d" % len(batch.expectations))
        for append in batch.expectations:
            log = codec.build_owner_prefix(append.space), codec.build_space_name(append.space)
            arguments += (*log, encode_text(append.entry.id), b"%d" % (append.expect_last or 0))
        arguments.append(b"%d" % len(owners))
        for prefix, names in owners.items():
            arguments += (prefix, names)
        verdict, micros, *answer = await self._client.run_script("commit", keys, [*arguments, *batch.commands])
        self._clock.synchronize(micros)
        if verdict == b"denied":
            raise self._client.build_permission_error(answer[0].decode())
        if verdict == b"conflict":
            number, last_seq = map(int, answer)
            check_last_seq(batch.expectations[number - 1], last_seq)
        return [verdict, *answer]

    async def _load_rows(self, names: Sequence[TaskName]) -> dict[TaskName, bytes]:
        micros, *rows = await self._client.run_script(
            "rows", [codec.build_key(b"tasks", space) for space, _ in names], [encode_text(task) for _, task in names]
        )
        self._clock.synchronize(micros)
        found = dict(zip(names, rows, strict=True))
        self._cache_rows(found)
        return found

    async def _register_owners(self, spaces: Iterable[Space]) -> bytes:
        """Add owners to their tenant's index, which may be on another node, before anything is written for them.

        After a crash in between the index has an owner without data, which readers skip. Returns the highest erased
        fence, which may have been theirs.
        """
        for space in spaces:
            await self._client.execute(
                "SADD", codec.build_owner_index_key(space.tenant), codec.build_owner_prefix(space)
            )
        highest = await self._client.execute("ZSCORE", codec.ERASED_FENCE_KEY, codec.ERASED_FENCE_KEY)
        return b"%d" % int(float(highest or 0))

    def _cache_rows(self, rows: TaskRows) -> None:
        if len(self.cached_rows) + len(rows) > _MAX_CACHED_ROWS:
            self.cached_rows.clear()
        self.cached_rows.update(rows)
