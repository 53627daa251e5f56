"""Where a Chroma is, as its URL says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from recollect.errors import BadSettings

_FORMS = "chroma:./DIRECTORY, chroma+http://HOST:PORT or chroma+https://TOKEN@HOST:PORT?tenant=…&database=…"
_OPTIONS = frozenset({"tenant", "database", "token_header"})
# Somebody who writes this means a server; a directory of that name would be a surprise.
_LOOKS_LIKE_A_SERVER = re.compile(r"//[^/.][^/]*:\d+/?")


@dataclass(frozen=True, slots=True)
class Address:
    """A directory, or a server with what it wants to know of its callers."""

    directory: Path | None = None
    host: str = ""
    port: int = 8000
    secure: bool = False
    token: str | None = None
    token_header: str = "Authorization"
    tenant: str = "default_tenant"
    database: str = "default_database"

    @classmethod
    def parse(cls, url: str) -> Address:
        scheme, _, rest = url.partition(":")
        if scheme in ("chroma+http", "chroma+https"):
            return _server(url)
        path = rest[2:] if rest.startswith("//") else rest
        if scheme != "chroma" or not path.strip() or _LOOKS_LIKE_A_SERVER.fullmatch(rest):
            raise BadSettings(f"{url.split('@')[-1]!r} names no Chroma; use {_FORMS}")
        directory, _, query = path.partition("?")
        return cls(directory=Path(directory), **_options(url, query, frozenset({"tenant", "database"})))

    def __str__(self) -> str:
        """The place in words, without the token."""
        return str(self.directory) if self.directory is not None else f"the Chroma server at {self.host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        if self.token is None:
            return {}
        bearer = self.token_header.lower() == "authorization"
        return {self.token_header: f"Bearer {self.token}" if bearer else self.token}


def _options(url: str, query: str, known: frozenset[str]) -> dict[str, Any]:
    try:
        given = parse_qs(query, strict_parsing=True) if query else {}
    except ValueError as error:
        raise BadSettings(f"{url.split('@')[-1]!r} names no Chroma ({error}); use {_FORMS}") from error
    if unknown := sorted(set(given) - known):
        wrong = f"there is no option {unknown[0]!r}"
        raise BadSettings(f"{url.split('@')[-1]!r} names no Chroma ({wrong}); use {_FORMS}")
    return {name: values[-1] for name, values in given.items()}


def _server(url: str) -> Address:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadSettings(f"{url.split('@')[-1]!r} names no Chroma server ({error}); use {_FORMS}") from error
    options = _options(url, parts.query, _OPTIONS)
    if not parts.hostname or parts.path not in ("", "/"):
        wrong = "a host and a port are all there is to name"
        raise BadSettings(f"{url.split('@')[-1]!r} names no Chroma server ({wrong}); use {_FORMS}")
    secure = parts.scheme == "chroma+https"
    return Address(
        host=parts.hostname,
        port=port or (443 if secure else 8000),
        secure=secure,
        token=unquote(parts.username) if parts.username else None,
        **options,
    )
