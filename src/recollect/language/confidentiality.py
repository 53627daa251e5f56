"""Detection of messages that a user asked not to keep. They are not quoted in other sessions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from recollect.language.analysis import analyze
from recollect.language.sentences import is_off_the_record

_MESSAGE_KINDS = ("system", "user", "assistant", "tool")

# A retraction refers to what was said before, not to the text that follows it.
_RETRACTION = re.compile(
    r"\b(?:forget|scratch|remember|keep|save|store|note|record|log|repeat|share)"
    r" (?:it|that|what|about (?:it|that|what)|i (?:said|told)|any of|anything|my last|the last)\b",
    re.IGNORECASE,
)
_WHOLE_SESSION = re.compile(
    r"\b(?:everything|all)\b.{0,20}\b(?:i|we)(?:'ve)? (?:just |have )?(?:said|told|talked|discussed|wrote)\b"
    r"|\b(?:this|the|our) (?:whole |entire )?(?:session|chat|conversation)\b|\bforget everything\b",
    re.IGNORECASE,
)
# In "Please don't save this." there is no other content, so "this" is what came before.
_MIN_CONTENT_TERMS = 2
_REQUEST_TERMS = frozenset(
    analyze("please forget remember memorize save store keep record note log write don't never said told off between")
)


class SpokenEntry(Protocol):
    """The fields of a log entry that decide whether it is confidential."""

    @property
    def kind(self) -> str: ...
    @property
    def content(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...


def is_confided(entries: Sequence[SpokenEntry], at: int) -> bool:
    """Return True if the user kept the entry `at` off the record or retracted it, or if it answers such an entry."""
    entry = entries[at]
    if entry.kind not in (*_MESSAGE_KINDS, "turn", "tool_call"):
        return is_off_the_record(entry.content)
    own = next((place for place in range(at, -1, -1) if _is_from_user(entries[place])), None)
    if own is not None and is_off_the_record(entries[own].content):
        return True
    later = [entry.content for entry in entries[at + 1 :] if _is_from_user(entry)]
    requests = [place for place, text in enumerate(later) if is_off_the_record(text)]
    return any(_WHOLE_SESSION.search(later[at]) or (at == 0 and _is_retraction(later[at])) for at in requests)


def _is_from_user(entry: SpokenEntry) -> bool:
    if entry.kind in _MESSAGE_KINDS:
        return entry.kind == "user"
    given = entry.metadata.get("given")
    role = given.get("role") if isinstance(given, Mapping) else None
    return entry.kind == "turn" and role in (None, "user", "human")


def _is_retraction(text: str) -> bool:
    return bool(_RETRACTION.search(text)) or len(set(analyze(text)) - _REQUEST_TERMS) < _MIN_CONTENT_TERMS
