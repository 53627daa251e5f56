"""Why a call to a provider failed, in our words: whether to ask again, and what somebody can do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from recollect.clock import Clock

# Too slow, a clash, too often, and everything that is the server's own fault (529: overloaded).
_WORTH_ANOTHER_TRY = {408, 409, 425, 429, 529}
# Money does not come back by waiting.
_OUT_OF_MONEY = {"insufficient_quota", "billing_error", "billing_hard_limit_reached"}
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_.-]{0,60}")
_STATUS_OF = {
    "overloaded_error": 529,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
}


class Trouble(Exception):
    """A call that failed. The message holds nothing that came from the provider but its status and its error's name."""

    def __init__(self, what: str, *, again: bool = False, wait: float | None = None, charged: bool = False) -> None:
        super().__init__(what)
        self.again = again
        """Whether the same call may succeed a little later."""
        self.wait = wait
        """The seconds that the provider asked us to wait."""
        self.charged = charged
        """Whether the provider may have read what was sent, and charges for it."""


def of_status(status: int, headers: Mapping[str, str], body: Any, clock: Clock, *, charged: bool = False) -> Trouble:
    """What an answer with an error status means; the provider's own words stay out, they may quote prompt or key."""
    kind = _kind(body)
    if status < 400:  # an error in the middle of a stream that began well
        status = _STATUS_OF.get(kind or "", 500)
    again = (status in _WORTH_ANOTHER_TRY or status >= 500) and kind not in _OUT_OF_MONEY
    said = f"{status} {kind}" if kind else str(status)
    return Trouble(_advice(status, kind, said), again=again, wait=_asked_to_wait(headers, clock), charged=charged)


def lost(how: str, *, charged: bool = False) -> Trouble:
    return Trouble(f"could not be reached: {how}; check the network and the address", again=True, charged=charged)


def too_slow(seconds: float, *, charged: bool = False) -> Trouble:
    said = f"gave no answer within {seconds:g} s; try again later, or allow it more time"
    return Trouble(said, again=True, charged=charged)


def stalled(seconds: float) -> Trouble:
    """Not asked again: it is at work, and would be paid for the same work twice."""
    return Trouble(
        f"began its answer, and then nothing came for {seconds:g} s; try again later, or allow it more time",
        charged=True,
    )


def _advice(status: int, kind: str | None, said: str) -> str:
    if kind in _OUT_OF_MONEY:
        return f"says that the account has no money left ({said}); see its billing page"
    match status:
        case 401 | 403:
            return f"refused the key ({said}); check that it is whole, of this provider, and allowed to use this model"
        case 404:
            return f"does not know this model or address ({said}); check the model's name and the base URL"
        case 413:
            return f"finds the request too large ({said}); send less at once"
        case 429:
            return f"is asked too often ({said}); slow down, or ask for a higher limit"
        case 503 | 529:
            return f"is overloaded ({said}); try again later"
        case _ if status >= 500:
            return f"has a fault of its own ({said}); try again later"
        case _:
            return f"refused the request ({said}); is the prompt too long, or does the model take no tools?"


def _kind(body: Any) -> str | None:
    """The name the provider gives to the error, if that is a name."""
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    if not isinstance(inner, Mapping):
        return None
    names = [inner.get("code"), inner.get("type")]
    return next((name for name in names if isinstance(name, str) and _IDENTIFIER.fullmatch(name)), None)


def _asked_to_wait(headers: Mapping[str, str], clock: Clock) -> float | None:
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get("retry-after")
    seconds = _number(given)
    if seconds is not None or given is None:
        return seconds
    try:
        until = parsedate_to_datetime(given)
    except ValueError:
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - clock()).total_seconds())


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text.strip()) else None
