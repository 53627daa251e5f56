"""What models cost, as their makers published it on a day: a small table, for the ledger and the spend limit."""

from __future__ import annotations

import re
from dataclasses import dataclass

AS_OF = "2026-11-15"
"""Of the standard rates on platform.claude.com/docs, developers.openai.com/api/docs/pricing and docs.voyageai.com."""

_DATED = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens; `cached` are read from the provider's cache, `kept` were written to it."""

    read: float
    written: float = 0.0
    cached: float | None = None
    kept: float | None = None

    def of(self, read: int, written: int = 0, cached: int = 0, kept: int = 0) -> float:
        """The dollars for these tokens; `cached` and `kept` are among those that were read."""
        by_cache = self.read if self.cached is None else self.cached
        by_keeping = self.read if self.kept is None else self.kept
        plain = max(0, read - cached - kept)
        return (plain * self.read + cached * by_cache + kept * by_keeping + written * self.written) / _MILLION


FREE = Price(0.0)
"""Of a model on one's own machine."""


def _claude(read: float, written: float) -> Price:
    """Anthropic takes a tenth for what is in the cache, and a quarter more for putting it there for five minutes."""
    return Price(read, written, cached=read / 10, kept=read * 1.25)


_TABLE = {
    "anthropic:claude-opus-5": _claude(5, 25),
    "anthropic:claude-opus-4-8": _claude(5, 25),
    "anthropic:claude-opus-4-7": _claude(5, 25),
    "anthropic:claude-opus-4-6": _claude(5, 25),
    "anthropic:claude-opus-4-5": _claude(5, 25),
    "anthropic:claude-sonnet-5": _claude(2, 10),
    "anthropic:claude-sonnet-4-6": _claude(3, 15),
    "anthropic:claude-sonnet-4-5": _claude(3, 15),
    "anthropic:claude-haiku-4-5": _claude(1, 5),
    "openai:gpt-5.5": Price(5, 30, cached=0.5),
    "openai:gpt-5.4": Price(2.5, 15, cached=0.25),
    "openai:gpt-5.4-mini": Price(0.75, 4.5, cached=0.075),
    "openai:gpt-5.4-nano": Price(0.2, 1.25, cached=0.02),
    "openai:gpt-5": Price(1.25, 10, cached=0.125),
    "openai:gpt-5-mini": Price(0.25, 2, cached=0.025),
    "openai:gpt-5-nano": Price(0.05, 0.4, cached=0.005),
    "openai:gpt-4.1": Price(2, 8, cached=0.5),
    "openai:gpt-4.1-mini": Price(0.4, 1.6, cached=0.1),
    "openai:gpt-4.1-nano": Price(0.1, 0.4, cached=0.025),
    "openai:gpt-4o": Price(2.5, 10, cached=1.25),
    "openai:gpt-4o-mini": Price(0.15, 0.6, cached=0.075),
    "openai:text-embedding-3-small": Price(0.02),
    "openai:text-embedding-3-large": Price(0.13),
    "openai:text-embedding-ada-002": Price(0.1),
    "voyage:voyage-4-large": Price(0.12),
    "voyage:voyage-4": Price(0.06),
    "voyage:voyage-4-lite": Price(0.02),
    "voyage:voyage-3.5": Price(0.06),
    "voyage:voyage-3.5-lite": Price(0.02),
    "voyage:voyage-3-large": Price(0.18),
    "voyage:voyage-code-3": Price(0.18),
    "voyage:voyage-finance-2": Price(0.12),
    "voyage:voyage-law-2": Price(0.12),
}


def price_of(name: str) -> Price | None:
    """The price of "provider:model", dated versions included; None where the table does not know it."""
    return _TABLE.get(name) or _TABLE.get(_DATED.sub("", name))
