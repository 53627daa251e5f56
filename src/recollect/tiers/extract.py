"""A long tool output as the part of it that is worth keeping, with the size and hash of the whole."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass

# About 500 tokens: a screenful, of which the start and the end have their share and the telling lines the rest.
WHOLE_UP_TO = 2000
_HEAD = 400
_TAIL = 500
_LONGEST_LINE = 240
_GAP = "[…]"

# Plain words, in lower case: an output may have a hundred thousand lines.
_TROUBLE = re.compile(r"error|exception|fatal|panic|fail|traceback|denied|refused|timed out|timeout|abort")
_NOTABLE = re.compile(r"warn|total|passed|result|summary|created|deleted|version|status|exit|done")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Whole:
    """What an extract was taken from: bytes in UTF-8, and their sha256 in hex."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Extract:
    """What is kept of a text; `whole` is None when that is all of it."""

    text: str
    whole: Whole | None = None


def extract(text: str) -> Extract:
    """The text itself when it is short; else its head, its tail, and the most telling lines between, in order."""
    if len(text) <= WHOLE_UP_TO:
        return Extract(text)
    lines = _lines(text)
    raw = text.encode()
    kept = _chosen(lines)
    shown = _joined(lines, kept)
    left_out = len(text) - sum(len(lines[at]) for at in kept)
    note = f"[an extract; {left_out:,} of {len(text):,} characters left out]"
    return Extract(f"{shown}\n{note}", Whole(len(raw), hashlib.sha256(raw).hexdigest()))


def _lines(text: str) -> list[str]:
    """Lines that are not empty, and of those too long to show the parts."""
    return [
        line[at : at + _LONGEST_LINE]
        for line in (line.strip() for line in text.splitlines())
        for at in range(0, len(line), _LONGEST_LINE)
    ]


def _chosen(lines: list[str]) -> list[int]:
    taken: set[int] = set()
    room = WHOLE_UP_TO
    for order, most in ((range(len(lines)), _HEAD), (range(len(lines) - 1, -1, -1), _TAIL)):
        for at in order:
            most -= len(lines[at])
            if most < 0 or at in taken:
                break
            taken.add(at)
            room -= len(lines[at])
    # A line like a hundred others says nothing by being there once more: alike but for their numbers is alike.
    shapes = [_DIGITS.sub("0", line) for line in lines]
    frequency = Counter(shapes)
    told = {shapes[at] for at in taken}
    first: dict[str, int] = {}
    for at, shape in enumerate(shapes):
        first.setdefault(shape, at)
    for at in sorted(first.values(), key=lambda at: (-_telling(lines[at], frequency[shapes[at]]), at)):
        if at in taken or shapes[at] in told or len(lines[at]) > room:
            continue
        taken.add(at)
        room -= len(lines[at])
    return sorted(taken)


def _telling(line: str, alike: int) -> float:
    score, line = 1.0 / alike, line.lower()
    if _TROUBLE.search(line):
        score += 2.0
    if _NOTABLE.search(line):
        score += 0.5
    return score + (0.25 if _DIGITS.search(line) else 0.0)


def _joined(lines: list[str], kept: list[int]) -> str:
    shown: list[str] = []
    before = -1
    for at in kept:
        if at != before + 1:
            shown.append(_GAP)
        shown.append(lines[at])
        before = at
    if before != len(lines) - 1:
        shown.append(_GAP)
    return "\n".join(shown)
