"""Entries of a log by their words: BM25 within the log, and among equals the newer one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from recollect.stores.bm25 import Corpus, contribution, rarity
from recollect.stores.ops import Entry
from recollect.words import analyse

# The most that being new can add: enough to settle what is close, too little to bury a better answer.
_NEWNESS = 0.15
_HALF_LIFE = timedelta(hours=6)

_NONE: Counter[str] = Counter()
_REWRITTEN = frozenset({"die", "lie", "tie"})  # the stems of dying, lying and tying


@dataclass(frozen=True, slots=True)
class Match:
    """An entry that has words of the query. `share` is how much of the query's weight they carry, from 0 to 1."""

    entry: Entry
    score: float
    share: float
    matched: tuple[str, ...]


async def matches(query: str, entries: Sequence[Entry], n: int, now: datetime) -> list[Match]:
    """The best matches, best first, found off the event loop."""
    return await asyncio.to_thread(best, query, entries, n, now) if entries and n else []


def best(query: str, entries: Sequence[Entry], n: int, now: datetime) -> list[Match]:
    terms = list(dict.fromkeys(analyse(query)))
    found = _by_terms(terms, entries) if terms else _by_phrase(query, entries)
    fresh = [
        Match(one.entry, one.score * (1.0 + _NEWNESS * _newness(now - one.entry.at)), one.share, one.matched)
        for one in found
    ]
    return sorted(fresh, key=lambda one: (-one.score, -one.entry.seq))[:n]


def _by_terms(terms: Sequence[str], entries: Sequence[Entry]) -> list[Match]:
    # Most entries have none of the terms, and analysing a text costs far more than seeing that.
    beginnings = [_beginning(term) for term in terms]
    counted = [Counter(analyse(entry.content)) if _may_have(beginnings, entry.content) else _NONE for entry in entries]
    # In letters: BM25 only asks how long a text is beside the others.
    lengths = np.array([len(entry.content) for entry in entries], np.float64)
    corpus = Corpus(len(entries), float(lengths.mean()))
    scores = np.zeros(len(entries))
    carried = np.zeros(len(entries))
    asked = 0.0
    for term in terms:
        counts = np.array([count[term] for count in counted], np.float64)
        weight = rarity(corpus, int(np.count_nonzero(counts)))
        asked += weight
        scores += contribution(corpus, counts, lengths, weight)
        carried += weight * (counts > 0)
    return [
        Match(
            entries[at],
            float(scores[at]),
            float(carried[at] / asked),
            tuple(term for term in terms if counted[at][term]),
        )
        for at in np.flatnonzero(scores).tolist()
    ]


def _beginning(term: str) -> str:
    """Letters that every word of this stem has: stemming rewrites the last two at most, but for three short words."""
    return term[:1] if term in _REWRITTEN else term[: max(2, len(term) - 2)]


def _may_have(beginnings: Sequence[str], text: str) -> bool:
    lowered = text.lower()
    return not lowered.isascii() or any(beginning in lowered for beginning in beginnings)


def _by_phrase(query: str, entries: Sequence[Entry]) -> list[Match]:
    """For a query of stop words and signs, such as `The Who` or `C++ ?`: those that contain it as it stands."""
    phrase = " ".join(query.lower().split())
    return [Match(entry, 1.0, 1.0, (phrase,)) for entry in entries if phrase in " ".join(entry.content.lower().split())]


def _newness(age: timedelta) -> float:
    return float(0.5 ** (max(age, timedelta()) / _HALF_LIFE))
