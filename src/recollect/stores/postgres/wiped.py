"""Partitions that something was erased from, and how far the server's disk has been cleared of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection

TABLES = ("spaces", "records", "paths", "vectors", "postings", "entries", "tasks", "checkpoints", "steps")

OVERTAKEN = "something else was erased meanwhile; go on: recollect lifecycle"

# Longer than autovacuum needs to make room, and short enough for those who wait behind us.
LOCK_WAIT = "set local lock_timeout = '3s'"

_WIPED = """
    insert into recollect.wiped (part, server, xid)
    select unnest(%s::bigint[]), (select system_identifier from pg_control_system()), pg_current_xact_id()
    on conflict (part) do update
    set server = excluded.server, xid = excluded.xid, analysed = null, ended = null, upto = null
"""

# Of another server the numbers mean nothing: everything is done for them once more.
_ADOPTED = """
    update recollect.wiped
    set server = here.system_identifier, xid = pg_current_xact_id(), analysed = null, ended = null, upto = null
    from pg_control_system() here
    where server <> here.system_identifier
"""
_LEFT = "select part, xid::text, analysed::text, ended::text, upto from recollect.wiped order by part"

_SAME = "where part = %s and xid = %s::text::xid8"
_ANALYSED = f"update recollect.wiped set analysed = pg_current_xact_id() {_SAME} returning analysed::text"  # noqa: S608
_ENDED = f"update recollect.wiped set ended = pg_current_wal_insert_lsn() {_SAME} returning ended::text"  # noqa: S608
_UPTO = f"update recollect.wiped set upto = %s {_SAME}"  # noqa: S608
_DONE = f"delete from recollect.wiped {_SAME}"  # noqa: S608


@dataclass(slots=True)
class Wiped:
    """One partition. What is noted of it holds until something else is erased from it."""

    part: int
    xid: str
    """The last transaction that erased something from it."""
    analysed: str | None
    """The transaction in which its statistics were made anew."""
    ended: str | None
    """Where the log ended when tables and statistics were without it."""
    upto: str | None
    """The file that the log has to get past."""

    @property
    def tables(self) -> list[str]:
        return [f"{table}_{self.part}" for table in TABLES]

    async def note_analysed(self, connection: AsyncConnection[Any]) -> None:
        self.analysed = await self._noted(connection, _ANALYSED)

    async def note_ended(self, connection: AsyncConnection[Any]) -> None:
        self.ended = await self._noted(connection, _ENDED)

    async def note_upto(self, connection: AsyncConnection[Any], file: str) -> None:
        await connection.execute(_UPTO, (file, self.part, self.xid))
        self.upto = file

    async def note_done(self, connection: AsyncConnection[Any]) -> None:
        await connection.execute(_DONE, (self.part, self.xid))

    async def _noted(self, connection: AsyncConnection[Any], statement: str) -> str | None:
        row = await (await connection.execute(statement, (self.part, self.xid))).fetchone()
        return None if row is None else str(row[0])


async def note(connection: AsyncConnection[Any], parts: list[int]) -> None:
    """Note that this transaction erases something from these."""
    await connection.execute(_WIPED, (parts,))


async def left(connection: AsyncConnection[Any]) -> list[Wiped]:
    """Those that are not cleared yet."""
    await connection.execute(_ADOPTED)
    return [Wiped(*row) for row in await (await connection.execute(_LEFT)).fetchall()]
