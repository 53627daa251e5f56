"""Redundancy: comparison of a statement with the items that may already say the same."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from recollect.language.analysis import analyze
from recollect.language.claims import expand_contractions, extract_claims, parse_clauses
from recollect.language.near_duplicates import normalize_text
from recollect.language.sentences import normalize_sentence, parse_statements
from recollect.types import MemoryItem

MIN_TRUST = 0.5
"""Facts are learned only from sources with at least this trust."""

# Shorter phrases are too common to show that two texts say the same.
_MIN_PHRASE_WORDS = 3

# Words that may surround a known statement without adding anything.
_FILLER_WORDS = frozenset(
    analyze("""
        please remember memorize memorise keep mind note noted know known knows say said says tell told mention
        mentioned recall context background memory memories fact facts again once more repeat already record reference
        future information based according yes thanks earlier before above important reminder question answer
        fyi btw hi hey hello way now want like forget going forward see ok okay plan so
    """)
)


def is_redundant(text: str, item: MemoryItem) -> bool:
    """Return True if the item already says what the text says. If it is not trusted, a shared phrase is enough."""
    if normalize_text(text).words in _collect_wordings(item.content):
        return True
    new, known = normalize_sentence(text).split(), normalize_sentence(item.content).split()
    if new == known:
        return True
    if item.trust < MIN_TRUST:
        return _find_within(known, new) is not None or _find_within(new, known) is not None
    return _covers_meaning(known, new) or _covers_meaning(new, known)


def is_already_claimed(text: str, items: Iterable[MemoryItem]) -> bool:
    """Return True if the items make every claim of the text, in any wording."""
    claims = extract_claims(text)
    return bool(claims) and {claim for item in items for claim in extract_claims(item.content)}.issuperset(claims)


def build_plain_sentences(text: str) -> list[str]:
    """Return a plain sentence for each claim of the text that is worded differently."""
    pairs = (
        (clause.claim.plain_text.rstrip(" .!"), expand_contractions(clause.text)) for clause in parse_clauses(text)
    )
    return [plain for plain, original in pairs if normalize_sentence(plain) != normalize_sentence(original)]


@lru_cache(maxsize=4096)
def _collect_wordings(text: str) -> frozenset[tuple[str, ...]]:
    """Return the words of a text, of its sentences and of their clauses."""
    sentences = [statement.text for statement in parse_statements(text)]
    clauses = [clause.text for sentence in sentences for clause in parse_clauses(sentence)]
    return frozenset(normalize_text(wording).words for wording in (text, *sentences, *clauses))


def clear_cache() -> None:
    """Drop all cached texts."""
    _collect_wordings.cache_clear()


def _find_within(inner: list[str], outer: list[str]) -> int | None:
    """Return the position of `inner` in `outer`; None if it is not there or is too short to tell."""
    if not _MIN_PHRASE_WORDS <= len(inner) <= len(outer):
        return None
    starts = range(len(outer) - len(inner) + 1)
    return next((start for start in starts if outer[start : start + len(inner)] == inner), None)


def _covers_meaning(inner: list[str], outer: list[str]) -> bool:
    """Return True if `outer` adds only filler words to `inner`, and no negation."""
    start = _find_within(inner, outer)
    if start is None:
        return False
    around = outer[:start] + outer[start + len(inner) :]
    return _NEGATING_WORDS.isdisjoint(around) and _FILLER_WORDS.issuperset(analyze(" ".join(around)))


# `I no longer …`, `… anymore`, `I never said …`
_NEGATING_WORDS = frozenset(
    "no not never longer anymore don't doesn't didn't isn't wasn't if unless but only except than".split()
)
