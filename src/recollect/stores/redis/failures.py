"""What a Redis server or the way to it can do to us, in our own words and with the way out."""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

from redis import exceptions

from recollect.errors import BadSettings, RecollectError, StoreCorrupt, StoreFull, StoreUnavailable

E = TypeVar("E", bound=BaseException)
T = TypeVar("T")

FAILURES = (exceptions.RedisError, exceptions.RedisClusterException)
"""Everything that the client raises; of a cluster it has another family."""

_PASSING = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.RedisClusterException,
)
_REFUSED = (exceptions.AuthenticationError, exceptions.AuthorizationError)
# A line that is cut while it is being encrypted; anything else about TLS stays as it is.
_CUT = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
# What a script of ours says of a value that it did not write: it counts on what it wrote itself.
_MISREAD = re.compile(r"user_script:\d+: (attempt to|bad argument)")


_PERHAPS = ". If something was being written it may have arrived: write it again with the same ids, which never doubles"


async def answered(work: Callable[[], Awaitable[T]]) -> T:
    """What the work answers. In the client, a line that another call has closed meanwhile is a missing attribute."""
    try:
        return await work()
    except AttributeError as error:
        if error.obj is not None or not _is_of_client(error):
            raise
        raise exceptions.ConnectionError("the line was closed under way") from error


def _is_of_client(error: BaseException) -> bool:
    """Whether it was raised in the client's own code."""
    raised = error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    return raised is not None and str(raised.tb_frame.f_globals.get("__name__", "")).startswith("redis.")


def passes(error: Exception) -> bool:
    """Whether it may be over in a moment: a server that restarts, a line that was cut, a cluster that elects.

    Not with another password, nor with another certificate: trying again changes nothing.
    """
    return isinstance(error, _PASSING) and _beneath(error, *_REFUSED) is None and _encryption(error) is None


def shown(url: str) -> str:
    """A URL without its password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def said(error: Exception, url: str, *, reads: bool = False) -> RecollectError:
    """The error that a caller sees; who only reads is not told what may have become of a write."""
    place, text = shown(url), str(error)
    if (unsafe := _encryption(error)) is not None:
        return _unsafe(unsafe, place)
    if _beneath(error, *_REFUSED) or "NOAUTH" in text or "WRONGPASS" in text:
        return StoreUnavailable(
            f"{place} refused the user or the password ({text}); put them into the URL: redis://USER:PASSWORD@HOST"
        )
    if isinstance(error, exceptions.NoPermissionError) or "NOPERM" in text or "ACL failure" in text:
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
    if "WRONGTYPE" in text or _MISREAD.search(text):
        return StoreCorrupt(
            f"{place} holds something under our names that is not as it was written ({text:.200}); restore a backup, "
            "or use a database of its own"
        )
    if "DB index is out of range" in text:
        return StoreUnavailable(
            f"{place} has no database of that number; name one from 0 on, or set more in its configuration: databases"
        )
    if isinstance(error, _PASSING):
        return StoreUnavailable(f"{_unreached(error, place)}{'' if reads else _PERHAPS}")
    return StoreUnavailable(f"{place} answered with an error: {text}")


def _unreached(error: Exception, place: str) -> str:
    text = str(error)
    if isinstance(error, exceptions.ClusterDownError | exceptions.TryAgainError) or "cluster is down" in text.lower():
        return (
            f"of the cluster at {place} nobody answers for these keys ({text}); see that each primary runs, or a "
            "replica that takes its place"
        )
    tls = "speaks TLS" if place.startswith("rediss") else "speaks without TLS (if not: rediss://)"
    return f"{place} cannot be reached ({text}); see that the server runs and {tls}"


def silent(url: str, seconds: float, *, reads: bool) -> StoreUnavailable:
    """The error for a server that is there and says nothing."""
    perhaps = "" if reads else _PERHAPS
    return StoreUnavailable(f"{shown(url)} has not answered for {seconds:g} seconds; see that it runs{perhaps}")


def _beneath(error: BaseException | None, *kinds: type[E]) -> E | None:
    """The error of one of these kinds that a failure comes of, or is; what a caller was handling is no part of it."""
    words = str(error)
    while error is not None:
        if isinstance(error, kinds) and str(error.args[-1] if error.args else "") in words:
            return error
        error = error.__cause__ or error.__context__
    return None


def _encryption(error: Exception) -> OSError | None:
    """What is wrong with TLS, or with the files that it was told to use."""
    found = _beneath(error, ssl.SSLError, FileNotFoundError, PermissionError)
    return None if isinstance(found, _CUT) else found


def _unsafe(error: OSError, place: str) -> RecollectError:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return BadSettings(
            f"TLS with {place} cannot begin ({error}); see that ssl_ca_certs, and ssl_certfile with ssl_keyfile where "
            "the server asks for them, name files in PEM form"
        )
    why = error.verify_message
    if "mismatch" in why:
        return StoreUnavailable(
            f"{place} shows a certificate of another name ({why}); use the name that it was made for, or have one made "
            "for this name"
        )
    return StoreUnavailable(
        f"{place} shows a certificate that nobody known here vouches for ({why}); name the authority's file: "
        "rediss://HOST?ssl_ca_certs=/PATH/TO/ca.pem"
    )
