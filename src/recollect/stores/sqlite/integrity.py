"""Health of a store file: integrity checks, statistics, locks and repairs."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw

from recollect.clock import to_micros
from recollect.stores.base import Store
from recollect.stores.codec import VECTOR_DTYPE
from recollect.stores.health import (
    DurabilityRisk,
    IntegrityReport,
    ProgressCallback,
    RepairTarget,
    StoreStats,
    ignore_progress,
)
from recollect.stores.sqlite.backup import list_migration_backups, write_backup
from recollect.stores.sqlite.connection import (
    EncryptionKey,
    begin_immediate,
    connect_briefly,
    get_file_size,
    translate_errors,
)
from recollect.stores.sqlite.erasure import empty_wal
from recollect.stores.sqlite.migrations import load_migrations
from recollect.stores.sqlite.records import (
    MAX_SEQ,
    build_for_each_generation,
    from_optional_micros,
    index_terms,
    load_active_table,
    write_meta,
)
from recollect.stores.sqlite.tasks import decode_state
from recollect.stores.sqlite.threads import SqliteStoreBase, run_in_reader

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
_COUNT_MISSING_VECTORS = build_for_each_generation("""
    select count(*) from records r
    join spaces s on s.id = r.space
    where s.tier in ('semantic', 'procedural') and r.passages <> (
        select count(*)
        from VECTORS v
        where v.id >= r.place << 6 and v.id < (r.place + 1) << 6 and length(v.data) = ?
    )""")
_COUNT_UNEMBEDDED = """
    select count(*) from records r
    join spaces s on s.id = r.space
    where s.tier in ('semantic', 'procedural')"""
_COUNT_STRAY_VECTORS = """
    select count(*) from (select id from vectors_a union all select id from vectors_b) v
    where not exists (select 1 from records r where r.place = v.id >> 6)"""

# The index is ordered by term, so this reads it once from start to end.
_SELECT_OCCURRENCES = "select group_concat(doc) from occurrences group by term"
_SELECT_ALL_TERMS = "select place, space, terms from records"

# Subqueries per space use an index; the timestamps of a million rows are not all read.
_SELECT_RECORD_STATS = """
    select min(first), max(last), sum(recent), sum(items), max(embedded)
    from (
        select
            (select min(created_at) from records r where r.space = s.id) as first,
            (select max(created_at) from records r where r.space = s.id) as last,
            (select count(*) from records r where r.space = s.id and r.created_at >= ?) as recent,
            s.items as items,
            iif(s.tier in ('semantic', 'procedural', 'conversation'), s.items, 0) as embedded
        from spaces s
    )"""
_SELECT_LOG_STATS = """
    select min(first), max(last)
    from (
        select
            (select at from entries e where e.place >= s.id << 28 order by e.place limit 1) as first,
            (select at from entries e where e.place < (s.id + 1) << 28 order by e.place desc limit 1) as last
        from spaces s
        where exists (select 1 from entries e where e.place >= s.id << 28 and e.place < (s.id + 1) << 28)
    )"""
_SELECT_TASK_STATS = "select min(created_at), max(updated_at) from tasks"
_COUNT_SUPERSEDED = "select count(*) from records where valid_to is not null and superseded_by is not null"
_SELECT_BACKUP_TIME = "select cast(value as integer) from meta where name = 'backed_up'"


class SqliteHealth(SqliteStoreBase, Store):
    """The health methods of a store, and its backup."""

    _pending_backup_note: Future[object] | None = None

    async def backup(self, path: str) -> None:
        await self._readers.submit(lambda connection: write_backup(connection, Path(os.path.abspath(path)), self._key))
        # Not awaited: the backup is complete even if the write lock is taken or the disk is full.
        at = str(to_micros(self._clock()))
        self._pending_backup_note = self._writer.enqueue(
            lambda connection: write_meta(connection, "backed_up", at), durable=False
        )

    async def read_stats(self) -> StoreStats:
        if self._pending_backup_note is not None and not self._pending_backup_note.done():
            await asyncio.wait([asyncio.wrap_future(self._pending_backup_note)], timeout=_BACKUP_NOTE_TIMEOUT_SECONDS)
        now = self._clock()
        stats = await self._readers.submit(lambda connection: _collect_stats(connection, self.path, now))
        return replace(
            stats,
            encrypted=self._key is not None,
            has_reserve=self._writer.reserve_file.exists,
            blocked_by=await asyncio.to_thread(_describe_lock, self.path, self._key),
        )

    @run_in_reader
    def check_integrity(self, connection: apsw.Connection, tell: ProgressCallback = ignore_progress) -> IntegrityReport:
        try:
            tell("pages")
            # `integrity_check` uses FTS5's cached structure, which a delete of another process makes stale. A query
            # reloads it.
            connection.execute("select rowid from words where words match 'x' limit 1").fetchall()
            result = [str(row[0]) for row in connection.execute("pragma integrity_check")]
            # The checks below mean nothing if pages are damaged.
            if result != ["ok"]:
                return IntegrityReport(faults=tuple(result))
            tell("words")
            missing_terms, orphaned_terms = _compare_term_index(connection)
            tell("counts and checksums")
            faults = tuple(_find_row_faults(connection))
            tell("vectors")
            return IntegrityReport(
                faults=faults,
                missing_vectors=_count_missing_vectors(connection),
                orphaned_vectors=connection.execute(_COUNT_STRAY_VECTORS).get,
                missing_terms=missing_terms,
                orphaned_terms=orphaned_terms,
            )
        except apsw.CorruptError as error:
            return IntegrityReport(faults=(f"the file is damaged: {error}",))

    async def repair(self, what: RepairTarget) -> None:
        match what:
            case "ballast":
                await asyncio.to_thread(self._writer.reserve_file.reserve)
            case "log":
                await asyncio.to_thread(empty_wal, self.path, self._key)
            case "words":
                await self._writer.submit(_rebuild_term_index, durable=True)


def _rebuild_term_index(connection: apsw.Connection) -> None:
    """Index the terms of all items again, and invalidate the cached spaces."""
    connection.execute("insert into words (words) values ('delete-all')")
    for place, space, terms in connection.execute(_SELECT_ALL_TERMS):
        index_terms(connection, space, place, terms.split())
    connection.execute("update spaces set rewrites = rewrites + 1")


def _find_row_faults(connection: apsw.Connection) -> list[str]:
    """Return wrong counts and numbers of spaces, and checkpoints that do not fit their checksum."""
    faults = [
        f"{'/'.join(row[:5])} counts {row[5]} items with {row[6]} words, and has {row[7]} with {row[8]}"
        for row in connection.execute(_SELECT_MISCOUNTED_SPACES)
    ]
    faults.extend(
        f"{'/'.join(row[:5])} has given out the numbers up to {row[5]!r:.40}, and has an item with {row[6]}"
        for row in connection.execute(_SELECT_MISNUMBERED_SPACES, (MAX_SEQ,))
    )
    faults.extend(
        f"version {version} of task {task!r} does not fit its checksum"
        for task, version, stored, checksum in connection.execute(_SELECT_CHECKPOINTS)
        if not decode_state(stored, checksum)[1]
    )
    return faults


def _count_missing_vectors(connection: apsw.Connection) -> int:
    """Return the number of facts and procedures that lack a vector of the active model."""
    table = load_active_table(connection)
    if table is None:
        return int(connection.execute(_COUNT_UNEMBEDDED).get)
    size = table.model.dim * VECTOR_DTYPE.itemsize
    return int(connection.execute(_COUNT_MISSING_VECTORS[table.generation], (size,)).get)


def _compare_term_index(connection: apsw.Connection) -> tuple[int, int]:
    """Return the number of items whose indexed terms differ from their count, and of places only the index has."""
    indexed: Counter[str] = Counter()
    for (places,) in connection.execute(_SELECT_OCCURRENCES):
        indexed.update(places.split(","))
    lengths = connection.execute("select place, length from records")
    missing = sum(indexed.pop(str(place), 0) != length for place, length in lengths)
    return missing, len(indexed)


def _collect_stats(connection: apsw.Connection, path: Path, now: datetime) -> StoreStats:
    first, last, recent, items, embedded = _fetch_row(connection, _SELECT_RECORD_STATS, to_micros(now - _WEEK))
    spans = [(first, last), _fetch_row(connection, _SELECT_LOG_STATS), _fetch_row(connection, _SELECT_TASK_STATS)]
    pages, free_pages = int(connection.pragma("page_count")), int(connection.pragma("freelist_count"))
    table = load_active_table(connection)
    mode = str(connection.pragma("journal_mode"))
    log_bytes = get_file_size(path.with_name(path.name + "-wal"))
    risk = DurabilityRisk(f"its journal mode is {mode}", "close every program that has it open")
    return StoreStats(
        engine="SQLite",
        versions={"SQLite": apsw.sqlite_lib_version()},
        durability="power loss",
        durability_risks=() if mode == "wal" else (risk,),
        schema=(int(connection.pragma("user_version")), load_migrations()[-1][0]),
        oldest=from_optional_micros(min((span[0] for span in spans if span[0] is not None), default=None)),
        newest=from_optional_micros(max((span[1] for span in spans if span[1] is not None), default=None)),
        files=(
            path,
            *(file for part in _COMPANION_SUFFIXES if (file := path.with_name(path.name + part)).exists()),
            *list_migration_backups(path),
        ),
        bytes=get_file_size(path) + log_bytes,
        items=items or 0,
        recent_items=recent or 0,
        superseded=connection.execute(_COUNT_SUPERSEDED).get,
        largest_space=0 if table is None else (embedded or 0) * table.model.dim * VECTOR_DTYPE.itemsize,
        log_bytes=log_bytes,
        unused_ratio=free_pages / pages if pages else 0.0,
        last_backup_at=from_optional_micros(connection.execute(_SELECT_BACKUP_TIME).get),
        uses_backup_method=True,
    )


def _describe_lock(path: Path, key: EncryptionKey | None) -> str:
    """Return a description of the lock that blocks all writers; an empty text if there is none."""
    with translate_errors(path), connect_briefly(path, key, timeout_ms=_LOCK_TIMEOUT_MS) as connection:
        try:
            begin_immediate(connection)
            connection.execute("rollback")
        except apsw.BusyError:
            return f"a program has held the write lock for more than {_LOCK_TIMEOUT_MS / 1000:g} s"
    return ""


def _fetch_row(connection: apsw.Connection, statement: str, *values: Any) -> tuple[Any, ...]:
    [row] = connection.execute(statement, values).fetchall()
    return tuple(row)
