"""Providers' endpoints: model name, base URL, key and price, and the errors of a call."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from recollect.errors import BadSettings, ExtraMissing
from recollect.models.usage import FREE_PRICE, TokenPrice, UsageLedger, find_price
from recollect.settings import Secret

_MODEL_AT_URL = re.compile(r"(?P<model>.*?)@(?P<url>https?://.+)")
# The SDKs require a key, also for a local server that needs none.
_PLACEHOLDER_KEY = Secret("none-needed")

_BILLING_ERRORS = {"insufficient_quota", "billing_error", "billing_hard_limit_reached"}
_ERROR_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,60}")
_NO_MONEY_MESSAGE = "says that the account has no money left ({code}); see its billing page"
_KEY_MESSAGE = "refused the key ({code}); check that it is complete, of this provider, and allowed for this model"
_STATUS_MESSAGES = {
    400: "refused the request ({code}); is the prompt too long, or does the model take no tools?",
    401: _KEY_MESSAGE,
    403: _KEY_MESSAGE,
    404: "does not know this model or address ({code}); check the model's name and the base URL",
    413: "finds the request too large ({code}); send less at once",
    429: "is asked too often ({code}); slow down, or ask for a higher limit",
    500: "had an internal error ({code}); try again later",
    503: "is overloaded ({code}); try again later",
    529: "is overloaded ({code}); try again later",
}
_STATUS_BY_ERROR_NAME = {
    "overloaded_error": 529,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
}


def parse_model_name(text: str) -> tuple[str, str]:
    """Return "provider:model" and the URL of "provider:model@URL": on another server it is the same model."""
    provider, _, rest = text.partition(":")
    match = _MODEL_AT_URL.fullmatch(rest)
    model, url = (match["model"], match["url"]) if match else (rest, "")
    if not model.strip():
        raise BadSettings(f"{text!r} names no model; write it as in 'openai:gpt-5-mini'")
    return f"{provider}:{model}", url


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """One model with its connection options and the ledger of its usage."""

    name: str
    base_url: str
    key: Secret
    timeout: float
    max_retries: int
    ledger: UsageLedger

    @property
    def model(self) -> str:
        """The name without the provider."""
        return self.name.partition(":")[2]

    @property
    def is_local(self) -> bool:
        return is_loopback(self.base_url)

    @property
    def price(self) -> TokenPrice | None:
        """The published price; 0 for a local server, None for other servers and unknown models."""
        if self.is_local:
            return FREE_PRICE
        return None if self.base_url else find_price(self.name)

    def get_safe_cause(self, error: ProviderError) -> BaseException | None:
        """Return the SDK's error as the cause, unless it quotes the key: tracebacks print causes."""
        cause = error.__cause__
        text = f"{cause} {cause!r}" if cause else ""
        return None if self.key and self.key.reveal() in text else cause


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def parse_base_url(url: str) -> str:
    """Return a base URL without its last slash; an empty one stays empty."""
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise BadSettings(f"{url!r} is not a base URL; write it as in 'http://localhost:11434/v1'")
    return url.rstrip("/")


def find_api_key(name: str, setting: Secret, variable: str, base_url: str) -> Secret:
    """Return the key from the settings or the environment; a local server needs none."""
    key = setting or Secret(os.environ.get(variable, ""))
    if key:
        return key
    if base_url and is_loopback(base_url):
        return _PLACEHOLDER_KEY
    raise BadSettings(f"{name!r} needs a key: set {variable} in the environment, or {variable.lower()} in the settings")


def require_package(module: str, name: str, extra: str) -> None:
    """Raise `ExtraMissing` if a package is not installed; importing it would take seconds."""
    if find_spec(module) is None:
        raise ExtraMissing.for_feature(f"{name!r}", extra)


class ProviderError(Exception):
    """A failed call. Its message has the status and the error's name, and nothing else from the provider."""

    def __init__(self, message: str, *, is_charged: bool = False) -> None:
        super().__init__(message)
        self.is_charged = is_charged
        """The provider may have read the prompt, and charges for it."""


def error_from_status(status: int, body: Any, *, is_charged: bool = False) -> ProviderError:
    """Return the error for a status; the provider's message is left out, because it may quote the prompt or the key."""
    name = _find_error_name(body)
    if status < 400:  # an error inside a stream that began with 200
        status = _STATUS_BY_ERROR_NAME.get(name or "", 500)
    other = _STATUS_MESSAGES[500 if status >= 500 else 400]
    message = _NO_MONEY_MESSAGE if name in _BILLING_ERRORS else _STATUS_MESSAGES.get(status, other)
    return ProviderError(message.format(code=f"{status} {name}" if name else status), is_charged=is_charged)


def connection_error(cause: str, *, is_charged: bool = False) -> ProviderError:
    return ProviderError(f"could not be reached: {cause}; check the network and the address", is_charged=is_charged)


def timeout_error(seconds: float, problem: str = "gave no answer within", *, is_charged: bool = False) -> ProviderError:
    return ProviderError(f"{problem} {seconds:g} s; try again later, or raise the timeout", is_charged=is_charged)


def _find_error_name(body: Any) -> str | None:
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    if not isinstance(inner, Mapping):
        return None
    names = [inner.get("code"), inner.get("type")]
    return next((name for name in names if isinstance(name, str) and _ERROR_NAME.fullmatch(name)), None)
