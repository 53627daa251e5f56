"""What Chroma or the way to it complains of, as our errors with the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import httpx
from chromadb import errors

from recollect.errors import BadSettings, RecollectError, StoreCorrupt, StoreFull, StoreUnavailable
from recollect.stores.chroma.address import Address

CLOSED = "this store was closed; open it again to use it"

_DENIED = re.compile(r"\b(401|403|unauthori[sz]ed|forbidden|authentication|permission)\b", re.IGNORECASE)
_FULL = re.compile(r"disk (I/O error|is full)|no space left|database or disk is full", re.IGNORECASE)
_FOREIGN = re.compile(r"migration|inconsistent|no such (table|column)|not a database|malformed|schema", re.IGNORECASE)


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Chroma's errors become ours, with their cause; `place` names it without any token."""
    try:
        yield
    except (RecollectError, errors.NotFoundError):  # the second is an answer, and whoever asked knows what to do
        raise
    except httpx.TimeoutException as error:
        raise StoreUnavailable(f"{place} did not answer in time; what was asked may or may not be done") from error
    except Exception as error:  # the client raises bare Exceptions for what a server answers
        raise ours(error, place) from error


def ours(error: Exception, place: str) -> RecollectError:
    said = _said(error)
    if isinstance(error, httpx.HTTPError) or "Could not connect" in said:
        return StoreUnavailable(f"{place} cannot be reached ({said}); is it running? Then try again")
    if isinstance(error, errors.ChromaAuthError | errors.AuthorizationError) or _DENIED.search(said):
        return StoreUnavailable(
            f"{place} refused this caller ({said}); put the right token into the URL: chroma+http://TOKEN@HOST:PORT"
        )
    if "hnsw" in str(error).lower():
        return StoreCorrupt(
            f"Chroma's index files at {place} were torn when it died ({said}); stop it, delete the folders beside "
            "chroma.sqlite3 that hold an index_metadata.pickle, and start it again: nothing of Recollect's is in them"
        )
    if _FULL.search(said):
        return StoreFull(f"there is no room left at {place}; free some space and try again, nothing was lost")
    if isinstance(error, errors.InvalidDimensionException) or "dimension" in said:
        return StoreCorrupt(
            f"{place} holds vectors of another length than it should ({said}); is this collection somebody else's? "
            "Name another database in the URL, or another directory"
        )
    if isinstance(error, errors.VersionMismatchError) or _FOREIGN.search(said):
        return StoreCorrupt(
            f"{place} was made by a Chroma that this one cannot read ({said}); install the chromadb that made it, or "
            "name an empty directory and import an export"
        )
    return StoreUnavailable(f"{place} could not do it: {said}")


def knock(address: Address, patience: float) -> None:
    """Ask a server for the database, before its client does so without a limit of time."""
    scheme = "https" if address.secure else "http"
    tenant, database = quote(address.tenant, safe=""), quote(address.database, safe="")
    url = f"{scheme}://{address.host}:{address.port}/api/v2/tenants/{tenant}/databases/{database}"
    answer = httpx.get(url, headers=address.headers, timeout=patience)
    if answer.status_code in (401, 403):
        raise ours(errors.ChromaAuthError(f"it answers {answer.status_code}"), str(address))
    if answer.status_code == 404 and "error" in answer.text:
        raise BadSettings(
            f"{address} has no database {address.database!r} of a tenant {address.tenant!r}; create it with chromadb's "
            "AdminClient, or leave ?tenant= and ?database= out of the URL"
        )
    if answer.status_code != 200:
        raise StoreUnavailable(
            f"{address} does not answer as a Chroma of version 1 does (it says {answer.status_code}); is the port "
            "right? An older server has to be upgraded: pip install --upgrade chromadb"
        )


def not_opened(error: Exception, directory: str, tenant: str, database: str) -> RecollectError:
    """Why a directory could not be opened."""
    if isinstance(error, errors.NotFoundError):
        return BadSettings(f"{directory} has no database {database!r} of a tenant {tenant!r}")
    return ours(error, directory)


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
