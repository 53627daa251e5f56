"""Entries of a log: ids, the quarantine mark, reading all of them, and BM25 search within one log."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

import numpy as np
from numpy.typing import NDArray

from recollect.language.analysis import analyze
from recollect.stores.base import Log
from recollect.stores.search import CorpusStats, compute_bm25, compute_idf
from recollect.stores.writes import Entry
from recollect.types import Space
from recollect.validation import check_name

QUARANTINED_KEY = "quarantined"
"""Metadata key with the reasons why an entry is excluded from recall, summaries and promotion."""

_PAGE_SIZE = 1000

# Recency adds at most 15 % to a score, so it decides only between close matches.
_RECENCY_WEIGHT = 0.15
_RECENCY_HALF_LIFE = timedelta(hours=6)

# Stems of dying, lying and tying: the only ones that differ from their words before the last two letters.
_IRREGULAR_STEMS = frozenset({"die", "lie", "tie"})


def generate_id() -> str:
    """Return a random id of 96 bits, in hex."""
    return secrets.token_hex(12)


check_id = partial(check_name, "id", max_length=256, example="turn-1")


def is_quarantined(entry: Entry) -> bool:
    return QUARANTINED_KEY in entry.metadata


async def read_all_entries(store: Log, space: Space, *, after: int = 0, hidden: bool = False) -> list[Entry]:
    """Return all entries of a log above the sequence number `after`, oldest first; with `hidden`, also expired ones."""
    entries: list[Entry] = []
    while page := await store.read(space, after=after, limit=_PAGE_SIZE, hidden=hidden):
        entries += page
        after = page[-1].seq
        if len(page) < _PAGE_SIZE:
            break
    return entries


async def search_entries(query: str, entries: Sequence[Entry], n: int, now: datetime) -> list[Entry]:
    """Return the `n` best matches, best first. The work is done in a thread."""
    return await asyncio.to_thread(rank_entries, query, entries, n, now) if entries and n else []


def rank_entries(query: str, entries: Sequence[Entry], n: int, now: datetime) -> list[Entry]:
    """Return the `n` best matches by BM25 and recency; of equals the newer one first."""
    terms = list(dict.fromkeys(analyze(query)))
    if terms:
        scores = _score_terms(terms, entries)
    else:  # a query without terms, such as `The Who` or `C++ ?`, is matched as a substring
        phrase = " ".join(query.lower().split())
        scores = np.array([phrase in " ".join(entry.content.lower().split()) for entry in entries], np.float64)
    scores *= [
        1.0 + _RECENCY_WEIGHT * 0.5 ** (max(now - entry.at, timedelta()) / _RECENCY_HALF_LIFE) for entry in entries
    ]
    best = sorted(np.flatnonzero(scores).tolist(), key=lambda at: (-scores[at], -entries[at].seq))
    return [entries[at] for at in best[:n]]


def _score_terms(terms: Sequence[str], entries: Sequence[Entry]) -> NDArray[np.float64]:
    # Stemming a text costs far more than a substring search, and most entries have none of the terms.
    prefixes = [term[:1] if term in _IRREGULAR_STEMS else term[: max(2, len(term) - 2)] for term in terms]
    texts = [entry.content.lower() for entry in entries]
    candidates = [not text.isascii() or any(prefix in text for prefix in prefixes) for text in texts]
    counters = [Counter(analyze(text) if found else ()) for text, found in zip(texts, candidates, strict=True)]
    # BM25 needs only relative lengths, so characters do.
    lengths = np.array([len(entry.content) for entry in entries], np.float64)
    corpus = CorpusStats(len(entries), float(lengths.mean()))
    scores = np.zeros(len(entries))
    for term in terms:
        counts = np.array([counter[term] for counter in counters], np.float64)
        scores += compute_bm25(corpus, counts, lengths, compute_idf(corpus, int(np.count_nonzero(counts))))
    return scores
