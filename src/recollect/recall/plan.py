"""A question into what to look for: the words that matter, the text to embed, and whom it is about."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from recollect.recall.times import Span, times_named
from recollect.words import analyse

ROLES = frozenset({"user", "assistant", "system", "tool", "human", "ai", "bot", "agent", "model"})

_OF_THE_ASSISTANT = re.compile(
    r"\b(did|had|have|were|was|could|would) you\b"
    r"|\byou (just |also |once |previously |already )?"
    r"(said|say|told|tell|suggest|recommend|mention|advis|explain|gave|give|list|propos|describ|provid|shar|wrote)"
    r"|\byour (advice|suggestion|recommendation|answer|reply|response|list|explanation|tip|opinion|idea)",
    re.IGNORECASE,
)
_OF_THE_USER = re.compile(r"\b(i|i'm|i've|i'd|i'll|my|me|mine|myself)\b", re.IGNORECASE)

# A longer question repeats itself; this many of its terms say what it is about.
_MOST_TERMS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """What a question asks for."""

    embedded: str
    terms: tuple[str, ...]
    named: frozenset[str]
    role: str | None
    times: tuple[Span, ...] = ()
    pairs: frozenset[tuple[str, str]] = frozenset()
    """Terms that stand next to each other in the question."""

    def without_words(self) -> Plan:
        """The same question for those who only ask by meaning."""
        return replace(self, terms=(), pairs=frozenset())


def plan(query: str, speakers: Iterable[str], now: datetime, owner: str = "") -> Plan:
    """Names of speakers are taken out of the words and out of the text that is embedded.

    Who said something is known exactly, so a name need not be guessed at: left in, it draws every turn in which
    somebody is addressed by it. They count as `named` instead; the memory's `owner` stands for the role `user`.
    """
    known = list(speakers)
    roles = {speaker.lower() for speaker in known} & ROLES
    people = [speaker for speaker in known if speaker.lower() not in ROLES]
    if "user" in roles and owner not in ("", "default"):
        people.append(owner)
    named = frozenset(person for person in people if _names(query, person))
    embedded = _without(query, named)
    gone = {term for person in named for term in analyse(person)} if embedded != query else set()
    ordered = [term for term in analyse(embedded) if term not in gone][:_MOST_TERMS]
    role = _role(query, roles, of_the_owner=owner in named)
    return Plan(
        embedded=embedded,
        terms=tuple(dict.fromkeys(ordered)),
        named=named,
        role=role,
        times=times_named(query, now),
        pairs=frozenset(pairwise(ordered)),
    )


def _names(query: str, speaker: str) -> bool:
    return any(re.search(_word(name), query, re.IGNORECASE) for name in _callings(speaker))


def _callings(speaker: str) -> list[str]:
    """The ways a person is called: the whole name and its first part."""
    first = speaker.split()[0] if speaker.split() else speaker
    return [speaker, first] if len(first) > 2 else [speaker]


def _word(name: str) -> str:
    return rf"(?<!\w){re.escape(name)}(['’]s)?(?!\w)"


def _without(query: str, named: frozenset[str]) -> str:
    text = query
    for speaker in named:
        for name in _callings(speaker):
            text = re.sub(_word(name), " ", text, flags=re.IGNORECASE)
    text = " ".join(text.split())
    # A question that is nothing but a name is about the name.
    return text if re.search(r"\w", text) else query


def _role(query: str, roles: set[str], *, of_the_owner: bool) -> str | None:
    if "user" not in roles:
        return None
    if _OF_THE_ASSISTANT.search(query):
        return "assistant"
    return "user" if of_the_owner or _OF_THE_USER.search(query) else None
