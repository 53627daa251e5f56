"""What a call of `recall` asks for, checked: a value that every source of lines is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recollect.errors import BadInput
from recollect.stores.where import Condition, Where, holds, parse_where
from recollect.tiers.facts import in_utc
from recollect.tiers.procedure_input import checked_share
from recollect.tiers.semantic import checked_count, checked_query
from recollect.values import TIER_NAMES, MemoryItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question, from which tiers it is answered, as of when, and how much may be said."""

    query: str
    n: int
    now: datetime
    tiers: frozenset[str]
    budget: int | None
    min_relevance: float
    as_of: datetime | None
    where: Mapping[str, Any] | None
    conditions: tuple[Condition, ...]

    def means(self, item: MemoryItem) -> bool:
        """Whether the filter lets an item pass."""
        return not self.conditions or holds(Where(item.scope.space(item.tier), conditions=self.conditions), item)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller says besides the question, as they said it."""

    tiers: Any = None
    budget: Any = None
    min_relevance: Any = None
    as_of: Any = None
    where: Any = None


def asked(query: Any, n: Any, options: Options, *, min_relevance: float, now: datetime) -> Asked:
    """A call of `recall`, or `BadInput` naming the first that cannot be meant."""
    return Asked(
        query=checked_query(query),
        n=checked_count(n),
        now=now,
        tiers=_tiers(options.tiers),
        budget=_budget(options.budget),
        min_relevance=min_relevance if options.min_relevance is None else checked_share(options.min_relevance),
        as_of=None if options.as_of is None else in_utc("as_of", options.as_of),
        where=options.where,
        conditions=parse_where(options.where),
    )


def _tiers(given: Any) -> frozenset[str]:
    if given is None:
        return frozenset(TIER_NAMES)
    if isinstance(given, str) or not isinstance(given, Collection) or not all(name in TIER_NAMES for name in given):
        raise BadInput(f"tiers is a list of names out of {', '.join(TIER_NAMES)}, not {given!r:.80}")
    return frozenset(given)


def _budget(given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise BadInput(f"budget is a whole number of tokens from 1, or None for no limit, not {given!r:.80}")
    return given
