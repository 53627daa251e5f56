"""What has been decided, told from what is being done, and from what is still open."""

from __future__ import annotations

from recollect.lifecycle.phrasing import PASSING, either, pattern, unless
from recollect.lifecycle.statements import says_something

_DECIDED = pattern(
    r"(?:^|[,;:—-] |\b(?:and|but|so|because|that) )(?P<who>i|we|the team|our team)(?:'ve| have|'re| are)?",
    r"(?: all| finally| just| now| also| already)* ",
    either("""
        decided (?:to|that|on|against|not to), agreed (?:to|that|on), settled on, chosen, chose, opted for, opted to,
        concluded that, committed to, signed off on, going with, standardi[sz](?:ed|ing) on, switching to, switched to,
        migrating to, migrated to
    """),
    " ",
    unless("it, that, this, them, one, him, her"),
    r"\w+",
)
_LETS = pattern(
    "^(?:let's|let us|we'll|we will|i'll|i will) (?:go|stick|stay) with ",
    unless("""
        it, that, this, them, the (?:first|second|third|last|other|former|latter|one|plan|flow), option, your, what
    """),
    r"\w+",
)
_DECISION_IS = pattern(
    r"^(?:the |our |my )?(?:final )?decision(?: is|:| was)[\s:]*(?!(?:pending|open|yours|up to)\b)\w+ \w+",
    r"|^(?:it's|it is) decided[:,]? \w+ \w+|^(?:we have|there's|there is) (?:a |an )?agreement (?:to|that|on) \w+",
)


def is_decision(plain: str) -> bool:
    """Whether a sentence says what was decided, and what that is."""
    decided = _DECIDED.search(plain)
    if decided and decided["who"].lower() == "i" and PASSING.search(plain):
        return False  # "today I decided to sleep in" is news, not a rule
    return bool(decided or _LETS.search(plain) or _DECISION_IS.search(plain)) and says_something(plain, 2)
