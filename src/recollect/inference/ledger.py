"""What models have cost since a memory was opened, in tokens and dollars, and how much they may."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from recollect.errors import SpendLimitReached
from recollect.inference.chat import Usage
from recollect.inference.prices import Price

_log = logging.getLogger("recollect.inference")


@dataclass(frozen=True, slots=True)
class Spent:
    """What one model has cost so far, in tokens; `usd` is None where its price is not known.

    `cached` of those that were read came from the provider's cache. Embedders have `embedded` and nothing else.
    """

    model: str
    calls: int = 0
    read: int = 0
    cached: int = 0
    written: int = 0
    embedded: int = 0
    usd: float | None = 0.0


class Ledger:
    """Everything that one opened memory asked of models, added up."""

    def __init__(self, *, usd: float = 0.0, tokens: int = 0) -> None:
        """Language models may cost `usd` dollars and `tokens` tokens; 0 is no limit."""
        self._most_usd = usd
        self._most_tokens = tokens
        self._spent: dict[str, Spent] = {}
        self._lock = threading.Lock()
        self._warned = False

    @property
    def spent(self) -> tuple[Spent, ...]:
        """What each model has cost, in the order in which they were first asked."""
        with self._lock:
            return tuple(self._spent.values())

    @property
    def limited_in_dollars(self) -> bool:
        return self._most_usd > 0

    def talked(self, model: str, usage: Usage, price: Price | None) -> None:
        cost = None if price is None else price.of(usage.read, usage.written, usage.cached, usage.kept)
        self._add(Spent(model, 1, read=usage.read, cached=usage.cached, written=usage.written, usd=cost))

    def embedded(self, model: str, tokens: int, price: Price | None) -> None:
        self._add(Spent(model, 1, embedded=tokens, usd=None if price is None else price.of(tokens)))

    def check(self, model: str) -> None:
        """Whether a language model may be asked once more. What is under way is not stopped in the middle."""
        talk = [one for one in self.spent if not one.embedded]
        dollars = sum(one.usd or 0.0 for one in talk)
        tokens = sum(one.read + one.written for one in talk)
        reached = None
        if self._most_usd and dollars >= self._most_usd:
            reached = f"${dollars:.4f} of llm_budget_usd={self._most_usd:g}"
        elif self._most_tokens and tokens >= self._most_tokens:
            reached = f"{tokens:,} of llm_budget_tokens={self._most_tokens:,}"
        if reached is None:
            return
        if not self._warned:
            self._warned = True
            _log.warning("language models have cost %s; from now on this memory works without them", reached)
        raise SpendLimitReached(
            f"the language model {model!r} was not asked, {reached} being spent; raise the limit, "
            "or open the memory again"
        )

    def _add(self, more: Spent) -> None:
        with self._lock:
            had = self._spent.get(more.model, Spent(more.model))
            self._spent[more.model] = replace(
                had,
                calls=had.calls + more.calls,
                read=had.read + more.read,
                cached=had.cached + more.cached,
                written=had.written + more.written,
                embedded=had.embedded + more.embedded,
                usd=None if had.usd is None or more.usd is None else had.usd + more.usd,
            )
