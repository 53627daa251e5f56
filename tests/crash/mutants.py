"""Faults put into the product on purpose, in child processes only: the harness has to see each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw

from recollect.stores import leases
from recollect.stores.base import Checkpoint, Lease, Task
from recollect.stores.ops import Save, TaskWrite, Write
from recollect.stores.sqlite import connection, tasks, writer
from recollect.stores.sqlite.ballast import Ballast
from recollect.stores.sqlite.rows import space_id
from recollect.stores.sqlite.writer import Change, Writer

VARIABLE = "CRASH_MUTANT"


def normal() -> None:
    """Every commit in the fast class: nothing waits for the disk."""
    set_synchronous = Writer._set_synchronous

    def never_full(self: Writer, *, full: bool) -> None:
        set_synchronous(self, full=False)

    setattr(Writer, "_set_synchronous", never_full)  # noqa: B010 - a method, which mypy would not have assigned


def early() -> None:
    """A write is acknowledged when it is queued, before it is committed."""

    async def submit(self: Writer, change: Change, *, durable: bool, frees: bool = False) -> object:
        self.queue(change, durable=durable, frees=frees)
        return None

    setattr(Writer, "submit", submit)  # noqa: B010


def plain_begin() -> None:
    """Transactions start as readers, and ask for the lock when it may be too late to wait for it."""

    def begin(writing: apsw.Connection) -> None:
        writing.execute("begin")
        # Our batches happen to write first, which would hide it.
        writing.execute("select max(id) from spaces").fetchall()

    setattr(writer, "begin_immediate", begin)  # noqa: B010


def unfenced() -> None:
    """Whoever once held a lease may write for ever."""

    def of_holder(task: Task | None, name: str, fence: int) -> Task:
        assert task is not None
        return task

    setattr(leases, "_of_holder", of_holder)  # noqa: B010


def unwatched() -> None:
    """A worker never gives its lease up for lost: the store's fence alone has to keep it out."""
    from recollect.runtime.lease import Heartbeat

    def unworried(self: Heartbeat, why: str = "") -> None:
        return None

    setattr(Heartbeat, "check", unworried)  # noqa: B010
    setattr(Heartbeat, "_lose", unworried)  # noqa: B010


def dropping() -> None:
    """Whoever writes drops what they believe to have expired, and begins anew."""
    apply, claim = tasks.apply, tasks.claim

    def drop(connection: apsw.Connection, space: int, name: str, now: datetime) -> None:
        found = tasks._row(connection, space, name)
        if found is not None and leases.expired(found, now):
            tasks._drop(connection, space, name)

    def applied(connection: apsw.Connection, space: int, writes: Sequence[TaskWrite], now: datetime) -> None:
        drop(connection, space, writes[0].task, now)
        apply(connection, space, writes, now)

    def claimed(connection: apsw.Connection, wish: leases.Claim, now: datetime) -> Lease:
        space = space_id(connection, wish.space)
        if space is not None:
            drop(connection, space, wish.task, now)
        return claim(connection, wish, now)

    setattr(tasks, "apply", applied)  # noqa: B010
    setattr(tasks, "claim", claimed)  # noqa: B010


def graceless() -> None:
    """The lifecycle drops tasks as soon as they are hidden, and that by the clock of the machine it runs on."""
    from recollect.lifecycle import lifecycle
    from recollect.lifecycle.run import Run
    from recollect.lifecycle.tasks import drop_old_tasks as drop

    async def at_once(run: Run) -> None:
        grace = timedelta(seconds=run.means.settings.purge_grace_seconds)
        await drop(replace(run, now=run.now + grace))

    setattr(lifecycle, "drop_old_tasks", at_once)  # noqa: B010
    by_own_clock()


def by_own_clock() -> None:
    """Servers are given the time of whoever asks, as a file on one machine is."""
    from recollect.stores import connect
    from recollect.stores.redis import clock

    for module in (connect, clock):
        setattr(module, "system_clock", None)  # noqa: B010 - no clock is the default one any more


def naive() -> None:
    """Neither watch nor fence nor version: whoever comes last wins."""
    unwatched()
    unfenced()
    saved = leases.saved

    def unversioned(task: Task | None, save: Save, now: datetime) -> Task:
        return saved(task, replace(save, expect=None), now)

    setattr(leases, "saved", unversioned)  # noqa: B010


def hasty() -> None:
    """PostgreSQL acknowledges before its log is written."""
    from recollect.stores.postgres.server import Server

    writing = Server.writing

    def weak(self: Server, *about: Any, lasting: bool = True) -> Any:
        return writing(self, *about, lasting=False)

    setattr(Server, "writing", weak)  # noqa: B010


def heedless() -> None:
    """No watch, and Redis writes what was decided whatever has happened to the rows since they were read."""
    from recollect.stores.redis import server as redis

    unwatched()
    script, compared = redis._script, b"stale = stale or held ~= seen"

    def uncompared(name: str) -> tuple[bytes, bytes]:
        source, sha = script(name)
        assert name != "commit" or compared in source
        # Under no name that the server knows, so that it is told the text each time.
        return source.replace(compared, b""), b"0" * 40 if name == "commit" else sha

    setattr(redis, "_script", uncompared)  # noqa: B010


def no_intent() -> None:
    """Steps are begun without a word about it."""
    from recollect.runtime.running import Running

    intent = Running._intent

    def unsaid(self: Running, *given: Any) -> tuple[Write, ...]:
        intent(self, *given)  # which also counts the attempt
        return ()

    setattr(Running, "_intent", unsaid)  # noqa: B010


def split() -> None:
    """What belongs into one transaction is written in several."""
    from recollect.runtime import running

    write = running.Running.write

    async def one_by_one(self: running.Running, *writes: Write) -> None:
        for one in writes:
            await write(self, one)

    async def each_alone(*shares: tuple[Any, Any]) -> None:
        for store, writes in shares:
            for one in writes:
                await store.write(one)

    setattr(running.Running, "write", one_by_one)  # noqa: B010
    setattr(running, "write_in_order", each_alone)  # noqa: B010


def unchecked() -> None:
    """A checkpoint is believed whatever its checksum says."""
    read = tasks._checkpoint

    def believed(row: tuple[Any, ...]) -> Checkpoint:
        return replace(read(row), intact=True)

    setattr(tasks, "_checkpoint", believed)  # noqa: B010


def no_ballast() -> None:
    """No room is kept back, and the log is never begun again to make some."""

    def nothing(self: object) -> None:
        return None

    setattr(Ballast, "keep", nothing)  # noqa: B010
    setattr(Writer, "_make_room", nothing)  # noqa: B010


def untold() -> None:
    """What the system said is not asked for: only what SQLite itself calls full is."""
    setattr(connection, "_NO_ROOM", frozenset())  # noqa: B010


def words_left() -> None:
    """The word index deletes by a note that something is gone, as it does by itself."""
    from recollect.stores.sqlite import store, wiping

    def insecurely(connection: apsw.Connection, *given: Any) -> None:
        connection.execute("insert into words (words, rank) values ('secure-delete', 0)")
        wiping.wipe(connection, *given)

    setattr(store, "wipe", insecurely)  # noqa: B010


def log_left() -> None:
    """The write-ahead log is left as it is."""
    from recollect.stores.sqlite import gaps, physical

    setattr(physical, "emptied_log", lambda *_: True)  # noqa: B010
    setattr(gaps, "checkpointed", lambda *_: True)  # noqa: B010
    setattr(gaps, "_has_log", lambda *_: False)  # noqa: B010


def gaps_left() -> None:
    """What lies between the rows of a page is left as it is."""
    from recollect.stores.sqlite import physical

    setattr(physical, "blank", lambda *_: True)  # noqa: B010


def rekeyed_in_place() -> None:
    """The copy with the new key is written over the file, page after page, instead of taking its place."""
    from recollect.stores.sqlite import rekeying

    def written_over(_: object, aside: Path, path: Path, *, wiped: bool) -> None:
        with aside.open("rb") as copy, path.open("r+b") as file:
            while page := copy.read(8192):
                file.write(page)
                file.flush()
                os.fsync(file.fileno())
            file.truncate()
        aside.unlink()

    setattr(rekeying, "_put_in_place", written_over)  # noqa: B010


def ledger_last() -> None:
    """What is to go is deleted first, and written down after that."""
    from recollect.lifecycle.doom import Doom
    from recollect.lifecycle.erase import Erasures
    from recollect.lifecycle.subject import Subject
    from recollect.runtime.failpoints import reach
    from recollect.stores.erasing import Erasure
    from recollect.stores.sqlite import ledger, wiping

    erase = Erasures.erase

    async def hasty(self: Erasures, subject: Subject) -> Any:
        store: Any = self._able[0]
        doomed, now = await Doom(subject, self._able).of(store), self._clock()

        def deleted(connection: apsw.Connection) -> None:
            ledger.enter(connection, Erasure(id="x", subject="x", parts=(), requested_at=now))
            wiping.wipe(connection, "x", doomed, now)
            connection.execute("delete from erasures")

        await store._writer.submit(deleted, durable=True)
        reach("erase.deleted")
        return await erase(self, subject)

    setattr(Erasures, "erase", hasty)  # noqa: B010


def aof_left() -> None:
    """Redis is not asked to write its append-only file anew."""
    from recollect.stores.redis.physical import Physical

    async def as_it_is(self: Physical) -> bool:
        return True

    setattr(Physical, "settled", as_it_is)  # noqa: B010


def snapshot_left() -> None:
    """Redis is not asked to write its snapshot anew."""
    from recollect.stores.redis.physical import Physical

    asked = Physical._asked

    async def not_the_snapshot(self: Physical, node: Any, command: str, *rest: Any) -> str:
        return "" if command == "BGSAVE" else await asked(self, node, command, *rest)

    setattr(Physical, "_asked", not_the_snapshot)  # noqa: B010


def pages_left() -> None:
    """Chroma's file keeps its free pages and its log."""
    from recollect.stores.chroma import store

    setattr(store, "written_anew", lambda directory: True)  # noqa: B010


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant
    for mutant in (
        normal,
        early,
        plain_begin,
        unfenced,
        unwatched,
        dropping,
        graceless,
        naive,
        heedless,
        hasty,
        no_intent,
        split,
        unchecked,
        no_ballast,
        untold,
        words_left,
        log_left,
        gaps_left,
        rekeyed_in_place,
        ledger_last,
        aof_left,
        snapshot_left,
        pages_left,
    )
}


def apply() -> None:
    """Become the mutant that the environment names, if it names one."""
    if name := os.environ.get(VARIABLE):
        MUTANTS[name]()
