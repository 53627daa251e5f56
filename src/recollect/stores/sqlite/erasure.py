"""Erasure: the ledger, the deletion, the removal of deleted bytes from the file, and the scan that proves it."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from recollect.clock import from_micros, to_micros
from recollect.errors import Conflict, StoreError, StoreFull, StoreUnavailable
from recollect.stores.codec import detect_corruption, detects_corruption
from recollect.stores.erasure import (
    ByteScan,
    ErasureChange,
    ErasureReceipt,
    ErasureRecord,
    ErasureSelection,
    ErasureStore,
    require_erasure,
)
from recollect.stores.filters import iter_metadata_paths
from recollect.stores.sqlite import records
from recollect.stores.sqlite.backup import delete_migration_backups
from recollect.stores.sqlite.connection import (
    EncryptionKey,
    connect_briefly,
    get_file_size,
    read_main_file,
    read_wal_pages,
    translate_errors,
    truncate_wal,
)
from recollect.stores.sqlite.search import SqliteRecords
from recollect.stores.sqlite.threads import run_in_reader, run_in_writer
from recollect.stores.traces import DeletionTraces, select_pieces
from recollect.stores.validation import validate_writes
from recollect.stores.writes import Put

# The ledger

_ERASURE_COLUMNS = (
    "id", "subject", "parts", "phase", "requested_at", "deleted_at", "erased", "rederived", "evidence", "receipt",
    "elsewhere", "key",
)  # fmt: skip
_SELECT_ERASURES = f"""
    select {", ".join(_ERASURE_COLUMNS)} from erasures
    where phase <> 'complete' or not ?
    order by link is null, link, requested_at, id"""  # noqa: S608
_SELECT_ERASURE = f"select {', '.join(_ERASURE_COLUMNS)} from erasures where id = ?"  # noqa: S608
_SAVE_ERASURE = f"""
    insert into erasures ({", ".join(_ERASURE_COLUMNS)}, link)
    values (:{", :".join(_ERASURE_COLUMNS)}, :link)
    on conflict (id) do update
    set {", ".join(f"{name} = excluded.{name}" for name in _ERASURE_COLUMNS)}, link = coalesce(link, excluded.link)"""  # noqa: S608
_SELECT_LAST_RECEIPT = "select link, receipt from erasures where link is not null order by link desc limit 1"
# Every process drops the cached spaces that it has loaded before this count.
_INCREMENT_WIPED = """
    insert into meta (name, value) values ('wiped', '1')
    on conflict do update set value = cast(cast(value as integer) + 1 as text)"""
_SELECT_WIPED = "select coalesce((select value from meta where name = 'wiped'), '0')"

# The deletion

# With the column of the space. The other tables of a space have rows of the same items and tasks.
_COUNTED_TABLES = {"records": 1, "entries": 1, "tasks": 0}
_TRACED_TABLES = frozenset({*_COUNTED_TABLES, "checkpoints", "steps", "paths", "spaces", "vectors_a", "vectors_b"})

_SELECT_TERMS = "select place, terms from records where place between ? and ?"
_DELETE_SPACE = """
    delete from vectors_a where id >= :first << 6 and id < (:last + 1) << 6;
    delete from vectors_b where id >= :first << 6 and id < (:last + 1) << 6;
    delete from records where place between :first and :last;
    delete from entries where place between :first and :last;
    delete from checkpoints where space = :space;
    delete from steps where space = :space;
    delete from tasks where space = :space;
    delete from paths where space = :space;
    delete from spaces where id = :space"""
# A reused id would let another process take its copy of the erased space for the new one. A reused fence would let the
# holder of an erased task write to its successor.
_SAVE_LAST_NUMBER = """
    insert into meta (name, value) values (?1, ?2)
    on conflict do update set value = cast(max(cast(value as integer), cast(excluded.value as integer)) as text)"""


class SqliteErasure(SqliteRecords, ErasureStore):
    """The erasure methods of a store."""

    _vacuum_limit_bytes: int
    _purge = ByteScan()  # the waits of the last purge, until a scan reports them
    _purged_wipes = ""  # the count of wipes before the last complete purge

    @property
    def receipts(self) -> Path:
        return self.path.with_name(self.path.name + ".erasures.jsonl")

    @run_in_reader
    def salt(self, connection: apsw.Connection) -> bytes:
        return bytes.fromhex(connection.execute("select value from meta where name = 'salt'").get)

    @run_in_writer()
    def set_salt(self, connection: apsw.Connection, salt: bytes) -> None:
        if connection.execute("select exists (select 1 from erasures)").get:
            raise Conflict(
                f"the ledger of erasures has another key than {self.receipts}, which belongs to another store; "
                "move that file away"
            )
        connection.execute("update meta set value = ? where name = 'salt'", (salt.hex(),))

    @run_in_reader
    def ledger(self, connection: apsw.Connection, *, unfinished: bool = False) -> list[ErasureRecord]:
        return [_decode_erasure(row) for row in connection.execute(_SELECT_ERASURES, (unfinished,))]

    @run_in_writer(frees=True)
    def change_erasure(self, connection: apsw.Connection, id: str, change: ErasureChange) -> ErasureRecord:
        before = _load_erasure(connection, id)
        link, last = connection.execute(_SELECT_LAST_RECEIPT).fetchone() or (0, None)
        with detect_corruption("the last receipt in the ledger of erasures"):
            row = change(before, None if last is None else ErasureReceipt.from_json(json.loads(last)))
        if row.receipt is None or (before is not None and before.receipt is not None):
            _save_erasure(connection, row)
        else:
            spaces, traces = _unpack_evidence(b"", row.evidence)
            row = replace(row, evidence=_pack_evidence(spaces, traces.sample))
            _save_erasure(connection, row, link + 1)
        return row

    async def wipe(self, id: str, doomed: ErasureSelection) -> None:
        await self._wait_for_flush()
        now, selection = self._clock(), replace(doomed, writes=tuple(validate_writes(doomed.writes)))
        await self._writer.submit(
            lambda connection: self._delete_selection(connection, id, selection, now), durable=True, frees=True
        )

    def _delete_selection(
        self, connection: apsw.Connection, id: str, selection: ErasureSelection, now: datetime
    ) -> None:
        """Delete the selected rows, and record their counts and traces in the same transaction."""
        touched = {*selection.spaces, *(write.space for write in selection.writes)}
        tiers = {number: space.tier for space in touched if (number := records.find_space_id(connection, space))}
        content = _DeletedContent()
        connection.preupdate_hook(content.collect)
        try:
            for number in filter(None, (records.find_space_id(connection, space) for space in selection.spaces)):
                _delete_space(connection, number)
            self._apply_writes(connection, selection.writes, now)
            for number in tiers:
                _delete_unused_paths(connection, number)
        finally:
            connection.preupdate_hook(None)
        before = require_erasure(id, _load_erasure(connection, id))
        spaces, traces = _unpack_evidence(before.key, before.evidence)
        traces = traces.merge(DeletionTraces.from_pieces(before.key, content.pieces))
        counts = Counter(before.erased)
        for number, rows in content.rows.items():
            counts[tiers[number]] += rows
        rederived = before.rederived + sum(isinstance(write, Put) for write in selection.writes)
        evidence = _pack_evidence(spaces | tiers.keys(), traces)
        _save_erasure(connection, replace(before, erased=counts, rederived=rederived, evidence=evidence))
        connection.execute(_INCREMENT_WIPED)

    async def purge_copies(self, *, thorough: bool = False, deferrable: bool = False) -> bool:
        self._vector_cache.clear()
        self._term_cache.clear()
        records.build_scope.cache_clear()
        wipes = await self._readers.submit(lambda connection: str(connection.execute(_SELECT_WIPED).get))
        if wipes == self._purged_wipes:  # one rewrite of the file serves all erasures that were pending
            return True
        limit = self._vacuum_limit_bytes if deferrable else None
        self._purge = await asyncio.to_thread(purge_deleted_bytes, self.path, self._key, max_bytes=limit)
        if self._purge.is_clean:
            self._purged_wipes = wipes
        return self._purge.is_clean

    @run_in_reader
    def scan(self, connection: apsw.Connection, evidence: bytes, key: bytes) -> ByteScan:
        # Reported once, by the scan after the purge: a scan also verifies receipts of long ago.
        purge, self._purge = self._purge, ByteScan()
        scan = scan_file(connection, self.path, evidence, key)
        if not scan.is_clean:
            self._purged_wipes = ""
        return scan.merge(purge)

    async def finish_erasure(self, receipt: ErasureReceipt, at: datetime) -> ErasureReceipt:
        finished = await super().finish_erasure(receipt, at)
        # The old page, which has the key of the evidence, is in the file or in the log until then.
        with suppress(StoreError):
            await asyncio.to_thread(empty_wal, self.path, self._key)
        return finished


def _pack_evidence(spaces: set[int], traces: DeletionTraces) -> bytes:
    """Encode the spaces whose term index has to be checked, and the traces to look for in every byte."""
    header = json.dumps(sorted(spaces)).encode()
    return len(header).to_bytes(4, "little") + header + traces.as_bytes


def _unpack_evidence(key: bytes, packed: bytes) -> tuple[set[int], DeletionTraces]:
    """Return the spaces and traces of packed evidence, which is empty before the first deletion."""
    if not packed:
        return set(), DeletionTraces.from_pieces(key, [])
    end = 4 + int.from_bytes(packed[:4], "little")
    return set(json.loads(packed[4:end])), DeletionTraces.from_bytes(key, packed[end:])


@dataclass(slots=True)
class _DeletedContent:
    """The pieces of all rows that a transaction deletes or overwrites, and the deleted rows by space."""

    pieces: list[bytes] = field(default_factory=list)
    rows: Counter[int] = field(default_factory=Counter)

    def collect(self, change: apsw.PreUpdate) -> None:
        """Collect a row before it changes; SQLite calls it."""
        table, row = change.table_name, change.old
        if row is None or table not in _TRACED_TABLES:
            return
        for value in row:
            if value:
                self.pieces.extend(select_pieces(value if isinstance(value, bytes) else str(value).encode()))
        if change.op == "DELETE" and table in _COUNTED_TABLES:
            space: Any = row[_COUNTED_TABLES[table]]
            self.rows[space] += 1


def _load_erasure(connection: apsw.Connection, id: str) -> ErasureRecord | None:
    return next((_decode_erasure(row) for row in connection.execute(_SELECT_ERASURE, (id,))), None)


def _save_erasure(connection: apsw.Connection, record: ErasureRecord, link: int | None = None) -> None:
    """Insert or replace a row of the ledger; `link` is its place in the chain."""
    times = {
        "requested_at": to_micros(record.requested_at),
        "deleted_at": records.to_optional_micros(record.deleted_at),
    }
    connection.execute(_SAVE_ERASURE, record.as_json_columns() | times | {"link": link})


@detects_corruption("a row of the ledger of erasures")
def _decode_erasure(row: tuple[Any, ...]) -> ErasureRecord:
    values = dict(zip(_ERASURE_COLUMNS, row, strict=True))
    values["requested_at"] = from_micros(values["requested_at"])
    values["deleted_at"] = records.from_optional_micros(values["deleted_at"])
    return ErasureRecord.from_json_columns(**values)


def _delete_space(connection: apsw.Connection, space: int) -> None:
    """Delete all rows of a space and its name."""
    first, last = records.get_place_range(space)
    indexed: list[Any] = connection.execute(_SELECT_TERMS, (first, last)).fetchall()
    for place, terms in indexed:
        records.replace_terms(connection, space, place, terms.split(), ())
    fence = connection.execute("select next_seq from spaces where id = ?", (space,)).get
    connection.execute(_DELETE_SPACE, {"first": first, "last": last, "space": space})
    connection.execute(_SAVE_LAST_NUMBER, ("last_space", str(space)))
    connection.execute(_SAVE_LAST_NUMBER, ("last_fence", str(fence)))


def _delete_unused_paths(connection: apsw.Connection, space: int) -> None:
    """Delete the metadata paths that no item has any more, because a path may be a name."""
    rows = connection.execute("select metadata from records where space = ? and metadata <> '{}'", (space,))
    used = {path for (metadata,) in rows for path in iter_metadata_paths(json.loads(metadata))}
    connection.execute(
        "delete from paths where space = ? and path not in (select value from json_each(?))",
        (space, json.dumps(list(used))),
    )


# The removal of deleted bytes

# Also how long a writer waits for a reader that uses the log. A longer read delays the removal until the next
# lifecycle run.
_BUSY_TIMEOUT_MS = 2000


def purge_deleted_bytes(path: Path, key: EncryptionKey | None = None, *, max_bytes: int | None = None) -> ByteScan:
    """Rewrite the file, empty its log and delete the backups of migrations. Writers wait meanwhile.

    A file larger than `max_bytes` is not rewritten. The result has what the purge waits for, and an upper bound of the
    time that writers waited.

    `secure_delete` blanks deleted rows. But when a page splits, the rows that move leave their bytes in its unused
    area until another row overwrites them.
    """
    began, blocker = time.monotonic(), ""
    try:
        delete_migration_backups(path)
        with connect_briefly(path, key, timeout_ms=_BUSY_TIMEOUT_MS) as connection, translate_errors(path, connection):
            # A reader of an older snapshot would keep the log, so it is detected before the file is rewritten.
            is_free, size = truncate_wal(connection), get_file_size(path)
            if is_free and max_bytes is not None and size > max_bytes:
                reason = (
                    f"a rewrite of {path}, which blocks writers and was deferred: the file has {size / 1e6:,.1f} MB, "
                    f"and vacuum_limit_mb is {max_bytes / 1e6:,.0f}; run `recollect finish-erasures --store {path}`, "
                    "or the lifecycle"
                )
                return ByteScan(waits=(reason,))
            if is_free:
                # In memory, the new file could be too large. On disk it is encrypted like the store.
                connection.pragma("temp_store", "file")
                connection.execute("vacuum")
                is_free = truncate_wal(connection)
            if not is_free:
                blocker = f"the end of an open transaction of another connection to {path}"
    except StoreFull:
        size = get_file_size(path)
        blocker = (
            f"a rewrite of {path}, which needs {size:,} bytes on its disk and {size:,} bytes for a temporary file "
            "(SQLITE_TMPDIR names its directory); free some space"
        )
    except (apsw.BusyError, StoreUnavailable) as error:
        blocker = f"{path}: {error}"
    except OSError as error:
        blocker = f"the deletion of {error.filename} ({error.strerror})"
    return ByteScan(waits=(blocker,) if blocker else (), writers_waited=time.monotonic() - began)


def empty_wal(path: Path, key: EncryptionKey | None = None) -> bool:
    """Checkpoint and truncate the log; return False while another connection is busy."""
    with translate_errors(path), connect_briefly(path, key, timeout_ms=_BUSY_TIMEOUT_MS) as connection:
        return truncate_wal(connection)


# The scan

_CHUNK_BYTES = 1 << 22
# Without `-shm`: it contains page numbers and no content, and closing it would drop the process's locks.
_SCANNED_SUFFIXES = ("-wal", "-journal", "-ballast")

# The vectors last: most shared pieces are texts, and the search ends when all are found.
_LIVE_TABLES = (
    "records", "entries", "tasks", "checkpoints", "steps", "spaces", "paths", "meta", "erasures", "vectors_a",
    "vectors_b",
)  # fmt: skip
_SELECT_LIVE_VALUES = tuple(f"select * from {table}" for table in _LIVE_TABLES)  # noqa: S608


def scan_file(connection: apsw.Connection, path: Path, packed: bytes, key: bytes) -> ByteScan:
    """Look for deleted pieces in the file and the files next to it, and for index terms that no item has.

    The file and its log are read decrypted: encrypted bytes would prove nothing.
    """
    spaces, traces = _unpack_evidence(key, packed)
    companions = [file for suffix in _SCANNED_SUFFIXES if (file := path.with_name(path.name + suffix)).is_file()]
    found = traces.find_in(read_main_file(connection)) | traces.find_in(read_wal_pages(connection))
    for file in companions:
        # The last other process may have closed the store, and SQLite has deleted its log.
        with suppress(FileNotFoundError), file.open("rb") as opened:
            found |= traces.find_in(iter(partial(opened.read, _CHUNK_BYTES), b""))
    shared = _find_shared_pieces(connection, traces, found)
    return ByteScan(
        files=1 + len(companions),
        bytes=sum(get_file_size(file) for file in (path, *companions)),
        pieces=len(traces),
        of=traces.total,
        shared=len(shared),
        found=len(found - shared),
        words=sum(_count_leftover_terms(connection, space) for space in spaces),
    )


def _find_shared_pieces(connection: apsw.Connection, traces: DeletionTraces, found: set[int]) -> set[int]:
    """Return the found pieces that live rows contain too."""
    shared: set[int] = set()
    for batch in _join_live_values(connection) if found else ():
        remaining = sorted(found - shared)
        shared.update(remaining[index] for index in traces.select(remaining).find_in([batch]))
        if shared == found:
            break
    return shared


def _join_live_values(connection: apsw.Connection) -> Iterator[bytes]:
    """Yield all live values in batches."""
    batch = bytearray()
    for statement in _SELECT_LIVE_VALUES:
        for row in connection.execute(statement):
            for value in filter(None, row):
                batch += b"\0" + (value if isinstance(value, bytes) else str(value).encode())
            if len(batch) >= _CHUNK_BYTES:
                yield bytes(batch)
                batch.clear()
    yield bytes(batch)


def _count_leftover_terms(connection: apsw.Connection, space: int) -> int:
    """Return the number of terms in the index's pages that no item of the space has."""
    rows = connection.execute("select distinct terms from records where space = ?", (space,))
    live = {records.encode_term(space, term) for (terms,) in rows for term in terms.split()}
    return len({term for term in read_indexed_terms(connection, space) if term not in live})


# FTS5 stores page p of segment s in row `s << 37 | p`, and terms of its main index start with "0".
_SEGMENT_BITS = 37
_MAIN_INDEX_PREFIX = b"0"

_SELECT_PAGES_WITH_TERMS = f"""
    select block from words_data
    join (
        select segid, max(iif(term <= ?1, pgno, 2)) >> 1 as first, max(iif(term < ?2, pgno, 2)) >> 1 as last
        from words_idx
        group by segid
    )
    on id between segid << {_SEGMENT_BITS} | first and segid << {_SEGMENT_BITS} | last
    order by id"""  # noqa: S608


def read_indexed_terms(connection: apsw.Connection, space: int) -> Iterator[str]:
    """Yield the terms of a space in all pages of the index, including deleted ones that searches do not see."""
    prefix = _MAIN_INDEX_PREFIX + f"{space:x}_".encode()
    # `words_idx` has the beginning of the first term of each page. Other terms may start on the page before.
    for (block,) in connection.execute(_SELECT_PAGES_WITH_TERMS, (prefix, prefix[:-1] + b"`")):
        for term in parse_terms(block):
            if term.startswith(prefix):
                yield term[len(_MAIN_INDEX_PREFIX) :].decode()


def parse_terms(block: bytes) -> Iterator[bytes]:
    """Yield the terms that start in a page of a segment. All but the first are stored without the shared prefix."""
    at = int.from_bytes(block[2:4], "big")
    term, offset = b"", 0
    while at < len(block):
        step, at = _read_varint(block, at)
        shared, position = _read_varint(block, offset + step) if offset else (0, step)
        offset += step
        size, position = _read_varint(block, position)
        term = term[:shared] + block[position : position + size]
        yield term


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an integer of at most eight bytes in SQLite's encoding, and the offset after it."""
    value = 0
    while True:
        value = value << 7 | data[at] & 0x7F
        at += 1
        if data[at - 1] < 0x80:
            return value, at
