"""What a language model would do better, done without one: deterministic, instant, good enough to start with."""

from __future__ import annotations

import re

_BASE = 0.5

# (what is noticed, how much it raises or lowers importance). Lasting statements weigh more than small talk.
_CUES: tuple[tuple[re.Pattern[str], float], ...] = (
    (re.compile(r"\b(remember|don't forget|important|critical|must|never|always)\b", re.I), 0.2),
    (re.compile(r"\b(prefer|prefers|favou?rite|allergic|hates?|loves?|deadline|password|birthday)\b", re.I), 0.1),
    (re.compile(r"\b(actually|correction|instead of|no longer|changed|moved|decided)\b", re.I), 0.1),
    (re.compile(r"\b(error|failed|failure|crash(ed)?|bug|outage)\b", re.I), 0.1),
    (re.compile(r"\d"), 0.05),
    (re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+"), 0.05),
    (re.compile(r"^\W*(hi|hey|hello|thanks|thank you|ok|okay|sure|great|bye|lol)\b[\s\S]{0,24}$", re.I), -0.3),
    (re.compile(r"\?\s*$"), -0.1),
)


def importance_of(text: str) -> float:
    """From 0 to 1, by what a text says rather than how long it is."""
    head = text[:2000]
    score = _BASE + sum(weight for pattern, weight in _CUES if pattern.search(head))
    return round(min(1.0, max(0.05, score)), 2)
