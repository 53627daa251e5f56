"""How much of an answer one source may be: whoever floods a memory must not be all that is heard of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from recollect.guard.instructions import VOUCHED
from recollect.stores.evidence import Brief, brief_of
from recollect.stores.question import Question
from recollect.stores.where import Condition
from recollect.values import Hit


def share_of(n: int) -> int:
    """How many of `n` hits may be of one source that nobody vouches for: half of them."""
    return max(1, n // 2)


def site(source: str) -> str:
    """Whom a source belongs to: a page to its host, since anybody can have any number of pages."""
    if "://" not in source:
        return source
    try:
        return urlsplit(source).hostname or source
    except ValueError:  # brackets that do not close, say
        return source


def bounded(ranked: Sequence[int], briefs: Sequence[Brief], n: int) -> list[int]:
    """The best `n` places, of which no doubtful source has more than its share; all of them where there is no other."""
    first = list(ranked[:n])
    if all(briefs[at].trust >= VOUCHED for at in first):
        return first
    owners = {at: site(briefs[at].source) if briefs[at].trust < VOUCHED else None for at in ranked}
    if None not in owners.values() and len(set(owners.values())) == 1:
        return first
    most, taken, kept = share_of(n), Counter[str](), list[int]()
    for at in ranked:
        owner = owners[at]
        if owner is not None:
            if taken[owner] == most:
                continue
            taken[owner] += 1
        kept.append(at)
        if len(kept) == n:
            break
    return kept


def crowding(hits: Sequence[Hit], n: int) -> frozenset[str]:
    """The sources that may have kept others out of sight: doubtful, and with their share of the answer or more."""
    doubtful = [hit.item.source for hit in hits if hit.item.trust < VOUCHED]
    if not doubtful:
        return frozenset()
    taken = Counter(map(site, doubtful))
    if n < 2 or (len(hits) == n and max(taken.values()) <= share_of(n)):
        return frozenset()
    return frozenset(source for source in doubtful if taken[site(source)] >= share_of(n))


def without(question: Question, sources: Iterable[str]) -> tuple[Condition, ...]:
    """The conditions of a question, and that none of these is the source."""
    return (*question.where.conditions, *(Condition("source", "ne", source) for source in sorted(sources)))


def shared_out(hits: Sequence[Hit], others: Sequence[Hit], n: int) -> list[Hit]:
    """The hits of a source that crowds, within its share, together with those it had kept out of sight."""
    known = {hit.item.id for hit in hits}
    every = sorted([*hits, *(one for one in others if one.item.id not in known)], key=lambda hit: -hit.score)
    briefs = [brief_of(hit.item, length=len(hit.item.content), passages=1) for hit in every]
    return [every[at] for at in bounded(range(len(every)), briefs, n)]
