"""Who is meant by "the user": models speak so of whom they serve, and people say "I" of themselves."""

from __future__ import annotations

import re

# "The user table" is about something else.
_THING = r"(?! (?:table|interface|id|ids|group|groups|account|accounts|model|story|stories|manual|guide|base|data)\b)"
_OWNED = re.compile(rf"\b(?:the )?user's\b{_THING}", re.IGNORECASE)
_ASKED = re.compile(
    rf"\b(do|does|did|is|was|has|have|had|can|could|would|should|will) the user\b(?!'){_THING}", re.IGNORECASE
)
_DOES = re.compile(
    r"\bthe user(?= (?:is|was|has|had|does|did|lives?|likes?|loves?|prefers?|wants?|works?|needs?|owns?|eats?|drinks?"
    r"|speaks?|said|told|asked|mentioned)\b)",
    re.IGNORECASE,
)
_OBJECT = re.compile(r"\b(about|for|to|with|of|call) the user(?=\s*[?.!,]|\s*$)", re.IGNORECASE)


def in_first_person(query: str) -> str:
    """The question as the user would ask it: what they said of themselves is in their own words."""
    if "user" not in query and "User" not in query:
        return query
    text = _OWNED.sub("my", query)
    text = _ASKED.sub(r"\1 I", text)
    text = _DOES.sub("I", text)
    return _OBJECT.sub(r"\1 me", text)
