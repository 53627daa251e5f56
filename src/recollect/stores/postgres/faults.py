"""What a PostgreSQL server or its driver complains of, as our errors with the way out."""

from __future__ import annotations

import asyncio
from types import TracebackType

import psycopg
from psycopg import errors

from recollect.errors import BadInput, BadSettings, RecollectError, StoreFull, StoreUnavailable
from recollect.stores.calls import calls_off

CLOSED = "this store was closed; open it again to use it"


class _Translated:
    """Entered for every statement, where a generator would cost more than it does."""

    __slots__ = ("_before", "_place")

    def __init__(self, place: str) -> None:
        self._place = place
        self._before = calls_off()

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tell(error)

    def tell(self, error: BaseException | None) -> None:
        """Raise our own error for one of the driver's; any other is the caller's to raise."""
        if isinstance(error, psycopg.Error):
            if calls_off() > self._before:
                raise asyncio.CancelledError from error
            raise ours(error, self._place) from error
        if isinstance(error, UnicodeEncodeError):
            raise BadInput(
                f"a text has half a character (a lone surrogate) at {error.start}; decode it properly"
            ) from error


def translated(place: str) -> _Translated:
    """Driver errors become ours, with their cause; `place` names the server without any password."""
    return _Translated(place)


def ours(error: psycopg.Error, place: str) -> RecollectError:
    match error:
        case errors.DiskFull():
            return StoreFull(f"there is no room left at {place}; free some space and try again, nothing was lost")
        case errors.InsufficientPrivilege():
            database = place.rsplit("/")[-1]
            # Who may not even make the schema, and who meets one that somebody else has made.
            way_out = (
                f"grant create on database {database} to USER"
                if "for database" in _said(error)
                else f"grant OWNER to USER (OWNER: whoever opened the store in {database} first)"
            )
            return StoreUnavailable(
                f"{place} does not let this user work ({_said(error)}); have an administrator run: {way_out}"
            )
        case errors.ReadOnlySqlTransaction():
            return StoreUnavailable(f"{place} is read-only; name the primary server, not a replica")
        case errors.TooManyConnections():
            return StoreUnavailable(f"{place} has no connection left; raise max_connections, or set `readers` lower")
        case errors.ProgramLimitExceeded() | errors.StringDataRightTruncation() | errors.NumericValueOutOfRange():
            return BadInput(f"{place} does not take a value of this size: {_said(error)}")
        case errors.DeadlockDetected() | errors.SerializationFailure():
            return StoreUnavailable(f"others were faster at {place}, and nothing was written; try again")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return StoreUnavailable(
                f"{place} cannot be reached ({_said(error)}); is it running? What was under way is done or not, but "
                "never by half; look, then try again"
            )
        case _:
            return StoreUnavailable(f"{place} could not do it: {_said(error)}")


def not_opened(error: psycopg.Error, place: str, user: str) -> RecollectError:
    """Why a first connection failed: only the server's words tell, since it sends no code before one is made."""
    said = _said(error)
    if isinstance(error, psycopg.ProgrammingError):
        return BadSettings(f"{place} is no address of a PostgreSQL server: {said}")
    if "password" in said:
        return StoreUnavailable(
            f"{place} refused the password of {user!r}; put the right one into the URL or ~/.pgpass"
        )
    if "does not exist" in said and "database" in said:
        return StoreUnavailable(f"{place} has no such database; create it: createdb {place.rsplit('/')[-1]}")
    if "does not exist" in said or "no pg_hba.conf entry" in said:
        return StoreUnavailable(f"{place} does not know the user {user!r} from here: {said}")
    if "timeout expired" in said:
        said = "it did not answer"
    return StoreUnavailable(f"{place} cannot be reached: {said}; check the host and port, and that it is running")


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
