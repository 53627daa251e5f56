"""The server's log of changes: every file that was written before an erasure was done has to be gone or overwritten."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection, errors

from recollect.stores.postgres.wiped import Wiped

# Each is a whole file of zeros, 16 MB mostly. What is left after so many the next attempt goes on with.
_SWITCHES = 64

_FILE = "select pg_walfile_name(%s::text::pg_lsn)"
_HERE = "select pg_walfile_name(pg_current_wal_insert_lsn())"
_FILES = "select name from pg_ls_waldir() where name ~ '^[0-9A-F]{24}$'"
_WHO = "select quote_ident(current_user)"


async def passed(connection: AsyncConnection[Any], wiped: Wiped) -> str | None:
    """Have the log go on until none of its files is as old as that; or what is in the way.

    A file that is not needed any more is not deleted: it is renamed and waits to be written over, with its contents.
    So the names are noted once the old ones are gone, and the log goes on past the last of them.
    """
    if wiped.upto is None:
        end = _number(await _one(connection, _FILE, wiped.ended))
        if await _here(connection) <= end and not await _switched(connection):
            return await _unable(connection, "have the server's log go on to its next file")
        asked = await _checkpointed(connection)
        try:
            files = sorted(_number(row[0]) for row in await (await connection.execute(_FILES)).fetchall())
        except errors.InsufficientPrivilege:
            return await _unable(connection, "look at the list of the server's log files")
        if files[0] <= end:
            kept = sum(one <= end for one in files)
            return _kept(kept) if asked else await _unable(connection, "make a checkpoint")
        await wiped.note_upto(connection, files[-1])
    for _ in range(_SWITCHES):
        if wiped.upto is None or await _here(connection) > wiped.upto:
            return None
        if not await _switched(connection):
            return await _unable(connection, "have the server's log go on to its next file")
    return (
        f"the server's log has not written over all of its old files after {_SWITCHES} more; go on: recollect lifecycle"
    )


def _number(file: str) -> str:
    """A file's name without the timeline: these are in the order of the log."""
    return file[8:]


async def _one(connection: AsyncConnection[Any], statement: str, *values: Any) -> str:
    [value] = await (await connection.execute(statement, values)).fetchone() or ("",)
    return str(value)


async def _here(connection: AsyncConnection[Any]) -> str:
    return _number(await _one(connection, _HERE))


async def _switched(connection: AsyncConnection[Any]) -> bool:
    """Begin another file; what is left of this one is filled with zeros. False when that is not ours to do."""
    try:
        # From a file in which nothing has been written it would not go on.
        await connection.execute("select pg_current_xact_id()")
        await connection.execute("select pg_switch_wal()")
    except errors.InsufficientPrivilege:
        return False
    return True


async def _checkpointed(connection: AsyncConnection[Any]) -> bool:
    try:
        await connection.execute("checkpoint")
    except errors.InsufficientPrivilege:  # the server makes one by itself every few minutes
        return False
    return True


def _kept(count: int) -> str:
    return (
        f"{count} older files of the server's log are kept for an archive, a replica, a slot or wal_keep_size (see "
        "pg_stat_archiver and pg_replication_slots); once they are not: recollect lifecycle"
    )


async def _unable(connection: AsyncConnection[Any], what: str) -> str:
    who = await _one(connection, _WHO)
    return (
        f"{who} may not {what}; have an administrator run in this database, once: grant pg_checkpoint, pg_monitor to "
        f"{who}; grant execute on function pg_switch_wal() to {who}; then go on: recollect lifecycle"
    )
