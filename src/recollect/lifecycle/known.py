"""Whether something said adds anything: what an item here says already, with whatever lead-in, is no news."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from recollect.lifecycle.claims import claims_of, clauses_of
from recollect.lifecycle.statements import fingerprint, statements
from recollect.tiers.duplicates import wording
from recollect.values import MemoryItem
from recollect.words import analyse

# Less than this is hearsay, and stays hearsay however often somebody pastes it.
TRUSTED = 0.5
# Fewer words in a row are in everybody's mouth.
_TELLING = 3

# What may stand around a known statement without saying more.
_IDLE = frozenset(
    analyse("""
        please remember memorize memorise keep mind note noted know known knows say said says tell told mention
        mentioned recall context background memory memories fact facts again once more repeat already record reference
        future information based according yes thanks earlier before above important reminder question answer
        fyi btw hi hey hello way now want like forget going forward see ok okay plan so
    """)
)


def adds_nothing(text: str, item: MemoryItem) -> bool:
    """Whether an item says already what somebody now says.

    Of what is not trusted a part is enough: a page that was read and is pasted into a message is not the sender's word.
    """
    if _words(text) in _told(item.content):
        return True
    mine, theirs = list(_print(text)), list(_print(item.content))
    if mine == theirs:
        return True
    if item.trust < TRUSTED:
        return _within(theirs, mine) is not None or _within(mine, theirs) is not None
    return _is_all_of(theirs, mine) or _is_all_of(mine, theirs)


def is_claimed_by(text: str, items: Iterable[MemoryItem]) -> bool:
    """Whether all that a statement claims is claimed by items that hold, in whatever words."""
    claims = claims_of(text)
    if not claims:
        return False
    held = {claim for item in items for claim in claims_of(item.content)}
    return all(claim in held for claim in claims)


def _parts(told: str) -> Iterable[str]:
    """A text, its sentences, and what its clauses say each."""
    yield told
    for sentence in statements(told):
        yield sentence.text
        for clause in clauses_of(sentence.text):
            yield clause.text


@lru_cache(maxsize=4096)
def _told(told: str) -> frozenset[tuple[str, ...]]:
    return frozenset(map(_words, _parts(told)))


@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[str, ...]:
    return wording(text).words


@lru_cache(maxsize=4096)
def _print(text: str) -> tuple[str, ...]:
    return tuple(fingerprint(text).split())


def forget() -> None:
    """Drop the texts that are known."""
    for answers in (_told, _words, _print):
        answers.cache_clear()


def _within(inner: list[str], outer: list[str]) -> int | None:
    """Where some words stand in others, in a row; None where they do not, or are too few to tell."""
    if not _TELLING <= len(inner) <= len(outer):
        return None
    starts = range(len(outer) - len(inner) + 1)
    return next((at for at in starts if outer[at : at + len(inner)] == inner), None)


def _is_all_of(inner: list[str], outer: list[str]) -> bool:
    """Whether some words are all that others say: what stands around them is idle, and does not turn them round."""
    at = _within(inner, outer)
    if at is None:
        return False
    around = outer[:at] + outer[at + len(inner) :]
    return _TURNING.isdisjoint(around) and _IDLE.issuperset(analyse(" ".join(around)))


# `I no longer …`, `… anymore`, `I never said …`
_TURNING = frozenset(
    "no not never longer anymore don't doesn't didn't isn't wasn't if unless but only except than".split()
)
