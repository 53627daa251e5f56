"""What of an item is embedded, and by which words it is found."""

from __future__ import annotations

import re

from recollect.stores.vectors import MOST_PASSAGES
from recollect.values import MemoryItem
from recollect.words import analyse, date_terms

# About 180 words are 240 word pieces: what a small encoder reads at once without cutting.
_PASSAGE_WORDS = 180

PLAINLY = "plainly"
"""Where the metadata of an item tells in plain words what its text says in others, a sentence a line.

It is kept with the item, so that whoever embeds it again, or takes it elsewhere, embeds the same.
"""

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+")


def passages(content: str) -> list[str]:
    """A text in parts that an embedder can read whole, cut between sentences; a short text is one part.

    Each gets a vector of its own, so that one paragraph of a long note can be the answer.
    """
    if len(content.split()) <= _PASSAGE_WORDS:
        return [content]
    parts: list[str] = []
    words: list[str] = []
    for sentence in _SENTENCE_END.split(content):
        for piece in _pieces(sentence.split()):
            if words and len(words) + len(piece) > _PASSAGE_WORDS:
                parts.append(" ".join(words))
                words = []
            words.extend(piece)
    if words:
        parts.append(" ".join(words))
    # Nothing is dropped from a very long text: its last part holds all that is left.
    return [*parts[: MOST_PASSAGES - 1], " ".join(parts[MOST_PASSAGES - 1 :])] if len(parts) > MOST_PASSAGES else parts


def to_embed(item: MemoryItem) -> list[str]:
    """The texts that an item is found by the meaning of: what it says, and that in plain words."""
    parts = passages(item.content)
    return [*parts, *plain_sentences(item)[: MOST_PASSAGES - len(parts)]]


def plain_sentences(item: MemoryItem) -> list[str]:
    """What an item says in plain words, where that is kept beside its own."""
    told = item.metadata.get(PLAINLY)
    return [line for line in told.splitlines() if line.strip()] if isinstance(told, str) else []


def index_terms(item: MemoryItem) -> tuple[str, ...]:
    """The item's words, with those that only its plain wording has; for what was said in a dialogue also the day."""
    terms = analyse(item.content)
    if plainly := plain_sentences(item):
        said = set(terms)
        terms.extend(dict.fromkeys(term for term in analyse(" ".join(plainly)) if term not in said))
    if item.turn is not None:
        terms.extend(date_terms(item.created_at))
    return tuple(terms)


def _pieces(words: list[str]) -> list[list[str]]:
    """A sentence longer than a passage in parts of passage length."""
    return [words[at : at + _PASSAGE_WORDS] for at in range(0, len(words), _PASSAGE_WORDS)]
