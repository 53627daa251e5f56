"""The default store: everything in one SQLite file, shared safely by threads and processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from pathlib import Path

import apsw

from recollect.clock import Clock, system_clock
from recollect.errors import StoreClosed, StoreUnavailable
from recollect.stores.base import SpaceTrace
from recollect.stores.sqlite import logs, tasks
from recollect.stores.sqlite.connection import EncryptionKey
from recollect.stores.sqlite.erasure import SqliteErasure
from recollect.stores.sqlite.integrity import SqliteHealth
from recollect.stores.sqlite.migrations import open_migrated
from recollect.stores.sqlite.records import SEQ_BITS, SqliteAccessBuffer, SqliteRecordWriter, from_optional_micros
from recollect.stores.sqlite.search_cache import SpaceCache, SqliteTermCache, SqliteVectorMatrix
from recollect.stores.sqlite.threads import SqliteReaderPool, SqliteWriter, run_in_reader
from recollect.stores.writes import Append, Clear, Delete, Drop, Embed, Put, TaskWrite, Touch, Write
from recollect.types import Space

_CACHE_MIB = 16

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


class SqliteStore(SqliteErasure, logs.SqliteLogs, tasks.SqliteTasks, SqliteHealth):
    """Records, logs and tasks in one file. `SqliteStore.open` may block: call it in a thread."""

    def __init__(
        self,
        connection: apsw.Connection,
        path: Path,
        *,
        cache_bytes: int,
        vacuum_limit_bytes: int,
        readers: int,
        clock: Clock,
        key: EncryptionKey | None,
    ) -> None:
        self.path = path
        self._vacuum_limit_bytes = vacuum_limit_bytes
        self._key = key
        self._clock = clock
        self._writer = SqliteWriter(connection, path)
        self._readers = SqliteReaderPool(path, threads=readers, cache_mib=_CACHE_MIB, key=key)
        self._vector_cache = SpaceCache(cache_bytes, SqliteVectorMatrix)
        # Terms take a few bytes an item, so an eighth of the budget holds more spaces than the vectors.
        self._term_cache = SpaceCache(max(cache_bytes // 8, 1 << 20), SqliteTermCache)
        self._speaker_cache = {}
        self._access_buffer = SqliteAccessBuffer()

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
        connection = open_migrated(path, key, migrates=migrates)
        return cls(
            connection,
            path,
            cache_bytes=cache_bytes,
            vacuum_limit_bytes=vacuum_limit_bytes,
            readers=readers,
            clock=clock,
            key=key,
        )

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
            await self._submit_writes(self._apply_writes, writes)

    @run_in_reader
    def trace_spaces(self, connection: apsw.Connection, tenant: str | None = None) -> list[SpaceTrace]:
        return [
            SpaceTrace(Space(*row[:5]), row[5], from_optional_micros(row[6]), bool(row[7]), row[8], bool(row[9]))
            for row in connection.execute(_SELECT_SPACES, (tenant, SEQ_BITS))
        ]

    def _apply_writes(self, connection: apsw.Connection, writes: Sequence[Write], now: datetime) -> None:
        """Apply all writes in order, or raise the first failure: the writer then rolls the batch back."""
        records = SqliteRecordWriter(connection)
        for task_key, group in groupby(writes, _get_task_key):
            if task_key is not None:
                task_writes = [write for write in group if isinstance(write, TaskWrite)]
                tasks.apply_task_writes(connection, records.get_or_create_space(task_key[0]), task_writes, now)
                continue
            for write in group:
                match write:
                    case Put() | Delete() | Touch() | Embed():
                        records.apply(write)
                    case Append() | Clear() | Drop():
                        logs.apply_log_write(connection, records.get_or_create_space(write.space), write, now)


def _get_task_key(write: Write) -> tuple[Space, str] | None:
    return (write.space, write.task) if isinstance(write, TaskWrite) else None
