"""The order of hits: bounded adjustments to scores, stable ties, and a limit on hits from one untrusted source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from recollect.clock import to_micros
from recollect.security.injection import AGENT_TRUST
from recollect.stores.filters import Condition
from recollect.stores.search import ItemBrief, SearchQuery, build_brief
from recollect.types import Hit, get_site

_DAY_MICROSECONDS = 86_400 * 1_000_000


@dataclass(frozen=True, slots=True)
class RankAdjustments:
    """The largest change of a score by each property; a score of 1 means that every query term was found."""

    importance: float = 0.03
    recency: float = 0.02
    distrust: float = 0.10
    half_life_days: float = 30.0


def compute_adjustments(
    briefs: Sequence[ItemBrief], now: datetime, limits: RankAdjustments = RankAdjustments()
) -> NDArray[np.float64]:
    """Return what to add to each score. The sum is too small to bury a clear hit."""
    importance = np.array([brief.importance for brief in briefs])
    trust = np.array([brief.trust for brief in briefs])
    created = np.array([brief.created_at for brief in briefs], np.float64)
    days = np.maximum(to_micros(now) - created, 0.0) / _DAY_MICROSECONDS
    return (
        limits.importance * (2.0 * importance - 1.0)
        + limits.recency * np.exp2(-days / limits.half_life_days)
        - limits.distrust * (1.0 - trust)
    )


def sort_hits(scores: NDArray[np.float64], briefs: Sequence[ItemBrief]) -> list[int]:
    """Return the indexes of candidates, best first. Ties go to the newest, then by id, so the order is stable."""
    keys = [
        (score, -brief.created_at, brief.id) for score, brief in zip((-scores.round(9)).tolist(), briefs, strict=True)
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)


def compute_share(n: int) -> int:
    """Return how many of `n` hits may come from one untrusted source: half of them."""
    return max(1, n // 2)


def limit_sources(ranked: Sequence[int], briefs: Sequence[ItemBrief], n: int) -> list[int]:
    """Return the best `n` candidates with at most half from one untrusted source; all if there is no other source."""
    first = list(ranked[:n])
    if all(briefs[at].trust >= AGENT_TRUST for at in first):
        return first
    sites = {at: get_site(briefs[at].source) if briefs[at].trust < AGENT_TRUST else None for at in ranked}
    if None not in sites.values() and len(set(sites.values())) == 1:
        return first
    limit, taken, chosen = compute_share(n), Counter[str](), list[int]()
    for at in ranked:
        site = sites[at]
        if site is not None:
            if taken[site] == limit:
                continue
            taken[site] += 1
        chosen.append(at)
        if len(chosen) == n:
            break
    return chosen


def find_crowding_sources(hits: Sequence[Hit], n: int) -> frozenset[str]:
    """Return the untrusted sources that fill their share of the hits and may have displaced other candidates."""
    untrusted = [hit.item.source for hit in hits if hit.item.trust < AGENT_TRUST]
    if not untrusted:
        return frozenset()
    taken = Counter(map(get_site, untrusted))
    if n < 2 or (len(hits) == n and max(taken.values()) <= compute_share(n)):
        return frozenset()
    return frozenset(source for source in untrusted if taken[get_site(source)] >= compute_share(n))


def exclude_sources(question: SearchQuery, sources: Iterable[str]) -> tuple[Condition, ...]:
    """Return the conditions of the query, with one more for each excluded source."""
    return (*question.where.conditions, *(Condition("source", "ne", source) for source in sorted(sources)))


def merge_other_sources(hits: Sequence[Hit], others: Sequence[Hit], n: int) -> list[Hit]:
    """Return the best `n` of both lists, with at most half from one untrusted source."""
    known = {hit.item.id for hit in hits}
    merged = sorted([*hits, *(hit for hit in others if hit.item.id not in known)], key=lambda hit: -hit.score)
    briefs = [build_brief(hit.item, length=len(hit.item.content), passages=1) for hit in merged]
    return [merged[at] for at in limit_sources(range(len(merged)), briefs, n)]
