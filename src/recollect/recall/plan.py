"""A question into what to look for: the words that matter, the text to embed, and whom it is about."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import pairwise

from recollect.recall.times import Span, times_named
from recollect.words import STOP, analyse

ROLES = frozenset({"user", "assistant", "system", "tool", "human", "ai", "bot", "agent", "model"})

_OF_THE_ASSISTANT = re.compile(
    r"\b(did|had|have|were|was|could|would) you\b"
    r"|\byou (just |also |once |previously |already )?"
    r"(said|say|told|tell|suggest|recommend|mention|advis|explain|gave|give|list|propos|describ|provid|shar|wrote)"
    r"|\byour (advice|suggestion|recommendation|answer|reply|response|list|explanation|tip|opinion|idea)",
    re.IGNORECASE,
)
_OF_THE_USER = re.compile(r"\b(i|i'm|i've|i'd|i'll|my|me|mine|myself)\b", re.IGNORECASE)

# A speaker with one of these in the name is no person, and its first word is just a word.
_NOT_PEOPLE = frozenset(
    "the a an team support customer customers service services bot desk group department office system narrator "
    "voice guest host moderator interviewer speaker agent staff help sales data user users client".split()
)

# First names that are words of the language: without a capital they are taken for the word.
_ALSO_WORDS = frozenset(
    "mark rose will may grace hope art bill jack pat sue frank faith joy dawn iris lily ruby olive ivy amber crystal "
    "summer autumn april june august rich rob nick drew chase chip guy gene dean earl king major robin jay ray lance "
    "miles chance hunter mason page penny sky star violet daisy melody charity mercy victor pierce wade clay cliff "
    "dale glen heath reed forest brook stone west max sage angel ace christian jean don tony sandy rusty buck".split()
)

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
    of_owner: bool = False
    """It asks for the owner by name: a fact that nobody in particular said may be meant as well."""
    pairs: frozenset[tuple[str, str]] = frozenset()
    """Terms that stand next to each other in the question."""

    def without_words(self) -> Plan:
        """The same question for those who only ask by meaning."""
        return replace(self, terms=(), pairs=frozenset())


def plan(query: str, speakers: Iterable[str], now: datetime, owner: str = "") -> Plan:
    """Names of speakers are taken out of the words and out of the text that is embedded.

    Who said something is known exactly, so a name need not be guessed at: left in, it draws every turn in which
    somebody is addressed by it. They count as `named` instead. In a chat of user and assistant the memory's `owner` is
    the user, so that name is not embedded either; but it stays among the words, since facts may have it.
    """
    # A time that is named counts from a day, so a question is planned once a day for all tiers that it is put to.
    today, known = now.replace(hour=0, minute=0, second=0, microsecond=0), frozenset(speakers)
    # Where nobody speaks, the owner's name is a word like any other, and all such tiers are asked the same.
    return _planned(query, known, today, owner if known else "")


def forget() -> None:
    """Drop the questions that are known."""
    _planned.cache_clear()
    _read.cache_clear()


@lru_cache(maxsize=256)
def _read(query: str, today: datetime) -> tuple[list[str], tuple[Span, ...]]:
    """The terms of a question in their order and the times it names, whoever it is put to."""
    return analyse(query)[:_MOST_TERMS], times_named(query, today)


@lru_cache(maxsize=256)
def _planned(query: str, speakers: frozenset[str], today: datetime, owner: str) -> Plan:
    known = sorted(speakers)
    roles = {speaker.lower() for speaker in known} & ROLES
    said = set(re.findall(r"\w+", query))
    called = {
        speaker: names
        for speaker in known
        if speaker.lower() not in ROLES and (names := [name for name in _callings(speaker) if _is_said(name, said)])
    }
    without_speakers = _without(query, [name for names in called.values() for name in names])
    owned = [name for name in _callings(owner[:1].upper() + owner[1:]) if _is_said(name, said)]
    of_owner = bool(owned) and "user" in roles and owner.lower() not in {"default", *ROLES}
    embedded = _without(without_speakers, owned) if of_owner else without_speakers
    ordered, times = _read(query, today)
    if without_speakers != query:
        ordered = analyse(without_speakers)[:_MOST_TERMS]
    return Plan(
        embedded=embedded,
        terms=tuple(dict.fromkeys(ordered)),
        named=frozenset(called),
        role=_role(query, roles) or ("user" if of_owner else None),
        of_owner=of_owner,
        times=times,
        pairs=frozenset(pairwise(ordered)),
    )


def _callings(speaker: str) -> list[str]:
    """The ways somebody is called: by the whole name, and a person by the first part of it."""
    parts = speaker.split()
    is_a_person = (
        len(parts) > 1 and all(part[:1].isupper() for part in parts) and not _NOT_PEOPLE & set(speaker.lower().split())
    )
    return [speaker, parts[0]] if is_a_person and len(parts[0]) > 2 else [speaker]


def _is_said(name: str, said: set[str]) -> bool:
    """Whether a question has the name, written as a name: `Mark`, not `mark the trail`.

    People who type without capitals are understood too, unless the name is a word like any other.
    """
    first, *rest = re.findall(r"\w+", name) or [""]
    if first in said and all(part in said for part in rest):
        return True
    careless = not any(word[:1].isupper() for word in said - {"I"})
    lowered = first.lower()
    return careless and lowered in said and lowered not in _ALSO_WORDS and lowered not in STOP and not rest


def _without(query: str, names: list[str]) -> str:
    if not names:
        return query
    text = query
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(['’]s)?(?!\w)", " ", text, flags=re.IGNORECASE)
    text = " ".join(text.split())
    # A question that is nothing but a name is about the name.
    return text if analyse(text) else query


def _role(query: str, roles: set[str]) -> str | None:
    if "user" not in roles:
        return None
    if _OF_THE_ASSISTANT.search(query):
        return "assistant"
    return "user" if _OF_THE_USER.search(query) else None
