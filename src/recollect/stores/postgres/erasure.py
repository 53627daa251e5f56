"""Provable erasure: the ledger, the cleanup of the server's disk, and the scan for what is left.

Deleted rows stay in the table files until these are rewritten, which is done for each partition from which something
was erased. Planner statistics and the WAL belong to the whole server. They are cleared only on request.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from psycopg import errors, sql

from recollect.errors import Conflict
from recollect.stores import erasure
from recollect.stores.codec import detect_corruption, detects_corruption
from recollect.stores.erasure import ByteScan, ErasureChange, ErasureRecord, ErasureSelection, ErasureStore
from recollect.stores.filters import iter_metadata_paths
from recollect.stores.postgres import codec
from recollect.stores.postgres.connections import PostgresConnection, Rows, SqlParams, get_first_line
from recollect.stores.postgres.transactions import PostgresServer, PostgresTransaction
from recollect.stores.traces import PIECE_BYTES, DeletionTraces, select_pieces
from recollect.stores.writes import Delete, Drop, DropTask, Put, Write
from recollect.types import Space


class PostgresErasure(ErasureStore):
    """The methods of erasures, without the deletion itself."""

    receipts: Path | None = None

    def __init__(self, server: PostgresServer, receipts: Path | None) -> None:
        self._server = server
        self.receipts = receipts
        self._salt: bytes | None = None
        self._cleanup_blockers: list[str] = []
        self._uncleared: str | None = _UNCLEARED
        """The place that may hold copies, unless it was cleared."""

    async def salt(self) -> bytes:
        if self._salt is None:
            [[salt]] = await self._server.read(None, "select value from recollect.meta where name = 'salt'")
            self._salt = bytes.fromhex(salt)
        return self._salt

    async def set_salt(self, salt: bytes) -> None:
        async with self._server.begin_write(None, LEDGER_LOCKS) as work:
            if await work.fetch_rows("select 1 from recollect.erasures limit 1"):
                raise Conflict(
                    "the ledger of erasures has another key than the receipts file, which belongs to another store; "
                    "name another file"
                )
            await work.execute("update recollect.meta set value = %(salt)s where name = 'salt'", {"salt": salt.hex()})
        self._salt = None

    async def ledger(self, *, unfinished: bool = False) -> list[ErasureRecord]:
        rows = await self._server.read(None, _LIST_ERASURES, {"unfinished": unfinished})
        return [_decode_erasure(row) for row in rows]

    async def change_erasure(self, id: str, change: ErasureChange) -> ErasureRecord:
        async with self._server.begin_write(None, LEDGER_LOCKS) as work:
            before = await _load_erasure(work, id)
            link, last = next(iter(await work.fetch_rows(_GET_LAST_RECEIPT)), (0, None))
            with detect_corruption("the last receipt in the ledger of erasures"):
                row = change(before, None if last is None else erasure.ErasureReceipt.from_json(json.loads(last)))
            if is_finished := row.receipt is not None and (before is None or before.receipt is None):
                spaces, partitions, traces = _decode_evidence(b"", row.evidence)
                row = replace(row, evidence=_encode_evidence(spaces, partitions, traces.sample))
            await _save_erasure(work, row, link + 1 if is_finished else None)
            return row

    async def purge_copies(self, *, thorough: bool = False, deferrable: bool = False) -> bool:
        async with self._server.open_connection() as connection:
            self._cleanup_blockers = await _rewrite_partitions(connection)
            if thorough:
                reason = await _clear_statistics_and_wal(connection)
                self._uncleared = f"{_STATISTICS_AND_WAL}: {reason}" if reason else None
        return not self._cleanup_blockers

    async def scan(self, evidence: bytes, key: bytes) -> ByteScan:
        # Reported once, by the scan after the cleanup: a scan also verifies receipts of long ago.
        blockers, self._cleanup_blockers = tuple(self._cleanup_blockers), []
        uncleared, self._uncleared = self._uncleared, _UNCLEARED
        async with self._server.open_connection() as connection:
            scan = await _scan_for_evidence(connection, _decode_evidence(key, evidence), is_cleared=uncleared is None)
        hint = "" if self.receipts else "; name a file in the URL (?receipts=PATH): a restored one brings data back"
        unseen = (*scan.unseen, uncleared, f"backups and dumps from before the erasure{hint}")
        return replace(scan, waits=blockers, unseen=tuple(filter(None, unseen)))


# Evidence: numbers of erased spaces, which are never reused, numbers of partitions, and hashes of data.

_HEADER_BYTES = 4
_Evidence = tuple[set[tuple[int, int]], set[int], DeletionTraces]
"""The partition and number of each space that was erased as a whole, the partitions, and the hashes."""


def _decode_evidence(key: bytes, packed: bytes) -> _Evidence:
    if not packed:
        return set(), set(), DeletionTraces.from_pieces(key, [])
    end = _HEADER_BYTES + int.from_bytes(packed[:_HEADER_BYTES], "little")
    spaces, partitions = json.loads(packed[_HEADER_BYTES:end])
    return {(part, number) for part, number in spaces}, set(partitions), DeletionTraces.from_bytes(key, packed[end:])


def _encode_evidence(spaces: set[tuple[int, int]], partitions: set[int], traces: DeletionTraces) -> bytes:
    header = json.dumps([sorted(spaces), sorted(partitions)]).encode()
    return len(header).to_bytes(_HEADER_BYTES, "little") + header + traces.as_bytes


# Ledger.

# Its holder is the only writer of the ledger.
LEDGER_LOCKS = {0x5265636F_00000003: False}

_ERASURE_COLUMNS = [field.name for field in fields(ErasureRecord)]
_SELECT_ERASURES = f"select {', '.join(_ERASURE_COLUMNS)} from recollect.erasures"  # noqa: S608 - constant names
_LIST_ERASURES = f"""
    {_SELECT_ERASURES} where phase <> 'complete' or not %(unfinished)s order by link nulls last, requested_at, id
"""
_GET_ERASURE = f"{_SELECT_ERASURES} where id = %(id)s"

_SAVE_ERASURE = f"""
    insert into recollect.erasures ({", ".join(_ERASURE_COLUMNS)}, link)
    values ({", ".join(f"%({name})s" for name in _ERASURE_COLUMNS)}, %(link)s) on conflict (id) do update
    set phase = excluded.phase, deleted_at = excluded.deleted_at, erased = excluded.erased,
        rederived = excluded.rederived, evidence = excluded.evidence, receipt = excluded.receipt, key = excluded.key,
        link = coalesce(erasures.link, excluded.link)
"""  # noqa: S608 - constant names

_GET_LAST_RECEIPT = "select link, receipt from recollect.erasures where link is not null order by link desc limit 1"


async def _load_erasure(work: PostgresTransaction, id: str) -> ErasureRecord | None:
    rows = await work.fetch_rows(_GET_ERASURE, {"id": id})
    return _decode_erasure(rows[0]) if rows else None


async def _save_erasure(work: PostgresTransaction, record: ErasureRecord, link: int | None = None) -> None:
    """Insert or replace a row of the ledger; `link` is its place in the chain."""
    columns = {name: codec.encode_value(value) for name, value in record.as_json_columns().items()}
    await work.execute(_SAVE_ERASURE, {**columns, "link": link})


@detects_corruption("a row of the ledger of erasures")
def _decode_erasure(row: tuple[Any, ...]) -> ErasureRecord:
    values = dict(zip(_ERASURE_COLUMNS, row, strict=True))
    times = {name: codec.decode_timestamp(values[name]) for name in ("requested_at", "deleted_at")}
    return ErasureRecord.from_json_columns(**values | times)


# Cleanup: tables.

PARTITIONED_TABLES = ("spaces", "records", "paths", "vectors", "postings", "entries", "tasks", "checkpoints", "steps")

# Longer than autovacuum needs to yield, and short enough for transactions that queue behind the lock.
SET_LOCK_TIMEOUT = "set local lock_timeout = '3s'"

_NOTE_PARTITIONS = """
    insert into recollect.wiped (part, server, xid)
    select unnest(%s::bigint[]), (select system_identifier from pg_control_system()), pg_current_xact_id()
    on conflict (part) do update set server = excluded.server, xid = excluded.xid
"""
# Transaction ids of another server mean nothing here, so its partitions are rewritten again.
_RESET_AFTER_SERVER_CHANGE = """
    update recollect.wiped set server = here.system_identifier, xid = pg_current_xact_id()
    from pg_control_system() here where server <> here.system_identifier
"""
_LIST_PENDING_PARTITIONS = "select part, xid::text from recollect.wiped order by part"
# Another erasure may have touched the partition meanwhile.
_DELETE_NOTE = "delete from recollect.wiped where part = %s and xid = %s::text::xid8"

# A rewritten table's `relfrozenxid` is the oldest transaction for which it keeps deleted rows. Smallest tables first:
# if one of them is held back by an old snapshot, so are the others.
_FIND_STALE_TABLES = """
    select relname from pg_class
    where oid = any(%s::text[]::regclass[]) and age(relfrozenxid) >= age(%s::text::xid8::xid)
    order by pg_total_relation_size(oid), relname
"""
# HNSW indexes of erased spaces.
_FIND_ORPHAN_INDEXES = """
    select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid
    where i.indrelid = to_regclass(%s) and starts_with(c.relname, 'near_')
        and not exists (select 1 from recollect.spaces s where s.id = split_part(c.relname, '_', 2)::bigint)
"""

_STILL_VISIBLE_MESSAGE = (
    "an older transaction, replica or slot can still see the deleted rows; end it (select pid, usename from "
    "pg_stat_activity where backend_xmin is not null; see also pg_prepared_xacts and pg_replication_slots), then run: "
    "recollect lifecycle"
)
_LOCK_ERRORS = (errors.LockNotAvailable, errors.QueryCanceled, errors.DeadlockDetected)


async def note_partitions(connection: PostgresConnection, numbers: list[int]) -> None:
    """Note in the deleting transaction that these partitions have to be rewritten."""
    await connection.execute(_NOTE_PARTITIONS, (numbers,))


async def _rewrite_partitions(connection: PostgresConnection) -> list[str]:
    """Rewrite the partitions from which something was erased. Return what blocks it, as sentences."""
    blockers: dict[str, None] = {}
    await connection.execute(_RESET_AFTER_SERVER_CHANGE)
    for number, xid in await connection.fetch_rows(_LIST_PENDING_PARTITIONS):
        try:
            blocker = await _rewrite_tables(connection, number, xid)
        except _LOCK_ERRORS as error:
            reason = get_first_line(error)
            blocker = f"another session holds a table to rewrite ({reason}); retry later with: recollect lifecycle"
        except errors.InsufficientPrivilege as error:
            blocker = (
                f"this user may not rewrite tables ({get_first_line(error)}); run as their owner: recollect lifecycle "
                "--store postgresql://OWNER@…"
            )
        if blocker is None:
            await connection.execute(_DELETE_NOTE, (number, xid))
        else:
            blockers[blocker] = None
    return list(blockers)


async def _rewrite_tables(connection: PostgresConnection, number: int, xid: str) -> str | None:
    """Rewrite each table of a partition, with its indexes and TOAST, without the rows deleted by a transaction."""
    async with connection.transaction():
        await connection.execute(SET_LOCK_TIMEOUT)
        await connection.execute("set local recollect.everyone = 'on'")
        find = await connection.execute(_FIND_ORPHAN_INDEXES, (f"recollect.vectors_{number}",))
        for (name,) in await find.fetchall():
            await connection.execute(sql.SQL("drop index {}").format(sql.Identifier("recollect", name)))
    partitions = [f"recollect.{table}_{number}" for table in PARTITIONED_TABLES]
    for name in await _find_stale_tables(connection, partitions, xid):
        table, key = sql.Identifier("recollect", name), sql.Identifier(f"{name}_pkey")
        async with connection.transaction():
            await connection.execute(SET_LOCK_TIMEOUT)
            # CLUSTER, since VACUUM FULL cannot run in a transaction, which limits the lock timeout to this statement.
            await connection.execute(sql.SQL("cluster {} using {}").format(table, key))
            await connection.execute(sql.SQL("alter table {} set without cluster").format(table))
        if await _find_stale_tables(connection, [f"recollect.{name}"], xid):
            return _STILL_VISIBLE_MESSAGE
    return None


async def _find_stale_tables(connection: PostgresConnection, names: list[str], xid: str) -> list[str]:
    return [name for (name,) in await connection.fetch_rows(_FIND_STALE_TABLES, (names, xid))]


# Cleanup: copies that the whole server keeps, only if the caller asks for it.

_STATISTICS_AND_WAL = "the server's planner statistics and write-ahead log"
_UNCLEARED = f"{_STATISTICS_AND_WAL}, until it overwrites them; to clear both, erase with `thorough=True`"
# All sessions plan with pg_statistic. It is small, and rewriting it blocks them for no longer than this.
_STATISTICS_TIMEOUT_SECONDS = 10.0
# Each switch fills a file, of 16 MB by default, with zeros.
_MAX_WAL_SWITCHES = 64

_LIST_ANALYZED_TABLES = """
    select relname from pg_class
    where relnamespace = 'recollect'::regnamespace and relkind in ('r', 'p') and reltuples >= 0
    order by relname
"""
# One tenant per partition. They cannot exist, since names have no control characters.
_FIND_PLACEHOLDER_TENANTS = """
    select array_agg(tenant)
    from (
        select distinct on (part) chr(2) || number as tenant from generate_series(0, 15) part
        cross join generate_series(1, 1000) number
        where satisfies_hash_partition('recollect.spaces'::regclass, 16, part, chr(2) || number)
    ) picked
"""
_INSERT_PLACEHOLDER_ROWS = """
    insert into {table}
    select (json_populate_record(null::{table}, (
        select json_object_agg(
            attname,
            case when attname = 'tenant' then tenant when atttypid = 'halfvec'::regtype then '[0]' else '0' end
        )
        from pg_attribute where attrelid = {name}::regclass and attnum > 0 and not attisdropped
    ))).*
    from unnest(%s::text[]) tenant
"""
_GET_CURRENT_WAL_FILE = "select substr(pg_walfile_name(pg_current_wal_insert_lsn()), 9)"  # without the timeline
_LIST_WAL_FILES = "select substr(name, 9) from pg_ls_waldir() where name ~ '^[0-9A-F]{24}$' order by 1"


async def _clear_statistics_and_wal(connection: PostgresConnection) -> str | None:
    """Overwrite both. Return why something old is left, or None."""
    try:
        return await renew_statistics(connection) or await overwrite_wal(connection)
    except errors.InsufficientPrivilege as error:
        return (
            f"{get_first_line(error)}; have an administrator run in this database, once: grant pg_checkpoint, "
            "pg_monitor to USER; grant execute on function pg_switch_wal() to USER"
        )
    except (*_LOCK_ERRORS, TimeoutError) as error:
        return f"other sessions hold a table or pg_statistic ({get_first_line(error)}); retry later"


async def renew_statistics(connection: PostgresConnection) -> str | None:
    """Analyze the tables, and rewrite pg_statistic without the old values. Return what blocks it.

    ANALYZE skips an empty table and keeps its old statistics, so each gets a placeholder row for the time being.
    """
    async with connection.transaction():
        await connection.execute(SET_LOCK_TIMEOUT)
        await connection.execute("set local recollect.everyone = 'on'")
        [[tenants]] = await connection.fetch_rows(_FIND_PLACEHOLDER_TENANTS)
        tables = [sql.Identifier("recollect", name) for name in PARTITIONED_TABLES]
        for table in tables:
            insert = sql.SQL(_INSERT_PLACEHOLDER_ROWS).format(table=table, name=sql.Literal(table.as_string()))
            await connection.execute(insert, (tenants,))
        for (name,) in await connection.fetch_rows(_LIST_ANALYZED_TABLES):
            await connection.execute(sql.SQL("analyze {}").format(sql.Identifier("recollect", name)))
        for table in tables:
            await connection.execute(sql.SQL("delete from {} where tenant = any(%s)").format(table), (tenants,))
        [[xid]] = await connection.fetch_rows("select pg_current_xact_id()::text")
    async with asyncio.timeout(_STATISTICS_TIMEOUT_SECONDS):
        await connection.execute("vacuum full pg_catalog.pg_statistic")
    if await _find_stale_tables(connection, ["pg_catalog.pg_statistic"], xid):
        return "only the owner of the database may rewrite pg_statistic, and no older transaction may be open"
    return None


async def overwrite_wal(connection: PostgresConnection) -> str | None:
    """Switch WAL files until each file from before was removed or overwritten. Return what blocks it.

    The server does not delete a file that it no longer needs: it renames it for later use, with its contents. So the
    log is advanced beyond the last file that is listed after a checkpoint.
    """
    [[end]] = await connection.fetch_rows(_GET_CURRENT_WAL_FILE)
    await _switch_wal(connection)
    await connection.execute("checkpoint")
    files = [file for (file,) in await connection.fetch_rows(_LIST_WAL_FILES)]
    if files[0] <= end:
        return (
            f"{sum(file <= end for file in files)} older WAL files are kept for an archive, a replica, a slot or "
            "wal_keep_size (see pg_stat_archiver and pg_replication_slots)"
        )
    for _ in range(_MAX_WAL_SWITCHES):
        [[current]] = await connection.fetch_rows(_GET_CURRENT_WAL_FILE)
        if current > files[-1]:
            return None
        await _switch_wal(connection)
    return f"some old WAL files are not overwritten after {_MAX_WAL_SWITCHES} switches; repeat it to continue"


async def _switch_wal(connection: PostgresConnection) -> None:
    await connection.execute("select pg_current_xact_id()")  # a file to which nothing was written is not switched
    await connection.execute("select pg_switch_wal()")


# Scan.

_SCAN_CHUNK_BYTES = 1 << 22

# Tables and their indexes and TOAST tables.
_LIST_FILES = """
    with ours as (
        select c.oid, c.reltoastrelid from pg_class c
        where (c.relnamespace = 'recollect'::regnamespace and c.relname = any(%(names)s))
            or (%(is_cleared)s and c.oid = 'pg_catalog.pg_statistic'::regclass)
    ),
    tables as (
        select oid from ours
        union all
        select reltoastrelid from ours where reltoastrelid <> 0
    )
    select pg_relation_filepath(oid) from tables
    union all
    select pg_relation_filepath(indexrelid) from pg_index join tables on tables.oid = indrelid
    union all
    select 'pg_wal/' || name from pg_ls_waldir() where %(is_cleared)s
"""
_READ_FILE = "select pg_read_binary_file(%(file)s, %(start)s, %(length)s, true)"

_COUNT_LEFTOVERS = """
    select (select count(*) from recollect.records where space = any(%(spaces)s))
        + (select count(*) from recollect.entries where space = any(%(spaces)s))
        + (select count(*) from recollect.tasks where space = any(%(spaces)s)),
        (select count(distinct (space, term)) from recollect.postings where space = any(%(spaces)s))
"""

_GET_SERVER_SETTINGS = """
    select has_function_privilege('pg_read_binary_file(text, bigint, bigint, boolean)', 'execute')
            and has_function_privilege('pg_ls_waldir()', 'execute'),
        current_setting('archive_mode') <> 'off',
        exists (select 1 from pg_stat_replication) or exists (select 1 from pg_replication_slots),
        current_setting('log_statement') in ('mod', 'all')
            or current_setting('log_min_duration_statement') <> '-1'
            or current_setting('log_min_duration_sample') <> '-1'
"""

_COPY_PLACES = (
    "the WAL archive",
    "the files of replicas, which replay the deletion",
    "the server's statement log, which contains parameter values",
)
_FILES_NOT_READ_MESSAGE = "the server's files, which this user may not read: its tables were rewritten"


async def _scan_for_evidence(connection: PostgresConnection, evidence: _Evidence, *, is_cleared: bool) -> ByteScan:
    """Search the tables, and the server's files if the user may read them, for what was erased."""
    spaces, partitions, traces = evidence
    found, size = set[int](), 0
    async with connection.transaction():
        await connection.execute("set local recollect.everyone = 'on'")
        numbers = {"spaces": [number for _, number in spaces]}
        [[leftovers, terms]] = await connection.fetch_rows(_COUNT_LEFTOVERS, numbers)
        [(can_read, *has_copies)] = await connection.fetch_rows(_GET_SERVER_SETTINGS)
        unseen = tuple(place for place, is_used in zip(_COPY_PLACES, has_copies, strict=True) if is_used)
        scan = ByteScan(pieces=len(traces), of=traces.total, found=leftovers, words=terms, unseen=unseen)
        if not can_read:
            return replace(scan, unseen=(_FILES_NOT_READ_MESSAGE, *unseen))
        # The files of the erased partitions, and those of the statistics and the WAL if they were cleared.
        names = [f"{table}_{part}" for table in PARTITIONED_TABLES for part in partitions]
        values = {"names": [*names, "meta", "erasures", "wiped"], "is_cleared": is_cleared}
        paths = [path for (path,) in await connection.fetch_rows(_LIST_FILES, values)]
        for path in paths:
            async for data in _read_file(connection, path):
                size += min(len(data), _SCAN_CHUNK_BYTES)
                found |= await asyncio.to_thread(traces.find_in, [data])
        shared = await _find_shared_pieces(connection, traces, found)
    return replace(scan, files=len(paths), bytes=size, shared=len(shared), found=leftovers + len(found - shared))


async def _read_file(connection: PostgresConnection, path: str) -> AsyncIterator[bytes]:
    """Yield the content of a file and of the numbered files into which the server splits a large table.

    The chunks overlap by the length of a piece.
    """
    for number in count():
        for start in count(step=_SCAN_CHUNK_BYTES):
            file = f"{path}.{number}" if number else path
            values = {"file": file, "start": start, "length": _SCAN_CHUNK_BYTES + PIECE_BYTES}
            [[data]] = await connection.fetch_rows(_READ_FILE, values)
            if not data:
                break
            yield data
        if start == 0:  # there is no such file, or it is empty
            return


async def _find_shared_pieces(connection: PostgresConnection, traces: DeletionTraces, found: set[int]) -> set[int]:
    """Return the pieces that existing rows contain too."""
    shared: set[int] = set()
    for table in _DATA_COLUMNS:
        async for rows in _stream_data(connection, table):
            if found <= shared:
                return shared
            data = b"\0".join(value for row in rows for value in row)
            shared |= await asyncio.to_thread(traces.find_in, [data]) & found
    return shared


# Deletion.

_FIND_SPACE = """
    select id, next_seq, substring(tableoid::regclass::text from '[0-9]+$')::bigint from recollect.spaces
    where tenant = %(tenant)s and handle = %(handle)s
"""
_PLACE_OF_ITEM = f"place = (select place from recollect.records where {codec.OF_SPACE_SQL} and handle = %(name)s)"  # noqa: S608
_SELECT_PATHS = f"select path from recollect.paths where {codec.OF_SPACE_SQL}"  # noqa: S608 - a constant clause, here and below
_SELECT_METADATA = f"select metadata from recollect.records where {codec.OF_SPACE_SQL} and metadata <> '{{}}'"  # noqa: S608
_DELETE_PATHS = f"delete from recollect.paths where {codec.OF_SPACE_SQL} and path = any(%(paths)s)"  # noqa: S608

_DELETE_SPACE_ROWS = [f"delete from recollect.{table} where {codec.OF_SPACE_SQL}" for table in PARTITIONED_TABLES[1:]]  # noqa: S608
_DELETE_SPACE = "delete from recollect.spaces where tenant = %(tenant)s and id = %(space)s"

# The last fence of all erased spaces. A fence is never reused: the holder of an erased task's lease could use it.
_SAVE_LAST_FENCE = """
    insert into recollect.meta (name, value) values ('last_fence', %(fence)s::text)
    on conflict (name) do update set value = greatest(meta.value::bigint, excluded.value::bigint)::text
"""


class Deletion:
    """Evidence and counts of what one transaction deletes. A stored space is given by its parameters in statements."""

    def __init__(self, work: PostgresTransaction) -> None:
        self._work = work
        self._pieces: list[bytes] = []
        self._spaces: set[tuple[int, int]] = set()
        self._partitions: set[int] = set()
        self._changed: dict[Space, SqlParams | None] = {}
        self._counts: Counter[str] = Counter()

    async def collect(self, selection: ErasureSelection) -> None:
        """Delete the spaces of a selection, and collect what its writes are about to delete."""
        for space in selection.spaces:
            await self._delete_space(space)
        for write in selection.writes:
            if write.space not in self._changed:
                self._changed[write.space] = await self._find_space(write.space)
            if (row := self._changed[write.space]) is not None:
                await self._collect_write(row, write)

    async def finish(self, id: str, selection: ErasureSelection) -> None:
        """After the writes, add the evidence and counts to the ledger entry of the erasure."""
        for space, row in self._changed.items():
            if row is not None:
                await self._work.switch_tenant(space.tenant)
                await self._delete_unused_paths(row)
        before = erasure.require_erasure(id, await _load_erasure(self._work, id))
        spaces, partitions, known = _decode_evidence(before.key, before.evidence)
        traces = known.merge(DeletionTraces.from_pieces(before.key, self._pieces))
        evidence = _encode_evidence(spaces | self._spaces, partitions | self._partitions, traces)
        self._counts.update(before.erased)
        rederived = before.rederived + sum(isinstance(write, Put) for write in selection.writes)
        after = replace(before, erased=self._counts, rederived=rederived, evidence=evidence)
        await _save_erasure(self._work, after)
        await note_partitions(self._work.connection, sorted(self._partitions))

    async def _find_space(self, space: Space) -> SqlParams | None:
        """Return the number of a space, the last place or fence that it has assigned, and its partition."""
        await self._work.switch_tenant(space.tenant)
        params = {"tenant": codec.escape_text(space.tenant), "handle": codec.build_space_handle(space)}
        for number, last_seq, partition in await self._work.fetch_rows(_FIND_SPACE, params):
            self._partitions.add(partition)
            return params | {"space": number, "fence": last_seq, "partition": partition}
        return None

    async def _delete_space(self, space: Space) -> None:
        """Delete a space with all its rows, and count its items, entries and tasks."""
        if (row := await self._find_space(space)) is None:
            return
        self._spaces.add((row["partition"], row["space"]))
        await self._collect(space, dict.fromkeys(_DATA_OF_SPACE, "true"), row)
        for name in (space.tenant, row["handle"], space.user, space.agent, space.session):
            self._pieces.extend(select_pieces(name.encode()))
        for statement in (*_DELETE_SPACE_ROWS, _DELETE_SPACE, _SAVE_LAST_FENCE):
            await self._work.execute(statement, row)

    async def _collect_write(self, row: SqlParams, write: Write) -> None:
        """Collect the data that a write is about to delete, and count its items, entries and tasks."""
        await self._work.switch_tenant(write.space.tenant)
        match write:
            case Delete():
                row = {**row, "name": codec.build_handle(write.id)}
                conditions = {"records": "handle = %(name)s", "vectors": _PLACE_OF_ITEM}
            case DropTask():
                row = {**row, "name": codec.build_handle(write.task)}
                conditions = {"tasks": "handle = %(name)s"}
                conditions |= dict.fromkeys(("checkpoints", "steps"), "task = %(name)s")
            case Drop():
                row = {**row, "seqs": list(write.seqs)}
                conditions = {"entries": "seq = any(%(seqs)s)"}
            case _:
                return
        await self._collect(write.space, conditions, row)

    async def _collect(self, space: Space, conditions: Mapping[str, str], row: SqlParams) -> None:
        """Collect the rows of a space that meet the condition for their table, and count items, entries and tasks."""
        for table, condition in conditions.items():
            async for rows in _stream_data(self._work.connection, table, f"{codec.OF_SPACE_SQL} and {condition}", row):
                self._counts[space.tier] += len(rows) if table in ("records", "entries", "tasks") else 0
                self._pieces.extend(piece for values in rows for value in values for piece in select_pieces(value))

    async def _delete_unused_paths(self, row: SqlParams) -> None:
        """Delete the metadata paths that no remaining item has. A path may contain a name."""
        used: set[str] = set()
        async for rows in _stream_rows(self._work.connection, _SELECT_METADATA, row):
            used.update(path for (text,) in rows for path in iter_metadata_paths(codec.load_metadata(text)))
        paths = [path for (path,) in await self._work.fetch_rows(_SELECT_PATHS, row)]
        if unused := [path for path in paths if codec.unescape_text(path) not in used]:
            await self._work.execute(_DELETE_PATHS, {**row, "paths": unused})


# Data of users.

_ROWS_PER_FETCH = 500

_DATA_COLUMNS = {
    "records": (
        "id, content, metadata, superseded_by, source, key, session, speaker, derived_from, by_user, by_agent, "
        "by_session, terms"
    ),
    "vectors": "data",
    "entries": "id, kind, content, metadata",
    "tasks": "id, plan_hash, owner",
    "checkpoints": "state",
    "steps": "key, task, idempotency_key, input_sha, result, error",
    "spaces": "tenant, handle, owner, agent, session",
    "paths": "path",
    "erasures": "id, subject, elsewhere, receipt",
}


_DATA_OF_SPACE = [table for table in _DATA_COLUMNS if table not in ("spaces", "erasures")]


async def _stream_data(
    connection: PostgresConnection, table: str, condition: str = "true", values: SqlParams | None = None
) -> AsyncIterator[list[list[bytes]]]:
    """Yield the values of many rows at a time, as they are on disk."""
    statement = f"select {_DATA_COLUMNS[table]} from recollect.{table} where {condition}"  # noqa: S608 - constants
    async for rows in _stream_rows(connection, statement, values):
        if table == "vectors":  # little-endian, without the header of the wire format
            yield [[np.frombuffer(data, ">f2", offset=4).astype("<f2").tobytes()] for (data,) in rows]
        else:
            yield [
                [value if isinstance(value, bytes) else str(value).encode() for value in row if value] for row in rows
            ]


async def _stream_rows(
    connection: PostgresConnection, statement: str, values: SqlParams | None = None
) -> AsyncIterator[Rows]:
    """Yield rows through a server-side cursor, since a user's data may not fit into memory."""
    async with connection.cursor("streaming", binary=True) as cursor:
        await cursor.execute(statement.encode(), values)
        while rows := await cursor.fetchmany(_ROWS_PER_FETCH):
            yield rows
