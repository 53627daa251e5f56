"""What somebody asked to be remembered, in so many words."""

from __future__ import annotations

from recollect.lifecycle.phrasing import either, pattern
from recollect.lifecycle.statements import Statement, says_something

_REQUEST = pattern(
    r"^(?:(?P<asked>(?:can|could|will|would) you )(?:please |kindly )?|i(?:'d| would) like you to |i want you to ",
    r"|i need you to |you (?:should|must|need to|have to) |let's |always |make sure (?:to |you ))?",
    either("""
        remember, memori[sz]e, note, keep in mind, bear in mind, know, don't forget, do not forget, never forget,
        take note, make a note, save, store, write down
    """),
    r"\b(?P<rest>.*)$",
)
_MARKED = pattern(
    "^",
    either("""
        for (?:future|your) (?:reference|information), for the record, fyi, just so you know, note to self, reminder,
        from now on, going forward, important(?=:), note(?=:)
    """),
    r"\b[\s,:—-]+(?P<rest>.+)$",
)
_IN_FUTURE = pattern(
    r"^in (?:the )?future,? (?P<rest>",
    either("please, always, never, use, answer, reply, write, don't, do not, call, send, avoid, keep"),
    r"\b.+)$",
)
_WHAT_TO_KEEP = pattern(
    r"^\s*(?:(?:of|down)\s+)?(?:(?:this|that|the following|it|these)?\s*:\s*|that\s+|the fact that\s+|,?\s*(?=\b",
    either("""
        i, i'm, i've, my, we, we're, our, he, she, they, his, her, their, always, never, to always, to never
    """),
    r"\b))(?P<said>.+)$",
)
# A memory, a consolation, or a chore of the hour.
_NOTHING_TO_KEEP = pattern(
    "^",
    either("""
        when, how, what, why, where, who, the time, the day, last, to, me, sometimes, i'm always here, i'm here,
        we're here
    """),
    r"\b(?! always| never)",
)
_THIS = r"(?:this|that|it)(?: down| in mind| for (?:later|me|next time|the future))?(?:,? please)?"
_BARE = pattern(
    r"^(?:please |can you |could you |you should |i want you to )*",
    rf"(?:remember|note|save|keep|memori[sz]e|don't forget|do not forget) {_THIS}[.!?]*$",
)
_AFTERTHOUGHT = pattern(
    rf"[,;—-]\s*(?:so )?(?:please )?(?:remember|keep|note|don't forget|do not forget) {_THIS}[.!]*$"
)
_SUPPOSES = pattern(r"(?:if|unless|suppose|imagine|pretend)\b")


def is_request(plain: str) -> bool:
    """Whether a sentence asks to remember something, and says what."""
    if _AFTERTHOUGHT.search(plain):
        return says_something(_AFTERTHOUGHT.sub("", plain), 2)
    marked = _MARKED.match(plain) or _IN_FUTURE.match(plain)
    if marked:
        return says_something(marked["rest"]) and len(marked["rest"].split()) >= 3 and not _is_open(marked["rest"])
    request = _REQUEST.match(plain)
    if request is None:
        return False
    if plain.rstrip().endswith("?") and not request["asked"]:
        return False  # "remember that photo you sent?" asks; "could you remember that I'm vegan?" asks for just that
    kept = _WHAT_TO_KEEP.match(request["rest"])
    if kept is None or _NOTHING_TO_KEEP.match(kept["said"].strip()):
        return False
    said = kept["said"].strip().rstrip("?")
    return says_something(said) and len(said.split()) >= 2 and not _is_open(said)


def is_bare_request(plain: str) -> bool:
    """Whether a sentence asks to remember the one before it: "Remember that.\""""
    return bool(_BARE.match(plain))


def _is_open(text: str) -> bool:
    """Whether what follows is a question or a supposition."""
    return Statement(text.strip(), text.strip()).is_question or bool(_SUPPOSES.match(text.strip()))
