"""Mutants: faults injected into the code of child processes, each of which the crash tests must detect."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw

from recollect.stores import leases
from recollect.stores.sqlite import connection, tasks, threads
from recollect.stores.sqlite.records import find_space_id
from recollect.stores.sqlite.threads import SqliteChange, SqliteReserveFile, SqliteWriter
from recollect.stores.writes import Checkpoint, Lease, Save, Task, TaskWrite, Write

VARIABLE = "CRASH_MUTANT"


def synchronous_normal() -> None:
    """Commit everything in the fast class, without waiting for the disk."""
    set_synchronous = SqliteWriter._set_synchronous

    def never_full(self: SqliteWriter, *, full: bool) -> None:
        set_synchronous(self, full=False)

    setattr(SqliteWriter, "_set_synchronous", never_full)  # noqa: B010 - a method, which mypy would not have assigned


def acknowledge_before_commit() -> None:
    """Acknowledge a write when it is queued, before it is committed."""

    async def submit(self: SqliteWriter, change: SqliteChange[Any], *, durable: bool, frees: bool = False) -> object:
        self.enqueue(change, durable=durable, frees=frees)
        return None

    setattr(SqliteWriter, "submit", submit)  # noqa: B010


def deferred_begin() -> None:
    """Start transactions as readers, which take the write lock too late to wait for it."""

    # Our batches write first, which would hide the fault.
    setattr(threads, "_BEGIN", "begin; select max(id) from spaces")  # noqa: B010


def ignore_fence() -> None:
    """Accept writes with the fence of an expired lease."""

    def check_nothing(task: Task | None, name: str, fence: int) -> Task:
        assert task is not None
        return task

    setattr(leases, "_check_fence", check_nothing)  # noqa: B010


def ignore_lost_lease() -> None:
    """Let a worker continue after it lost its lease, so that only the store's fence rejects it."""
    from recollect.durable.lease import Heartbeat

    def ignore(self: Heartbeat, why: str = "") -> None:
        return None

    setattr(Heartbeat, "check", ignore)  # noqa: B010
    setattr(Heartbeat, "_mark_lost", ignore)  # noqa: B010


def drop_expired_on_write() -> None:
    """Drop an expired task on each write or claim, and start it from the beginning."""
    apply, claim = tasks.apply_task_writes, tasks.claim_task

    def drop(connection: apsw.Connection, space: int, name: str, now: datetime) -> None:
        found = tasks._load_task_row(connection, space, name)
        if found is not None and leases.is_expired(found, now):
            tasks._drop_task(connection, space, name)

    def apply_after_drop(connection: apsw.Connection, space: int, writes: Sequence[TaskWrite], now: datetime) -> None:
        drop(connection, space, writes[0].task, now)
        apply(connection, space, writes, now)

    def claim_after_drop(connection: apsw.Connection, request: leases.LeaseRequest, now: datetime) -> Lease:
        space = find_space_id(connection, request.space)
        if space is not None:
            drop(connection, space, request.task, now)
        return claim(connection, request, now)

    setattr(tasks, "apply_task_writes", apply_after_drop)  # noqa: B010
    setattr(tasks, "claim_task", claim_after_drop)  # noqa: B010


def purge_without_grace() -> None:
    """Drop tasks in the lifecycle as soon as they expire, without grace and by the local clock."""
    from recollect.lifecycle import runner
    from recollect.lifecycle.context import LifecycleRun
    from recollect.lifecycle.retention import drop_expired_tasks as drop

    async def at_once(run: LifecycleRun) -> None:
        grace = timedelta(seconds=run.context.settings.purge_grace_seconds)
        await drop(replace(run, now=run.now + grace))

    setattr(runner, "drop_expired_tasks", at_once)  # noqa: B010
    use_client_clock()


def use_client_clock() -> None:
    """Use the clock of the client instead of the server's."""
    from recollect.stores import factory
    from recollect.stores.redis import commit

    for module in (factory, commit):
        setattr(module, "system_clock", None)  # noqa: B010 - no clock equals the default one now


def last_write_wins() -> None:
    """Check neither lease nor fence nor version: the last write wins."""
    ignore_lost_lease()
    ignore_fence()
    saved = leases.save_version

    def unversioned(task: Task | None, save: Save, now: datetime) -> Task:
        return saved(task, replace(save, expect=None), now)

    setattr(leases, "save_version", unversioned)  # noqa: B010


def asynchronous_commit() -> None:
    """Let PostgreSQL acknowledge a commit before its log is on disk."""
    from recollect.stores.postgres.transactions import PostgresServer

    writing = PostgresServer.begin_write

    def weak(self: PostgresServer, *about: Any, durable: bool = True) -> Any:
        return writing(self, *about, durable=False)

    setattr(PostgresServer, "begin_write", weak)  # noqa: B010


def skip_row_comparison() -> None:
    """Ignore lost leases, and commit to Redis without comparing the rows with those that were read."""
    from recollect.stores.redis import client as redis

    ignore_lost_lease()
    script, compared = redis._load_script, b"stale = stale or held ~= seen"

    def uncompared(name: str) -> tuple[bytes, bytes]:
        source, sha = script(name)
        assert name != "commit" or compared in source
        # Under an unknown hash, so that the client sends the text each time.
        return source.replace(compared, b""), b"0" * 40 if name == "commit" else sha

    setattr(redis, "_load_script", uncompared)  # noqa: B010


def skip_intent() -> None:
    """Start steps without writing an intent."""
    from recollect.durable.task_runner import TaskRun

    intent = TaskRun._build_intent

    def build_no_intent(self: TaskRun, *args: Any) -> tuple[Write, ...]:
        intent(self, *args)  # which also counts the attempt
        return ()

    setattr(TaskRun, "_build_intent", build_no_intent)  # noqa: B010


def split_batches() -> None:
    """Write a batch in one transaction for each write."""
    from recollect.durable import task_runner

    write = task_runner.TaskRun.write

    async def write_one_by_one(self: task_runner.TaskRun, *writes: Write) -> None:
        for item in writes:
            await write(self, item)

    async def write_separately(*shares: tuple[Any, Any]) -> None:
        for store, writes in shares:
            for item in writes:
                await store.write(item)

    setattr(task_runner.TaskRun, "write", write_one_by_one)  # noqa: B010
    setattr(task_runner, "write_in_order", write_separately)  # noqa: B010


def ignore_checksum() -> None:
    """Ignore the checksum of checkpoints."""
    read = tasks._decode_checkpoint

    def decode_intact(row: tuple[Any, ...]) -> Checkpoint:
        return replace(read(row), intact=True)

    setattr(tasks, "_decode_checkpoint", decode_intact)  # noqa: B010


def no_reserve() -> None:
    """Reserve no disk space, and never restart the write-ahead log to free some."""

    def do_nothing(self: object) -> None:
        return None

    setattr(SqliteReserveFile, "reserve", do_nothing)  # noqa: B010
    setattr(SqliteWriter, "_make_room", do_nothing)  # noqa: B010


def ignore_errno() -> None:
    """Ignore the errno of the system: only SQLite's own error code counts as a full disk."""
    setattr(connection, "_DISK_FULL_ERRNOS", frozenset())  # noqa: B010


def insecure_term_delete() -> None:
    """Delete from the full-text index without `secure-delete`, which leaves the terms in place."""
    from recollect.stores.sqlite.erasure import SqliteErasure

    delete = SqliteErasure._delete_selection

    def delete_insecurely(self: SqliteErasure, connection: apsw.Connection, *arguments: Any) -> None:
        connection.execute("insert into words (words, rank) values ('secure-delete', 0)")
        delete(self, connection, *arguments)

    setattr(SqliteErasure, "_delete_selection", delete_insecurely)  # noqa: B010


def keep_wal() -> None:
    """Leave the write-ahead log as it is."""
    from recollect.stores.sqlite import erasure

    setattr(erasure, "truncate_wal", lambda _: True)  # noqa: B010


def keep_page_gaps() -> None:
    """Leave the unused bytes between the rows of a page as they are."""
    from recollect.stores.erasure import ByteScan
    from recollect.stores.sqlite import erasure

    def only_empty_wal(path: Path, key: Any, **_: Any) -> Any:
        return ByteScan(waits=() if erasure.empty_wal(path, key) else ("busy",))

    setattr(erasure, "purge_deleted_bytes", only_empty_wal)  # noqa: B010


def rekey_in_place() -> None:
    """Overwrite the file with the rekeyed copy page by page, instead of renaming the copy."""
    import time

    from recollect.stores.sqlite import backup

    def written_over(_: object, aside: Path, path: Path, *, wiped: bool) -> None:
        with aside.open("rb") as copy, path.open("r+b") as file:
            while page := copy.read(8192):
                file.write(page)
                file.flush()
                os.fsync(file.fileno())
                time.sleep(0.002)  # as fsync on a disk: the files of tests are in memory, where it takes no time
            file.truncate()
        aside.unlink()

    setattr(backup, "_replace_file", written_over)  # noqa: B010


def write_ledger_last() -> None:
    """Delete the rows first, and write the erasure to the ledger afterwards."""
    from recollect.durable.failpoints import reach_failpoint
    from recollect.erasure.eraser import Eraser
    from recollect.erasure.selection import ErasureSelector
    from recollect.erasure.subject import ErasureSubject
    from recollect.stores.erasure import ErasureRecord

    erase = Eraser.erase

    async def delete_first(self: Eraser, subject: ErasureSubject, *, thorough: bool = False) -> Any:
        store: Any = self._stores[0]
        selection, now = await ErasureSelector(subject, self._stores).select_rows(store), self._clock()

        def deleted(connection: apsw.Connection) -> None:
            record = ErasureRecord(id="x", subject="x", parts=(), requested_at=now)
            store.change_erasure.__wrapped__(store, connection, "x", lambda row, last: record)
            store._delete_selection(connection, "x", selection, now)
            connection.execute("delete from erasures")

        await store._writer.submit(deleted, durable=True)
        reach_failpoint("erase.deleted")
        return await erase(self, subject, thorough=thorough)

    setattr(Eraser, "erase", delete_first)  # noqa: B010


def keep_aof() -> None:
    """Do not rewrite the append-only file of Redis."""
    from recollect.stores.redis.erasure import RedisErasures

    async def as_it_is(self: RedisErasures, **options: bool) -> bool:
        return True

    setattr(RedisErasures, "purge_copies", as_it_is)  # noqa: B010


def keep_snapshot() -> None:
    """Do not rewrite the snapshot of Redis."""
    from recollect.stores.redis.erasure import RedisErasures

    asked = RedisErasures._request_rewrite

    async def not_the_snapshot(self: RedisErasures, node: Any, command: str, *rest: Any) -> str:
        return "" if command == "BGSAVE" else await asked(self, node, command, *rest)

    setattr(RedisErasures, "_request_rewrite", not_the_snapshot)  # noqa: B010


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant
    for mutant in (
        synchronous_normal,
        acknowledge_before_commit,
        deferred_begin,
        ignore_fence,
        ignore_lost_lease,
        drop_expired_on_write,
        purge_without_grace,
        last_write_wins,
        skip_row_comparison,
        asynchronous_commit,
        skip_intent,
        split_batches,
        ignore_checksum,
        no_reserve,
        ignore_errno,
        insecure_term_delete,
        keep_wal,
        keep_page_gaps,
        rekey_in_place,
        write_ledger_last,
        keep_aof,
        keep_snapshot,
    )
}


def apply() -> None:
    """Apply the mutant that the environment names, if any."""
    if name := os.environ.get(VARIABLE):
        MUTANTS[name]()
