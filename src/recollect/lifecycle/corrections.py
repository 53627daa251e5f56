"""What puts something right that was said before, told from what merely answers."""

from __future__ import annotations

import re

from recollect.lifecycle.phrasing import either, pattern, unless
from recollect.lifecycle.statements import says_something

_SUBJECT = either("it, that, he, she, they, we, i, the, my, his, her, our, their, this, there")
_SAYS = rf"{_SUBJECT} [\w' -]{{0,40}}?\b"

_NO = pattern(
    r"^no(?:pe)?[,.!:;—-]*\s+(?:(?:actually|wait|sorry|rather|instead|i meant|i mean)[,:]?\s+)*(?:",
    r"it's|it is|it was|that's|they're|he's|she's|",
    _SAYS,
    either("is, are, was, were, has, have, lives, works, moved, starts, ends, goes"),
    r"\b)(?P<rest>.+)$",
)
_ACTUALLY = pattern(
    r"^(?:actually|correction|sorry|wait|oops|my mistake|my bad)[,:;—!. -]+(?:actually[, ]+|no[, ]+|sorry[, ]+)*(?:",
    r"it's|it is|it was|that's|they're|i'm|we're|i meant|",
    _SAYS,
    either("is, are, was, were, has, have, am, lives?, works?, moved, starts, ends, goes, meant"),
    r"\b)(?P<rest>.+)$",
)
_MEANT = pattern(
    r"\b(?:i|we) (?:actually |really )?meant ", unless("to, it, what, that, well, no, as, by"), r"(?P<rest>.+)$"
)
_NOT_BUT = pattern(
    r"\b(?:is|are|was|were|it's|that's|he's|she's|i'm|lives?|works?|named|called|starts|ends|am)\s+not ",
    unless("""
        only, just, sure, bad, perfect, great, ideal, yet, easy, clear, simply, merely, really, so, too, very, good,
        much, that
    """),
    r"(?!\w+ing\b)[^,.;]{1,60}?,? but (?:rather )?",
    unless("it, that, i, we, not, also, still, then, maybe, the problem"),
    r"(?P<rest>\w.*)$",
)
_NOT_THAT = pattern(
    r"\b(?:is|are|was|were|it's|he's|she's|i'm|lives?|works?|called|named) (?P<rest>[^,;]{1,60}), not ",
    unless("yet, sure, really, only, just, that, bad, to mention, because, if, a problem, too, so, very, much"),
    r"\w+(?: [\w:.-]+){0,3}[.!]*$",
)
_NO_LONGER = pattern(r"\b(?:i|we|my [\w ]{1,30}?|our [\w ]{1,30}?)(?: am|'m| are|'re| is)? no longer \w+ \w+")

# "No, it's fine": there is nothing in it.
_EMPTY = pattern(
    r"^[\s,]*(?:(?:all|quite|totally|perfectly|just|really|not|very|so|too|a|still|already|no) )*",
    either("""
        fine, ok, okay, good, great, right, wrong, correct, incorrect, true, false, nothing, it, all, enough, alright,
        done, fixed, broken, working, works, bad, problem, clear, cool, perfect, nice, easy, weird, strange, funny,
        interesting, helpful, better, worse, that, this, thanks, one, error, failing, there, here, ready, not,
        necessary, needed, possible, hard, important
    """),
    r"[\s.!]*$",
)
# "No, they're easy" answers a question; "No, it's on Tuesday" puts something right: it names a thing or a number.
_ANSWER = pattern(
    r"^(?:no(?:pe)?[,.!:;—-]*\s+(?:it|they|that|this|he|she)\b|(?:actually|wait|sorry)\W+(?:i'm|we're) \w+)"
)
_POINTED = re.compile(r"\d|(?<!\A)\b[A-Z][a-z]+")

_REJECTION = pattern(
    r"^(?:no[,.!]*\s*)?(?:that's|that is|that was|this is|you're|you are|you got (?:it|that)) ",
    either("not (?:right|correct|true|quite right), wrong, incorrect, mistaken, outdated, no longer true, a mistake"),
    r"\b[^,;]{0,20}$",
)


def is_correction(plain: str) -> bool:
    """Whether a sentence says how something really is, with what it is."""
    for rule in (_NO, _ACTUALLY, _MEANT, _NOT_BUT, _NOT_THAT):
        match = rule.search(plain)
        if match is None or (_ANSWER.match(plain) and not _POINTED.search(match["rest"])):
            continue
        if says_something(match["rest"]) and not _EMPTY.match(match["rest"]):
            return True
    return bool(_NO_LONGER.search(plain))


def is_rejection(plain: str) -> bool:
    """Whether a sentence says no more than that something is wrong: what is right, the next one tells."""
    return bool(_REJECTION.match(plain))
