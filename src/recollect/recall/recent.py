"""What happened lately and a question: how far it is about it, by its words, by its meaning, or by leaning on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import NamedTuple

import numpy as np

from recollect.recall.calibrate import Calibration, by_itself, by_words_alone
from recollect.recall.fuse import Weights
from recollect.recall.leaning import Leaning
from recollect.recall.learned import Learned
from recollect.stores.bm25 import Corpus, rarity
from recollect.values import Why
from recollect.words import analyse

NEWEST = 5
"""So many count by recency, when a question leans on the session."""

# One shared word may be chance; with two, their share of the question says enough where the meaning is not known.
_WORDS_TO_TRUST = 2
_UNRELATED = Weights().unrelated

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+")


class Shared(NamedTuple):
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
    return shared_with(query, [tuple(texts)])[0]


def shared_with(query: str, groups: Sequence[tuple[str, ...]]) -> list[dict[int, Shared]]:
    """The same for texts in groups, such as sessions, which are weighed together."""
    terms = tuple(dict.fromkeys(analyse(query)))
    if not terms:
        phrase = " ".join(query.lower().split())
        return [_with_phrase(phrase, texts) for texts in groups]
    marks = [hash(term) for term in terms]
    wanted = frozenset(marks)
    # Most texts have none of the words, and those that do share the same few.
    known = [_WORDS.of(texts).common(wanted) for texts in groups]
    several = frozenset(chain.from_iterable(group.values() for group in known))
    if not several:
        return [{} for _ in groups]
    corpus = Corpus(max(sum(map(len, groups)), 1), 1.0)
    holders = Counter(chain.from_iterable(chain.from_iterable(group.values() for group in known)))
    weights = [rarity(corpus, holders[mark]) for mark in marks]
    asked = sum(weights)
    shared: dict[frozenset[int], Shared] = {}
    for common in several:
        has = [mark in common for mark in marks]
        shared[common] = Shared(sum(compress(weights, has)) / asked, tuple(compress(terms, has)))
    return [{at: shared[common] for at, common in group.items()} for group in known]


def unread(groups: Sequence[tuple[str, ...]]) -> int:
    """How many letters have to be taken apart for `shared_with`: those of texts it was not asked about before."""
    return sum(len(text) for texts in _WORDS.new(groups) for text in _TERMS.new(texts))


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


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of some texts, by their hashes: of each, and of all of them together."""

    each: tuple[frozenset[int], ...]
    every: frozenset[int]

    def common(self, wanted: frozenset[int]) -> dict[int, frozenset[int]]:
        """Which of the wanted words each text has, by its place, where it has any."""
        if wanted.isdisjoint(self.every):
            return {}
        return {at: wanted & words for at, words in enumerate(self.each) if not wanted.isdisjoint(words)}


def _words_of(texts: tuple[str, ...]) -> _Words:
    each = tuple(map(_TERMS.of, texts))
    return _Words(each, frozenset().union(*each))


def _terms_of(text: str) -> frozenset[int]:
    return frozenset(map(hash, analyse(text[:_LOOKED_INTO])))


# A longer text is found by the search of its tier; here it would hold up what was said a minute ago.
_LOOKED_INTO = 20_000
_TERMS = Learned(_terms_of, 8192)
# Sessions that are over are read as the same texts every time, and are known as a whole.
_WORDS = Learned(_words_of, 512)


def _with_phrase(phrase: str, texts: Sequence[str]) -> dict[int, Shared]:
    """For a question of stop words and signs, such as `The Who`: the texts that contain it as it stands."""
    return {at: Shared(1.0, (phrase,)) for at, text in enumerate(texts) if phrase in " ".join(text.lower().split())}


def judged(seen: Seen, calibration: Calibration, leaning: Leaning | None) -> Judged:
    """Each text by itself: the better of what it says and of how new it is, where the question leans on that."""
    share = np.array([one.share for one in seen.shared], np.float64)
    # What is not known to be near is as far as can be.
    cosines = np.array([-np.inf if cosine is None else cosine for cosine in seen.cosines], np.float64)
    said = by_itself((calibration.on_our_scale(cosines) - _UNRELATED) / (1.0 - _UNRELATED), share)
    unknown = zip(seen.cosines, seen.shared, strict=True)
    several = [at for at, (cosine, one) in enumerate(unknown) if cosine is None and len(one.matched) >= _WORDS_TO_TRUST]
    if several:
        said[several] = np.maximum(said[several], by_words_alone(share[several]))
    if leaning is None:
        return Judged(said.round(4).tolist(), seen, [False] * len(said))
    ages = np.array([NEWEST if age is None else age for age in seen.ages], np.float64)
    recency = np.where(ages < NEWEST, leaning.newest - leaning.step * ages, 0.0)
    return Judged(np.maximum(said, recency).round(4).tolist(), seen, (recency > said).tolist())


def _place(age: int | None) -> str:
    where = f"{age} before the newest of its session" if age else "newest of its session"
    return f"only because it is recent: {where}"
