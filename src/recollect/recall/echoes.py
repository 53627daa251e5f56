"""Texts that only repeat another one: the same words, or those words in a frame such as "Based on memory: …"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from recollect.words import analyse

_WORD = re.compile(r"\w+")
# A frame that was put around what had it already, as happens when an agent recites what it recites.
_AGAIN = re.compile(r"^((?:\S+ ){1,8}?)\1+")
_WITHIN = 9

# Two long texts that begin alike for so many characters, and are as long as each other, are taken for the same.
_COMPARED = 4000

# Less is an expression that many sentences have in them.
_LEAST_WORDS = 4
_LONGEST_FRAME = 160

# What is said around a quotation, and adds nothing to it.
_FRAME = frozenset(
    analyse(
        "based memory memories recall recalled recollect remember remembered said say says told tell mentioned mention "
        "noted note notes according earlier previous previously before know known knowledge fact record records "
        "recorded stored saved context information info found here answer sure yes ok okay right well thanks "
        "understood got last time session user assistant see history conversation so far quote still exactly "
        "stated state states wrote reminder reminded remind"
    )
)


def key(text: str) -> str:
    """A text as far as it matters for being the same as another: case, marks and blanks make no difference."""
    begun = text[:_COMPARED]
    found = _WORD.findall(begun.casefold())
    words = " ".join(found) or begun.strip()
    if found and found[0] in found[1:_WITHIN]:
        words = _AGAIN.sub(r"\1", words)
    return words if len(text) <= _COMPARED else f"{words} {len(text)}"


def echoes(keys: Sequence[str]) -> dict[int, int]:
    """Of texts, given as their keys, those that add nothing to another one: by place, with the place of that one."""
    found: dict[int, int] = {}
    known: list[tuple[str, int]] = []
    # A text that is within another has its longest word there too, so that few have to be looked for.
    by_word: dict[str, list[int]] = {}
    for at in sorted(range(len(keys)), key=lambda at: (len(keys[at]), at)):
        own, words = f" {keys[at]} ", keys[at].split(" ")
        for said, place in [known[one] for one in sorted({one for word in words for one in by_word.get(word, ())})]:
            if len(own) - len(said) <= _LONGEST_FRAME and said in own and _frames(own.replace(said, " ", 1)):
                found[at] = place
                break
        if own.count(" ") > _LEAST_WORDS:
            by_word.setdefault(max(words, key=len), []).append(len(known))
            known.append((own, found.get(at, at)))
    return found


def _frames(rest: str) -> bool:
    return all(term in _FRAME or term.isdigit() for term in analyse(rest))
