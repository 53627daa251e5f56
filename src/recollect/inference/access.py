"""How a provider's model is reached: under which name, where, by which key, and how patiently."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import urlsplit

from recollect.clock import Clock
from recollect.errors import BadSettings, ExtraMissing
from recollect.inference.failures import Trouble
from recollect.inference.ledger import Ledger
from recollect.inference.prices import FREE, Price, price_of
from recollect.inference.retry import Retry
from recollect.settings import Secret

T = TypeVar("T")

_PLACED = re.compile(r"(?P<model>.*?)@(?P<url>https?://.+)")
# Their clients refuse to be made without a key, also for a server that asks for none.
_NO_KEY = Secret("none-needed")


@dataclass(frozen=True, slots=True)
class Named:
    """A model as a user writes it: "provider:model", or "provider:model@URL" for one that lives elsewhere."""

    provider: str
    model: str
    base_url: str = ""

    @classmethod
    def parsed(cls, text: str) -> Named:
        provider, _, rest = text.partition(":")
        placed = _PLACED.fullmatch(rest)
        model, url = (placed["model"], placed["url"]) if placed else (rest, "")
        if not model.strip():
            raise BadSettings(f"{text!r} names no model; write it as in 'openai:gpt-5-mini'")
        return cls(provider, model, url)

    @property
    def name(self) -> str:
        """Without the place: the same model elsewhere is the same model."""
        return f"{self.provider}:{self.model}"


@dataclass(frozen=True, slots=True)
class Access:
    """How one model is reached, and who keeps the books."""

    named: Named
    base_url: str
    key: Secret
    timeout: float
    retry: Retry
    ledger: Ledger
    clock: Clock

    @property
    def name(self) -> str:
        return self.named.name

    @property
    def is_local(self) -> bool:
        return is_loopback(self.base_url)

    @property
    def price(self) -> Price | None:
        """What the maker asks; nothing on one's own machine, and unknown with somebody else."""
        if self.is_local:
            return FREE
        return None if self.base_url else price_of(self.name)

    def cause_of(self, trouble: Trouble) -> BaseException | None:
        """The client's own error as the cause of ours, unless it quotes the key: a traceback prints its causes."""
        cause = trouble.__cause__
        quoted = f"{cause} {cause!r}" if cause else ""
        return None if self.key and self.key.reveal() in quoted else cause

    async def persist(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self.retry.persist(call)


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def checked_url(url: str) -> str:
    """A base URL that a client can use; empty for the provider's own."""
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise BadSettings(f"{url!r} is no base URL; write it as in 'http://localhost:11434/v1'")
    return url.rstrip("/")


def key_for(name: str, setting: Secret, variable: str, base_url: str, environ: Mapping[str, str]) -> Secret:
    """The key from the settings or the environment; a server on this machine needs none."""
    key = setting or Secret(environ.get(variable, ""))
    if key:
        return key
    if base_url and is_loopback(base_url):
        return _NO_KEY
    raise BadSettings(f"{name!r} needs a key: set {variable} in the environment, or {variable.lower()} in the settings")


def require(module: str, name: str, extra: str) -> None:
    """That the provider's client is installed, looked up without importing it: that takes seconds."""
    if find_spec(module) is None:
        raise ExtraMissing.of(f"{name!r}", extra, module.replace("_", "-"))
