"""What somebody asked not to be kept: which entries of a session must not be quoted in another one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from recollect.lifecycle.statements import asks_to_be_forgotten
from recollect.stores.ops import Entry
from recollect.tiers.messages import ROLES
from recollect.words import analyse

# What is asked here is asked of what was said before, and not of the words that follow.
_TAKES_BACK = re.compile(
    r"\b(?:forget|scratch|remember|keep|save|store|note|record|log|repeat|share)"
    r" (?:it|that|what|about (?:it|that|what)|i (?:said|told)|any of|anything|my last|the last)\b",
    re.IGNORECASE,
)
_ALL_OF_IT = re.compile(
    r"\b(?:everything|all)\b.{0,20}\b(?:i|we)(?:'ve)? (?:just |have )?(?:said|told|talked|discussed|wrote)\b"
    r"|\b(?:this|the|our) (?:whole |entire )?(?:session|chat|conversation)\b|\bforget everything\b",
    re.IGNORECASE,
)
# "Please don't save this." says nothing else, so that "this" is what came before it.
_OF_ITS_OWN = 2
_REQUESTS = frozenset(
    analyse("please forget remember memorize save store keep record note log write don't never said told off between")
)


def is_confided(entries: Sequence[Entry], at: int) -> bool:
    """Whether the entry at a place of its session was said, answered or taken back in confidence."""
    entry = entries[at]
    if entry.kind not in (*ROLES, "turn", "tool_call"):
        return asks_to_be_forgotten(entry.content)
    mine = next((place for place in range(at, -1, -1) if _is_the_users(entries[place])), None)
    if mine is not None and asks_to_be_forgotten(entries[mine].content):
        return True
    later = [one.content for one in entries[at + 1 :] if _is_the_users(one)]
    asking = [place for place, text in enumerate(later) if asks_to_be_forgotten(text)]
    return any(_ALL_OF_IT.search(later[place]) or (place == 0 and _takes_back(later[place])) for place in asking)


def _is_the_users(entry: Entry) -> bool:
    if entry.kind in ROLES:
        return entry.kind == "user"
    given = entry.metadata.get("given")
    role = given.get("role") if isinstance(given, Mapping) else None
    return entry.kind == "turn" and role in (None, "user", "human")


def _takes_back(text: str) -> bool:
    return bool(_TAKES_BACK.search(text)) or len(set(analyse(text)) - _REQUESTS) < _OF_ITS_OWN
