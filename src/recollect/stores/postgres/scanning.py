"""Looking for what was erased, in our rows and in the server's files if we may; and saying what was not seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

from psycopg import AsyncConnection

from recollect.stores.postgres.evidence import Evidence
from recollect.stores.postgres.journey import Values
from recollect.stores.postgres.wiped import TABLES
from recollect.stores.receipts import Scan
from recollect.stores.traces import PIECE, Traces

_BYTES_AT_ONCE = 1 << 22
_ROWS_AT_ONCE = 500
# A table that is larger has more files, which are numbered.
_FILE_BYTES = 1 << 30

_MAY_READ = """
    select has_function_privilege('pg_read_binary_file(text, bigint, bigint, boolean)', 'execute')
        and has_function_privilege('pg_ls_waldir()', 'execute')
"""
# Tables, their indexes, and where the server keeps what is too long for a row.
_RELATIONS = """
    with ours as (
        select c.oid, c.reltoastrelid
        from pg_class c
        where (c.relnamespace = 'recollect'::regnamespace and c.relname = any(%(names)s))
            or c.oid = 'pg_catalog.pg_statistic'::regclass
    ),
    tables as (
        select oid from ours
        union all
        select reltoastrelid from ours where reltoastrelid <> 0
    )
    select pg_relation_filepath(oid), pg_relation_size(oid)
    from (
        select oid from tables
        union all
        select indexrelid from pg_index join tables on tables.oid = indrelid
    ) every
"""
_LOG = "select 'pg_wal/' || name, size from pg_ls_waldir()"
_READ = "select pg_read_binary_file(%(file)s, %(start)s, %(length)s, true)"

_STRAYS = """
    select (select count(*) from recollect.records where space = any(%(spaces)s))
        + (select count(*) from recollect.entries where space = any(%(spaces)s))
        + (select count(*) from recollect.tasks where space = any(%(spaces)s)),
        (select count(distinct (space, term)) from recollect.postings where space = any(%(spaces)s))
"""

# What is kept, and may be found in the files because it belongs there.
_LIVE = (
    """
    select id, content, metadata, superseded_by, source, key, session, speaker, derived_from, by_user, by_agent,
        by_session, terms
    from recollect.records
    """,
    "select data from recollect.vectors",
    "select id, kind, content, metadata from recollect.entries",
    "select id, plan_hash, owner from recollect.tasks",
    "select state from recollect.checkpoints",
    "select key, task, idempotency_key, input_sha, result, error from recollect.steps",
    "select tenant, handle, owner, agent, session from recollect.spaces",
    "select path from recollect.paths",
    "select id, subject, elsewhere, receipt from recollect.erasures",
)

_AROUND = """
    select current_setting('archive_mode') <> 'off',
        exists (select 1 from pg_stat_replication) or exists (select 1 from pg_replication_slots),
        current_setting('log_statement') in ('mod', 'all')
            or current_setting('log_min_duration_statement') <> '-1'
            or current_setting('log_min_duration_sample') <> '-1'
"""

_UNREAD = "the server's own files, which this user may not read: its tables and its log were written anew"


@dataclass(frozen=True, slots=True)
class Sought:
    """What to look for."""

    salt: bytes
    evidence: bytes
    beside: bool
    """Whether receipts are kept outside of the server."""


async def scan(connection: AsyncConnection[Any], sought: Sought) -> Scan:
    """Look wherever this user may."""
    evidence = Evidence.unpacked(sought.salt, sought.evidence)
    async with connection.transaction():
        await connection.execute("set local recollect.everyone = 'on'")
        numbers = [number for _, number in evidence.spaces]
        found, words = await _row(connection, _STRAYS, {"spaces": numbers})
        told = Scan(
            pieces=len(evidence.traces),
            of=evidence.traces.of,
            found=found,
            words=words,
            unseen=await _unseen(connection, beside=sought.beside),
        )
        [may_read] = await _row(connection, _MAY_READ)
        if not may_read:
            return replace(told, unseen=(_UNREAD, *told.unseen))
        files = await _files(connection, evidence)
        held: set[int] = set()
        for file, size in files:
            held |= await _found_in(connection, evidence.traces, file, size)
        shared = await _explained(connection, evidence.traces, held)
    return replace(
        told,
        files=len(files),
        bytes=sum(size for _, size in files),
        shared=len(shared),
        found=found + len(held - shared),
    )


async def _unseen(connection: AsyncConnection[Any], *, beside: bool) -> tuple[str, ...]:
    """Where copies may lie that are nobody's but the operator's to delete."""
    archived, followed, logged = await _row(connection, _AROUND)
    forgetful = "" if beside else "; name a file in the URL (?receipts=PATH), or one that is restored will remember"
    told = [f"backups and dumps that were made before{forgetful}"]
    if archived:
        told.append("the archive that the server's log is copied to")
    if followed:
        told.append("the files of replicas, which follow by themselves")
    if logged:
        told.append("the server's log of statements, which are written down there with their values")
    return tuple(told)


async def _files(connection: AsyncConnection[Any], evidence: Evidence) -> list[tuple[str, int]]:
    """Everything of ours that was erased from, the statistics, and the log: files and their sizes."""
    names = [f"{table}_{part}" for table in TABLES for part in evidence.parts]
    named = {"names": [*names, "meta", "erasures", "wiped"]}
    rows = await (await connection.execute(_RELATIONS, named)).fetchall()
    log = await (await connection.execute(_LOG)).fetchall()
    return [one for path, size in rows for one in _parts(path, size)] + [(str(name), int(size)) for name, size in log]


def _parts(path: str, size: int) -> Iterator[tuple[str, int]]:
    for number in range(-(-size // _FILE_BYTES)):
        yield f"{path}.{number}" if number else path, min(_FILE_BYTES, size - number * _FILE_BYTES)


async def _found_in(connection: AsyncConnection[Any], traces: Traces, file: str, size: int) -> set[int]:
    """The pieces that a file holds; nothing of one that is gone."""
    found: set[int] = set()
    for start in range(0, size, _BYTES_AT_ONCE):
        # What begins in one part may end in the next.
        [data] = await _row(connection, _READ, {"file": file, "start": start, "length": _BYTES_AT_ONCE + PIECE})
        if data is None:
            break
        found |= await asyncio.to_thread(traces.found_in, [data])
    return found


async def _explained(connection: AsyncConnection[Any], traces: Traces, found: set[int]) -> set[int]:
    """Those that something which is still kept holds too."""
    shared: set[int] = set()
    async for some in _live(connection):
        if found <= shared:
            break
        shared |= await asyncio.to_thread(traces.found_in, [some]) & found
    return shared


async def _live(connection: AsyncConnection[Any]) -> AsyncIterator[bytes]:
    for statement in _LIVE:
        async with connection.cursor("scanning", binary=True) as cursor:
            await cursor.execute(statement)
            while rows := await cursor.fetchmany(_ROWS_AT_ONCE):
                yield b"\0".join(_bytes(value) for row in rows for value in row if value)


async def _row(connection: AsyncConnection[Any], statement: str, values: Values | None = None) -> tuple[Any, ...]:
    row = await (await connection.execute(statement, values, binary=True)).fetchone()
    assert row is not None
    return tuple(row)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
