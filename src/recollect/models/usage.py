"""Usage of models in tokens and dollars, the spend limit, and published prices."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass, replace
from typing import Any

from recollect.errors import SpendLimitReached
from recollect.models.chat import Usage

_log = logging.getLogger("recollect.models")

_DATE_SUFFIX = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
_TOKENS_PER_PRICE = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """US dollars for a million tokens; `cached` are read from the provider's cache, `kept` are written to it."""

    read: float
    written: float = 0.0
    cached: float | None = None
    kept: float | None = None

    def calculate_cost(self, read: int, written: int = 0, cached: int = 0, kept: int = 0) -> float:
        """Return the dollars for these tokens; `cached` and `kept` are included in `read`."""
        cached_price = self.read if self.cached is None else self.cached
        kept_price = self.read if self.kept is None else self.kept
        uncached = max(0, read - cached - kept)
        dollars = uncached * self.read + cached * cached_price + kept * kept_price + written * self.written
        return dollars / _TOKENS_PER_PRICE


FREE_PRICE = TokenPrice(0.0)
"""The price of a local model."""


def _build_claude_price(read: float, written: float) -> TokenPrice:
    # Anthropic charges a tenth for cached tokens, and a quarter more for writing them to the five-minute cache.
    return TokenPrice(read, written, cached=read / 10, kept=read * 1.25)


# The standard rates on platform.claude.com, developers.openai.com and docs.voyageai.com of 2026-11-15.
_PRICES = {
    f"{provider}:{model}": price
    for provider, models, price in (
        ("anthropic", "claude-opus-5 claude-opus-4-8 claude-opus-4-7", _build_claude_price(5, 25)),
        ("anthropic", "claude-opus-4-6 claude-opus-4-5", _build_claude_price(5, 25)),
        ("anthropic", "claude-sonnet-5", _build_claude_price(2, 10)),
        ("anthropic", "claude-sonnet-4-6 claude-sonnet-4-5", _build_claude_price(3, 15)),
        ("anthropic", "claude-haiku-4-5", _build_claude_price(1, 5)),
        ("openai", "gpt-5.5", TokenPrice(5, 30, cached=0.5)),
        ("openai", "gpt-5.4", TokenPrice(2.5, 15, cached=0.25)),
        ("openai", "gpt-5.4-mini", TokenPrice(0.75, 4.5, cached=0.075)),
        ("openai", "gpt-5.4-nano", TokenPrice(0.2, 1.25, cached=0.02)),
        ("openai", "gpt-5", TokenPrice(1.25, 10, cached=0.125)),
        ("openai", "gpt-5-mini", TokenPrice(0.25, 2, cached=0.025)),
        ("openai", "gpt-5-nano", TokenPrice(0.05, 0.4, cached=0.005)),
        ("openai", "gpt-4.1", TokenPrice(2, 8, cached=0.5)),
        ("openai", "gpt-4.1-mini", TokenPrice(0.4, 1.6, cached=0.1)),
        ("openai", "gpt-4.1-nano", TokenPrice(0.1, 0.4, cached=0.025)),
        ("openai", "gpt-4o", TokenPrice(2.5, 10, cached=1.25)),
        ("openai", "gpt-4o-mini", TokenPrice(0.15, 0.6, cached=0.075)),
        ("openai", "text-embedding-3-small", TokenPrice(0.02)),
        ("openai", "text-embedding-3-large", TokenPrice(0.13)),
        ("openai", "text-embedding-ada-002", TokenPrice(0.1)),
        ("voyage", "voyage-4-lite voyage-3.5-lite", TokenPrice(0.02)),
        ("voyage", "voyage-4 voyage-3.5", TokenPrice(0.06)),
        ("voyage", "voyage-4-large voyage-finance-2 voyage-law-2", TokenPrice(0.12)),
        ("voyage", "voyage-3-large voyage-code-3", TokenPrice(0.18)),
    )
    for model in models.split()
}


def find_price(name: str) -> TokenPrice | None:
    return _PRICES.get(name) or _PRICES.get(_DATE_SUFFIX.sub("", name))


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Usage of one model in tokens; `cached` is a part of `read`. `usd` is None if the price is unknown."""

    model: str
    calls: int = 0
    read: int = 0
    cached: int = 0
    written: int = 0
    embedded: int = 0
    usd: float | None = 0.0


class UsageLedger:
    """The usage of all models since a memory was opened."""

    def __init__(self, *, usd: float = 0.0, tokens: int = 0) -> None:
        """Limit language models to `usd` dollars and `tokens` tokens; 0 means no limit."""
        self.max_usd = usd
        self._max_tokens = tokens
        self._by_model: dict[str, ModelUsage] = {}
        self._lock = threading.Lock()
        self._is_warned = False

    @property
    def by_model(self) -> tuple[ModelUsage, ...]:
        """The usage of each model, in the order of their first calls."""
        with self._lock:
            return tuple(self._by_model.values())

    def record_chat(self, model: str, usage: Usage, price: TokenPrice | None, *, calls: int = 1) -> None:
        cost = None if price is None else price.calculate_cost(usage.read, usage.written, usage.cached, usage.kept)
        self._add(model, cost, calls=calls, read=usage.read, cached=usage.cached, written=usage.written)

    def record_embedding(self, model: str, tokens: int, price: TokenPrice | None) -> None:
        self._add(model, None if price is None else price.calculate_cost(tokens), calls=1, embedded=tokens)

    def check_budget(self, model: str) -> None:
        """Raise `SpendLimitReached` if a limit is reached; a running call is not stopped."""
        chats = [usage for usage in self.by_model if not usage.embedded]
        dollars = sum(usage.usd or 0.0 for usage in chats)
        tokens = sum(usage.read + usage.written for usage in chats)
        if self.max_usd and dollars >= self.max_usd:
            spent = f"${dollars:.4f} of llm_budget_usd={self.max_usd:g}"
        elif self._max_tokens and tokens >= self._max_tokens:
            spent = f"{tokens:,} of llm_budget_tokens={self._max_tokens:,}"
        else:
            return
        if not self._is_warned:
            self._is_warned = True
            _log.warning("language models have used %s; this memory now works without them", spent)
        raise SpendLimitReached(
            f"the language model {model!r} was not called: {spent} is spent; raise the limit, or open the memory again"
        )

    def _add(self, model: str, cost: float | None, **counts: int) -> None:
        with self._lock:
            usage = self._by_model.get(model, ModelUsage(model))
            totals: dict[str, Any] = {name: getattr(usage, name) + count for name, count in counts.items()}
            usd = None if usage.usd is None or cost is None else usage.usd + cost
            self._by_model[model] = replace(usage, usd=usd, **totals)
