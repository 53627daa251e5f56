"""What happened lately and a question: how far it is about it, by its words, by its meaning, or by leaning on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from recollect.recall.calibrate import Calibration, by_itself, by_words_alone
from recollect.recall.fuse import Weights
from recollect.recall.leaning import Leaning
from recollect.stores.bm25 import Corpus, rarity
from recollect.values import Why
from recollect.words import analyse

NEWEST = 5
"""So many count by recency, when a question leans on the session."""

# One shared word may be chance; with two, their share of the question says enough where the meaning is not known.
_WORDS_TO_TRUST = 2
_UNRELATED = Weights().unrelated

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+")


@dataclass(frozen=True, slots=True)
class Shared:
    """The words that a text shares with a question, and how much of the question's weight they carry, from 0 to 1."""

    share: float
    matched: tuple[str, ...]


NOTHING_SHARED = Shared(0.0, ())


@dataclass(frozen=True, slots=True)
class Seen:
    """What speaks for each of some texts; all columns have a place for each."""

    shared: Sequence[Shared]
    cosines: Sequence[float | None]
    ages: Sequence[int | None]
    """How many of its session are newer; None for one that cannot be leaned on."""


@dataclass(frozen=True, slots=True)
class Judged:
    """How relevant each text is, and the reasons of those that somebody wants to see."""

    relevance: Sequence[float]
    seen: Seen
    leaned_on: Sequence[bool]

    def why(self, at: int) -> Why:
        cosine, shared = self.seen.cosines[at], self.seen.shared[at]
        return Why(
            cosine=None if cosine is None else round(cosine, 4),
            words=round(shared.share, 4),
            matched=shared.matched,
            reason=_place(self.seen.ages[at]) if self.leaned_on[at] else "",
        )


def shared_words(query: str, texts: Sequence[str]) -> dict[int, Shared]:
    """What the question's words say for each text that has some, by its place; rare words weigh more.

    As the searches of the tiers weigh them, except that only whether a word is there counts.
    """
    terms = tuple(dict.fromkeys(analyse(query)))
    if not terms:
        return _with_phrase(" ".join(query.lower().split()), texts)
    marks = [hash(term) for term in terms]
    wanted = frozenset(marks)
    # Most texts have none of the words, and that is seen at once.
    known = {at: one for at, text in enumerate(texts) if not wanted.isdisjoint(one := _TERMS.of(text))}
    corpus = Corpus(max(len(texts), 1), 1.0)
    weights = [rarity(corpus, sum(mark in one for one in known.values())) for mark in marks]
    asked = sum(weights)
    found = {}
    for at, one in known.items():
        has = [mark in one for mark in marks]
        found[at] = Shared(sum(compress(weights, has)) / asked, tuple(compress(terms, has)))
    return found


def excerpt(text: str, query: str, longest: int) -> str:
    """The sentences of a long text that share most with the question, and of equals the last, in their order."""
    if len(text) <= longest:
        return text
    sentences = [one for one in _SENTENCE_END.split(text) if one.strip()]
    shared = shared_words(query, sentences)
    best = sorted(range(len(sentences)), key=lambda at: (shared[at].share if at in shared else 0.0, at), reverse=True)
    chosen: list[int] = []
    for at in best:
        longest -= len(sentences[at]) + 1
        if longest < 0:
            break
        chosen.append(at)
    return " ".join(sentences[at] for at in sorted(chosen or best[:1]))


class _Terms:
    """The words of texts that are asked about again and again, so that none is taken apart twice.

    It knows texts and words by their hashes alone: what is cleared or erased must not live on here.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: dict[tuple[int, int], frozenset[int]] = {}

    def of(self, text: str) -> frozenset[int]:
        key = (hash(text), len(text))
        found = self._known.get(key)
        if found is None:
            found = frozenset(map(hash, analyse(text[:_LOOKED_INTO])))
            if len(self._known) >= self._size:
                self._known.clear()
            self._known[key] = found
        return found


# A longer text is found by the search of its tier; here it would hold up what was said a minute ago.
_LOOKED_INTO = 20_000
_TERMS = _Terms(8192)


def _with_phrase(phrase: str, texts: Sequence[str]) -> dict[int, Shared]:
    """For a question of stop words and signs, such as `The Who`: the texts that contain it as it stands."""
    return {at: Shared(1.0, (phrase,)) for at, text in enumerate(texts) if phrase in " ".join(text.lower().split())}


def judged(seen: Seen, calibration: Calibration, leaning: Leaning | None) -> Judged:
    """Each text by itself: the better of what it says and of how new it is, where the question leans on that."""
    share = np.array([one.share for one in seen.shared], np.float64)
    cosines = np.array([np.nan if cosine is None else cosine for cosine in seen.cosines], np.float64)
    several = np.array([len(one.matched) >= _WORDS_TO_TRUST for one in seen.shared]) & np.isnan(cosines)
    meaning = (np.nan_to_num(calibration.on_our_scale(cosines)) - _UNRELATED) / (1.0 - _UNRELATED)
    said = np.maximum(by_itself(meaning, share), np.where(several, by_words_alone(share), 0.0))
    recency = np.zeros(len(said))
    if leaning is not None:
        ages = np.array([NEWEST if age is None else age for age in seen.ages], np.float64)
        recency = np.where(ages < NEWEST, leaning.newest - leaning.step * ages, 0.0)
    relevance = np.round(np.maximum(said, recency), 4)
    return Judged(relevance.tolist(), seen, (recency > said).tolist())


def _place(age: int | None) -> str:
    where = f"{age} before the newest of its session" if age else "newest of its session"
    return f"only because it is recent: {where}"
