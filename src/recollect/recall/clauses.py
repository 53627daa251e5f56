"""A question that is several: its parts, and those of them that what was found says nothing about."""

from __future__ import annotations

import re
from collections.abc import Sequence

from recollect.words import analyse

_MOST = 3
_ASKS = "(?:what|where|when|who|whom|whose|which|why|how)"
# Behind an "and" only a question word begins a new question: "salt and pepper" and "fast and is cheap" stay whole.
_JOINT = re.compile(
    rf"\?+[\s\"')]+(?:and |also |but )*(?=\w)|[,;]?\s+(?:and|but) (?:also )?(?={_ASKS}\b)", re.IGNORECASE
)
# Alone, "what does she prefer" would be asked of nobody.
_POINTS_BACK = re.compile(r"\b(?:it|its|that|this|they|them|their|those|these|he|him|his|she|her)\b", re.IGNORECASE)
_LEAST_WORDS = 3
_COVERED = 0.5
# A longer text is material, not a question.
_LONGEST = 400


def clauses(query: str) -> list[str]:
    """The questions that are asked, each of which could stand alone; none if there is only one."""
    if len(query) > _LONGEST:
        return []
    parts = [part.strip(" ,;?") for part in _JOINT.split(query.strip())]
    asked = [part for part in parts if len(part.split()) >= _LEAST_WORDS and analyse(part)]
    alone = len(asked) == len([part for part in parts if part]) and not any(map(_POINTS_BACK.search, asked[1:]))
    return asked if alone and 1 < len(asked) <= _MOST else []


def uncovered(asked: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The questions of which no text has half the words."""
    found = [frozenset(analyse(text)) for text in texts]
    wanted = [(one, frozenset(analyse(one))) for one in asked]
    return [one for one, terms in wanted if not any(len(terms & has) >= _COVERED * len(terms) for has in found)]
