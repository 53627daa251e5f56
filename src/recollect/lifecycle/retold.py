"""What somebody is told about themselves, as they would say it: "You live in Lisbon" is "I live in Lisbon"."""

from __future__ import annotations

from recollect.lifecycle.phrasing import either, pattern

# How an assistant begins to tell somebody what it knows.
_INTRODUCED = (
    "^(?:"
    + either("""
        yes, sure, ok, okay, got it, noted, understood, right, so, well, based on memory,
        according to (?:my |our )?\\w+, as far as i know, you (?:told|said)(?: me)?,
        (?:from|as|like) (?:what )?you(?:'ve| have)? (?:told|said)(?: me)?, i (?:know|remember|recall|see|have noted)
    """)
    + r"\b[,.:;!—-]*(?: that)? )+"
)
_THEM = pattern(r"\byou")
_TURNED = (
    (pattern(_INTRODUCED), ""),
    (pattern(r"\byou(?:'re| are)\b"), "I am"),
    (pattern(r"\byou(?:'ve| have)\b"), "I have"),
    (pattern(r"\byour\b"), "my"),
    (pattern(r"\byou\b"), "I"),
)
# In a summary everybody is named.
_LABELLED = pattern(r"^(?:(?P<user>user|human)|assistant|agent|ai): ")


def as_they_would_say(text: str, by_them: bool) -> str:
    """A sentence as the user would say it; nothing where an assistant tells of something else."""
    label = _LABELLED.match(text)
    if label is not None:
        text, by_them = text[label.end() :], label["user"] is not None
    if by_them:
        return text
    if _THEM.search(text) is None:
        return ""
    for found, written in _TURNED:
        text = found.sub(written, text)
    return text
