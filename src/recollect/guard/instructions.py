"""Whether a text gives orders to an assistant: a sum of signs, without a model, for texts that nobody vouches for."""

from __future__ import annotations

import re
from typing import NamedTuple

from recollect.guard.hidden import plainly
from recollect.guard.phrases import rules

VOUCHED = 0.8
"""Trusted as far as the agent itself. What is trusted less is somebody else's text, such as a page or a tool's."""

HELD = 0.5
"""From this score on, somebody else's text is held back."""

HELD_OF_THE_AGENT = 0.8
"""The same for an agent's own words, which may quote what it has read, and give themselves orders by right."""

_BEGINNING, _END = 32_000, 8_000

_WORD = re.compile(r"[a-z']+")
_BLANKS = re.compile(r"[^\S\n]+")
# How a text is hidden speaks against it; an encoding alone is what half of the web is made of.
_WAYS = {
    "a text in invisible characters": 0.6,
    "invisible characters": 0.4,
    "reversed writing": 0.3,
    "letters of several alphabets in one word": 0.4,
    "encoded text": 0.1,
}
# What is said where nobody looks counts for more.
_HIDDEN = 0.25


class Verdict(NamedTuple):
    """How much a text looks like orders, from 0 to 1, and the signs of it, weightiest first."""

    score: float
    reasons: tuple[str, ...]


def judged(text: str) -> Verdict:
    """What there is to say against a text.

    Of a very long one its beginning and its end are looked at: of what is recalled, a prompt shows the beginning. So
    nobody can hold up a memory with a text that is costly to look through.
    """
    if len(text) > _BEGINNING + _END:
        text = f"{text[:_BEGINNING]}\n{text[-_END:]}"
    seen = plainly(text)
    weights: dict[str, float] = {way: _WAYS[way] for way in seen.ways}
    for part, more in ((seen.text, 0.0), *((part, _HIDDEN) for part in seen.hidden)):
        found = _signs(part)
        for reason, weight in found.items():
            weights[reason] = max(weights.get(reason, 0.0), weight)
        if found and more:
            weights["stands where nobody looks"] = more
    left = 1.0
    for weight in weights.values():
        left *= 1.0 - weight
    return Verdict(round(1.0 - left, 3), tuple(sorted(weights, key=lambda one: (-weights[one], one))))


def held_back(text: str, trust: float) -> tuple[str, ...]:
    """Why a text of somebody trusted so far is not to be recalled; nothing where it may be.

    A user's own words are never held back: orders are theirs to give.
    """
    if trust >= 1.0:
        return ()
    verdict = judged(text)
    return verdict.reasons if verdict.score >= (HELD if trust < VOUCHED else HELD_OF_THE_AGENT) else ()


def _signs(text: str) -> dict[str, float]:
    flat = _BLANKS.sub(" ", text.lower())
    words = set(_WORD.findall(flat))
    found: dict[str, float] = {}
    for rule in rules():
        known = rule.weight <= found.get(rule.reason, 0.0)
        if not known and rule.may_be_in(flat, words) and rule.compiled.search(flat):
            found[rule.reason] = rule.weight
    return found
