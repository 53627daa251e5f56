"""Cuts a text that is longer than the model reads into passages that together cover all of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

# The model reads 256 tokens, two of which frame the text.
LIMIT = 254
# Sentences of up to this many pieces are repeated at the start of the next passage, so that a reference to the
# sentence before ("she then sold it") still has something to refer to.
OVERLAP = 32

_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？\n])")


@dataclass(frozen=True)
class Passage:
    """Pieces to embed at once; `weight` counts those that no earlier passage had."""

    pieces: list[int]
    weight: int


def passages(text: str, cut: Callable[[str], list[int]]) -> list[Passage]:
    """One passage for a text that fits; otherwise whole sentences, with a short overlap."""
    pieces = cut(text)
    if len(pieces) <= LIMIT:
        return [Passage(pieces, max(1, len(pieces)))]
    return _packed([part for sentence in _sentences(text) for part in _windows(cut(sentence))])


def _sentences(text: str) -> list[str]:
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return [text[start:stop] for start, stop in zip([0, *ends], [*ends, len(text)], strict=True) if start < stop]


def _windows(pieces: list[int]) -> list[list[int]]:
    """A sentence that is itself too long, in near equal parts."""
    if len(pieces) <= LIMIT:
        return [pieces] if pieces else []
    parts = -(-len(pieces) // LIMIT)
    bounds = [len(pieces) * part // parts for part in range(parts + 1)]
    return [pieces[start:stop] for start, stop in pairwise(bounds)]


def _packed(sentences: list[list[int]]) -> list[Passage]:
    packed: list[Passage] = []
    current: list[int] = []
    fresh = 0
    last: list[int] = []
    for sentence in sentences:
        if current and len(current) + len(sentence) > LIMIT:
            packed.append(Passage(current, fresh))
            repeated = last if len(last) <= OVERLAP and len(last) + len(sentence) <= LIMIT else []
            current, fresh = list(repeated), 0
        current = current + sentence
        fresh += len(sentence)
        last = sentence
    return [*packed, Passage(current, fresh)]
