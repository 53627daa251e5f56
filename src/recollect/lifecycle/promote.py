"""Which statement of a message deserves to last, and by which rule: no language model, and rather a miss than an error.

The rules read English. What they miss is still in the conversation and found there; what they get wrong would be
known for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from recollect.lifecycle.claims import claims_of
from recollect.lifecycle.corrections import is_correction, is_rejection
from recollect.lifecycle.decisions import is_decision
from recollect.lifecycle.identity import is_identity
from recollect.lifecycle.phrasing import PASSING, either, pattern, unless
from recollect.lifecycle.preferences import is_preference
from recollect.lifecycle.requests import is_bare_request, is_request
from recollect.lifecycle.statements import Statement, says_something, statements

Rule = Literal["explicit", "preference", "correction", "decision", "identity", "repeated", "outcome", "extracted"]

# How much a statement of each kind matters at least, whatever its words score.
IMPORTANCE: dict[Rule, float] = {
    "explicit": 0.8,
    "identity": 0.75,
    "preference": 0.7,
    "correction": 0.7,
    "decision": 0.7,
    "outcome": 0.7,
    "repeated": 0.6,
    "extracted": 0.6,
}

# How people begin before they begin.
_POLITE = pattern(
    "^(?:",
    either("""
        oh, ah, well, ok, okay, so, also, and, but, btw, by the way, hey, hi, hello, please, pls, thanks, thank you,
        yes, yeah, yep, right, great, sure, good, quick note, one more thing, just(?! so you know), then, anyway,
        perfect, cool
    """),
    r"\b[\s,.:;!—-]*)+",
)
# Somebody or something of which something is said; "it" and "this" mean nothing elsewhere.
_DECLARES = pattern(
    r"^(?:(?:i|we)(?: \w+ly| also| always| never| only)? ",
    # What somebody wants, needs or has just done is said over and over, and is no knowledge.
    either("""
        own, use, work, live, prefer, run, drive, speak, keep, follow, take, eat, drink, play, study, teach, manage,
        lead, support, deploy, store, host, write, ship, release, pay, meet, have an?, am an?, are an?, avoid, track
    """),
    r"\b|(?:i'm|we're) an? |(?:my|our|his|her|their|the|all|every|each) [\w' -]+? ",
    either(r"is, are, was, were, has, have, can, must, needs?, takes?, \w+s"),
    r"\b|",
    unless("it, this, that, there, here, what, who, which, everything, nothing, everyone, nobody, yes, no, ok"),
    r"(?-i:[A-Z])[\w'-]+(?: (?-i:[A-Z])[\w'-]+)? ",
    either("""
        is, are, was, has, have, lives, works, uses, likes, prefers, runs, owns, must, needs, can, wants, starts, ends,
        requires
    """),
    r"\b)",
)


@dataclass(frozen=True, slots=True)
class Worthy:
    """A statement that deserves to last; `text` is the speaker's own."""

    text: str
    rule: Rule


def worthy(message: str) -> list[Worthy]:
    """The statements of a user's message that deserve to last, each once, in their order."""
    found: dict[str, Rule] = {}
    corrected = False
    for statement in statements(message):
        plain = _POLITE.sub("", statement.plain)
        if is_bare_request(plain):
            # "My badge is 4411. Remember that." means the sentence before.
            if statement.before is not None and _is_stated(statement.before):
                found[statement.before.text] = "explicit"
            continue
        rule = _rule_of(statement, plain, corrected)
        corrected = is_rejection(plain)
        if rule is not None:
            found.setdefault(statement.text, rule)
    return [Worthy(text, rule) for text, rule in found.items()]


def fact_like(message: str) -> Iterator[Statement]:
    """The sentences that declare what may be so in another session too: what can be said repeatedly."""
    for statement in statements(message):
        plain = _POLITE.sub("", statement.plain)
        if not _is_stated(statement) or statement.is_secret or not _DECLARES.match(plain):
            continue
        if len(plain.split()) >= 4 and says_something(plain, 2) and not PASSING.search(plain):
            yield statement


def _rule_of(statement: Statement, plain: str, corrected: bool) -> Rule | None:
    """The first rule that a sentence satisfies; `corrected` when the one before it said that something is wrong."""
    if is_request(plain):
        return "explicit"
    if not _is_stated(statement) or statement.is_secret:
        return None
    if is_correction(plain) or (corrected and _DECLARES.match(plain) and says_something(plain, 2)):
        return "correction"
    if is_decision(plain):
        return "decision"
    if is_identity(plain):
        return "identity"
    if is_preference(plain):
        return "preference"
    return _by_its_claims(statement.text)


def _by_its_claims(text: str) -> Rule | None:
    """What puts a new value where there was one lasts too, such as `I don't live in Lisbon anymore`."""
    claims = claims_of(text)
    if not claims or not all(claim.firm for claim in claims):
        return None
    return claims[0].kind if all(claim.holds for claim in claims) else "correction"


def _is_stated(statement: Statement) -> bool:
    return not (statement.is_question or statement.is_supposed or statement.is_reported)
