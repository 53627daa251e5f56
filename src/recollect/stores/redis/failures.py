"""What a Redis server or the way to it can do to us, in our own words and with the way out."""

from __future__ import annotations

from urllib.parse import urlsplit

from redis import exceptions

from recollect.errors import RecollectError, StoreCorrupt, StoreFull, StoreUnavailable

PASSING = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ClusterDownError, exceptions.TryAgainError)
"""What may be over in a moment: a server that restarts, a line that was cut, a cluster that elects."""

REFUSED = (exceptions.AuthenticationError, exceptions.AuthorizationError)
"""Among those that pass by their type alone: trying again with the same password changes nothing."""


def shown(url: str) -> str:
    """A URL without its password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def said(error: exceptions.RedisError, url: str) -> RecollectError:
    """The error that a caller sees."""
    place, text = shown(url), str(error)
    if isinstance(error, REFUSED) or "NOAUTH" in text or "WRONGPASS" in text:
        return StoreUnavailable(
            f"{place} refused the user or the password ({text}); put them into the URL: redis://USER:PASSWORD@HOST"
        )
    if isinstance(error, exceptions.NoPermissionError) or "NOPERM" in text:
        return StoreUnavailable(
            f"{place} does not let this user do what is needed ({text}); as an admin: "
            "ACL SETUSER USER ~recollect:* +@read +@write +@scripting +info +time +config|get"
        )
    if isinstance(error, exceptions.OutOfMemoryError):
        return StoreFull(
            f"{place} has reached its maxmemory; nothing was written and reads go on: "
            "CONFIG SET maxmemory to more, or let some memory be forgotten"
        )
    if "MISCONF" in text or "No space left" in text:
        return StoreFull(f"{place} cannot write to its disk ({text}); make room there, nothing was written")
    if isinstance(error, exceptions.ReadOnlyError):
        return StoreUnavailable(f"{place} is a replica that takes no writes; name the primary")
    if "WRONGTYPE" in text:
        return StoreCorrupt(f"{place} holds something else under our names ({text}); use a database of its own")
    if isinstance(error, PASSING):
        return StoreUnavailable(
            f"{place} cannot be reached ({text}); see that the server runs. What was being written may have arrived: "
            "write it again with the same ids, which never doubles"
        )
    return StoreUnavailable(f"{place} answered with an error: {text}")
