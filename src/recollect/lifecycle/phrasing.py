"""What the patterns of the rules are made of: words to choose from, where a clause begins, what is over by tomorrow."""

from __future__ import annotations

import re


def either(words: str) -> str:
    """One of the phrases of a list with commas, each of which may itself be a pattern."""
    return "(?:" + "|".join(phrase.strip() for phrase in " ".join(words.split()).split(",")) + ")"


def unless(words: str) -> str:
    """Not followed by one of these."""
    return rf"(?!{either(words)}\b)"


def pattern(*parts: str) -> re.Pattern[str]:
    """The parts as one pattern, in any case; `(?-i:[A-Z])` is how it asks for a capital all the same."""
    return re.compile("".join(parts), re.I | re.S)


# Where a clause begins: "the films I love" tells of films, not of love.
CLAUSE = r"(?:^|[,;:.!—–-]\s*|\b(?:and|but|because|since|so|plus|'?cause|why|though|although|that|personally|as) )"

# Today's weather, this step, right now: true for an hour.
PASSING = pattern(
    r"\b",
    either("""
        right now, at the moment, today, tonight, this (?:morning|afternoon|evening|time|one|week), just now, currently,
        yesterday, tomorrow, so far, for now, anymore, these days, lately, in a minute, a second, again
    """),
    r"\b",
)
