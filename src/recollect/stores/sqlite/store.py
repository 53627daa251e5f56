"""The default store: everything in one SQLite file, shared by threads and processes; its statistics and checks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import apsw

from recollect.clock import Clock, system_clock, to_micros
from recollect.errors import StoreClosed, StoreUnavailable
from recollect.stores import health
from recollect.stores.base import SpaceTrace
from recollect.stores.codec import VECTOR_DTYPE
from recollect.stores.sqlite import logs, records, tasks
from recollect.stores.sqlite.backup import list_migration_backups, write_backup
from recollect.stores.sqlite.connection import EncryptionKey, connect_briefly, get_file_size, translate_errors
from recollect.stores.sqlite.erasure import SqliteErasure, empty_wal
from recollect.stores.sqlite.migrations import load_migrations, open_migrated
from recollect.stores.sqlite.search_cache import SpaceCache, SqliteTermCache, SqliteVectorMatrix
from recollect.stores.sqlite.threads import SqliteReaderPool, SqliteWriter, run_in_reader
from recollect.stores.writes import LogWrite, RecordWrite, TaskWrite, Write
from recollect.types import Space

# Items and fences are numbered by the same column, so logs are recognized by their tier.
_SELECT_SPACES = """
    select tenant, tier, user, agent, session, items,
        (select max(created_at) from records where space = spaces.id),
        exists (select 1 from entries where place between spaces.id << ?2 and ((spaces.id + 1) << ?2) - 1),
        iif(next_seq > 0 and tier in ('conversation', 'episodic', 'working'), next_seq, null),
        exists (select 1 from tasks where space = spaces.id)
    from spaces
    where ?1 is null or tenant = ?1
    order by tenant, tier, user, agent, session"""

_WEEK = timedelta(days=7)
_BACKUP_NOTE_TIMEOUT_SECONDS = 0.25
# A batch of a busy process takes less, so a longer lock is reported.
_LOCK_TIMEOUT_MS = 1000
_COMPANION_SUFFIXES = ("-wal", "-shm", "-journal", ".erasures.jsonl")

_SELECT_MISCOUNTED_SPACES = """
    select s.tenant, s.tier, s.user, s.agent, s.session, s.items, s.words, count(r.place), coalesce(sum(r.length), 0)
    from spaces s
    left join records r on r.space = s.id
    group by s.id
    having s.items <> count(r.place) or s.words <> coalesce(sum(r.length), 0)"""
# The next item gets the number after `next_seq`, which must be free and not beyond the last one.
_SELECT_MISNUMBERED_SPACES = """
    select s.tenant, s.tier, s.user, s.agent, s.session, s.next_seq, h.last
    from (select space, max(place) & ?1 as last from records group by space) h
    join spaces s on s.id = h.space
    where typeof(s.next_seq) <> 'integer' or s.next_seq not between h.last and ?1"""
_SELECT_CHECKPOINTS = "select task, version, cast(state as blob), sha256 from checkpoints"

# Facts and procedures have a vector per passage, with the model's dimension. Turns may be stored without vectors while
# the model is unavailable, and notes have none.
_COUNT_MISSING_VECTORS = records.build_for_each_generation("""
    select count(*) from records r
    join spaces s on s.id = r.space
    where s.tier in ('semantic', 'procedural') and r.passages <> (
        select count(*) from VECTORS v
        where v.id >= r.place << 6 and v.id < (r.place + 1) << 6 and length(v.data) = ?
    )""")
_COUNT_STRAY_VECTORS = """
    select count(*) from (select id from vectors_a union all select id from vectors_b) v
    where not exists (select 1 from records r where r.place = v.id >> 6)"""

# The index is ordered by term, so this reads it once from start to end.
_SELECT_OCCURRENCES = "select group_concat(doc) from occurrences group by term"
_SELECT_ALL_TERMS = "select place, space, terms from records"

# Subqueries per space use an index; the timestamps of a million rows are not all read.
_SELECT_STATS = """
    select min(first), max(last), sum(recent), sum(items), max(embedded),
        (select count(*) from records where valid_to is not null and superseded_by is not null),
        (select cast(value as integer) from meta where name = 'backed_up')
    from (
        select
            (select min(created_at) from records r where r.space = s.id) as first,
            (select max(created_at) from records r where r.space = s.id) as last,
            (select count(*) from records r where r.space = s.id and r.created_at >= ?) as recent,
            items,
            iif(tier in ('semantic', 'procedural', 'conversation'), items, 0) as embedded
        from spaces s
        union all
        select
            (select at from entries e where e.place >= s.id << 28 order by e.place limit 1),
            (select at from entries e where e.place < (s.id + 1) << 28 order by e.place desc limit 1),
            0, 0, 0
        from spaces s
        union all
        select min(created_at), max(updated_at), 0, 0, 0 from tasks
    )"""


class SqliteStore(SqliteErasure, logs.SqliteLogs, tasks.SqliteTasks):
    """Records, logs and tasks in one file. `SqliteStore.open` may block: call it in a thread."""

    _pending_backup_note: Future[object] | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        cache_bytes: int = 256 << 20,
        vacuum_limit_bytes: int = 1_024_000_000,
        readers: int = 4,
        clock: Clock = system_clock,
        key: EncryptionKey | None = None,
        migrates: bool = True,
    ) -> SqliteStore:
        """Open or create a store, and migrate it to the current schema.

        An erasure defers the rewrite of a file that is larger than `vacuum_limit_bytes`.

        Before a migration the file is copied to `NAME.before-schema-VERSION`. With `migrates=False` an older file
        raises `SchemaTooOld`. An older file that is open elsewhere raises `StoreUnavailable`.
        """
        path = Path(os.path.abspath(os.path.expanduser(path)))
        if not path.parent.is_dir():
            raise StoreUnavailable(f"{path} cannot be opened: the directory {path.parent} does not exist; create it")
        store = cls()
        store.path, store._key, store._clock = path, key, clock
        store._vacuum_limit_bytes = vacuum_limit_bytes
        store._writer = SqliteWriter(open_migrated(path, key, migrates=migrates), path)
        store._readers = SqliteReaderPool(path, threads=readers, key=key)
        store._vector_cache = SpaceCache(cache_bytes, SqliteVectorMatrix)
        # Terms take a few bytes an item, so an eighth of the budget holds more spaces than the vectors.
        store._term_cache = SpaceCache(max(cache_bytes // 8, 1 << 20), SqliteTermCache)
        store._accesses, store._access_lock = {}, threading.Lock()
        return store

    @property
    def encrypted(self) -> bool:
        """True if the file, its log and its backups are encrypted."""
        return self._key is not None

    async def close(self) -> None:
        with suppress(StoreClosed):
            await self._wait_for_flush()
        await asyncio.to_thread(self._readers.close)
        await asyncio.to_thread(self._writer.close)

    async def write(self, *writes: Write) -> None:
        if writes:
            await self._submit_writes(writes, lambda *_: None)

    @run_in_reader
    def trace_spaces(self, connection: apsw.Connection, tenant: str | None = None) -> list[SpaceTrace]:
        rows = connection.execute(_SELECT_SPACES, (tenant, records.SEQ_BITS))
        return [
            SpaceTrace(
                Space(*names), items, records.from_optional_micros(newest), bool(has_entries), last, bool(has_tasks)
            )
            for *names, items, newest, has_entries, last, has_tasks in rows
        ]

    async def backup(self, path: str) -> None:
        await self._readers.submit(lambda connection: write_backup(connection, Path(os.path.abspath(path)), self._key))
        # Not awaited: the backup is complete even if the write lock is taken or the disk is full.
        at = str(to_micros(self._clock()))
        self._pending_backup_note = self._writer.enqueue(
            lambda connection: records.write_meta(connection, "backed_up", at), durable=False
        )

    async def read_stats(self) -> health.StoreStats:
        if self._pending_backup_note is not None and not self._pending_backup_note.done():
            await asyncio.wait([asyncio.wrap_future(self._pending_backup_note)], timeout=_BACKUP_NOTE_TIMEOUT_SECONDS)
        return await self._collect_stats(await asyncio.to_thread(_describe_lock, self.path, self._key))

    @run_in_reader
    def _collect_stats(self, connection: apsw.Connection, blocked_by: str) -> health.StoreStats:
        row: Any = connection.execute(_SELECT_STATS, (to_micros(self._clock() - _WEEK),)).fetchone()
        oldest, newest, recent, items, embedded, superseded, backed_up = row
        pages, free_pages = int(connection.pragma("page_count")), int(connection.pragma("freelist_count"))
        table = records.load_active_table(connection)
        mode = str(connection.pragma("journal_mode"))
        risk = health.DurabilityRisk(f"its journal mode is {mode}", "close every program that has it open")
        companions = [self.path.with_name(self.path.name + suffix) for suffix in _COMPANION_SUFFIXES]
        log_bytes = get_file_size(companions[0])
        return health.StoreStats(
            engine="SQLite",
            versions={"SQLite": apsw.sqlite_lib_version()},
            durability="power loss",
            durability_risks=() if mode == "wal" else (risk,),
            schema=(int(connection.pragma("user_version")), load_migrations()[-1][0]),
            oldest=records.from_optional_micros(oldest),
            newest=records.from_optional_micros(newest),
            files=(self.path, *(file for file in companions if file.exists()), *list_migration_backups(self.path)),
            bytes=get_file_size(self.path) + log_bytes,
            items=items,
            recent_items=recent,
            superseded=superseded,
            largest_space=embedded * table.model.dim * VECTOR_DTYPE.itemsize if table else 0,
            has_reserve=self._writer.reserve_file.exists,
            log_bytes=log_bytes,
            unused_ratio=free_pages / pages if pages else 0.0,
            blocked_by=blocked_by,
            encrypted=self._key is not None,
            last_backup_at=records.from_optional_micros(backed_up),
            uses_backup_method=True,
        )

    @run_in_reader
    def check_integrity(
        self, connection: apsw.Connection, tell: health.ProgressCallback = health.ignore_progress
    ) -> health.IntegrityReport:
        try:
            tell("pages")
            # `integrity_check` uses FTS5's cached structure, which a delete of another process makes stale. A query
            # reloads it.
            connection.execute("select rowid from words where words match 'x' limit 1").fetchall()
            result = [str(row[0]) for row in connection.execute("pragma integrity_check")]
            # The checks below mean nothing if pages are damaged.
            if result != ["ok"]:
                return health.IntegrityReport(faults=tuple(result))
            tell("words")
            indexed: Counter[str] = Counter()
            for (places,) in connection.execute(_SELECT_OCCURRENCES):
                indexed.update(places.split(","))
            lengths = connection.execute("select place, length from records")
            missing_terms = sum(indexed.pop(str(place), 0) != length for place, length in lengths)
            tell("counts and checksums")
            faults = tuple(_find_row_faults(connection))
            tell("vectors")
            table = records.load_active_table(connection)
            generation, dim = (table.generation, table.model.dim) if table else ("a", 0)
            missing_vectors = connection.execute(_COUNT_MISSING_VECTORS[generation], (dim * VECTOR_DTYPE.itemsize,)).get
            return health.IntegrityReport(
                faults=faults,
                missing_vectors=missing_vectors,
                orphaned_vectors=connection.execute(_COUNT_STRAY_VECTORS).get,
                missing_terms=missing_terms,
                orphaned_terms=len(indexed),
            )
        except apsw.CorruptError as error:
            return health.IntegrityReport(faults=(f"the file is damaged: {error}",))

    async def repair(self, what: health.RepairTarget) -> None:
        match what:
            case "ballast":
                await asyncio.to_thread(self._writer.reserve_file.reserve)
            case "log":
                await asyncio.to_thread(empty_wal, self.path, self._key)
            case "words":
                await self._writer.submit(_rebuild_term_index, durable=True)

    def _apply_writes(self, connection: apsw.Connection, writes: Sequence[Write], now: datetime) -> None:
        writer = records.SqliteRecordWriter(connection)
        for task, group in groupby(writes, lambda w: (w.space, w.task) if isinstance(w, TaskWrite) else None):
            if task is not None:
                of_task = [write for write in group if isinstance(write, TaskWrite)]
                tasks.apply_task_writes(connection, writer.get_or_create_space(task[0]), of_task, now)
                continue
            for write in group:
                if isinstance(write, RecordWrite):
                    writer.apply(write)
                elif isinstance(write, LogWrite):
                    logs.apply_log_write(connection, writer.get_or_create_space(write.space), write, now)


def _rebuild_term_index(connection: apsw.Connection) -> None:
    """Index the terms of all items again, and invalidate the cached spaces."""
    connection.execute("insert into words (words) values ('delete-all')")
    for place, space, terms in connection.execute(_SELECT_ALL_TERMS):
        records.replace_terms(connection, space, place, (), terms.split())
    connection.execute("update spaces set rewrites = rewrites + 1")


def _find_row_faults(connection: apsw.Connection) -> list[str]:
    """Return wrong counts and numbers of spaces, and checkpoints that do not fit their checksum."""
    faults = [
        f"{'/'.join(row[:5])} counts {row[5]} items with {row[6]} words, and has {row[7]} with {row[8]}"
        for row in connection.execute(_SELECT_MISCOUNTED_SPACES)
    ]
    faults.extend(
        f"{'/'.join(row[:5])} has given out the numbers up to {row[5]!r:.40}, and has an item with {row[6]}"
        for row in connection.execute(_SELECT_MISNUMBERED_SPACES, (records.MAX_SEQ,))
    )
    faults.extend(
        f"version {version} of task {task!r} does not fit its checksum"
        for task, version, stored, checksum in connection.execute(_SELECT_CHECKPOINTS)
        if not tasks.decode_state(stored, checksum)[1]
    )
    return faults


def _describe_lock(path: Path, key: EncryptionKey | None) -> str:
    """Return a description of the lock that blocks all writers; an empty text if there is none."""
    with translate_errors(path), connect_briefly(path, key, timeout_ms=_LOCK_TIMEOUT_MS) as connection:
        try:
            connection.execute("begin immediate; rollback")
        except apsw.BusyError:
            return f"a program has held the write lock for more than {_LOCK_TIMEOUT_MS / 1000:g} s"
    return ""
