"""What somebody likes, avoids and always does, told from what they happen to like just now."""

from __future__ import annotations

from recollect.lifecycle.phrasing import CLAUSE, PASSING, either, pattern, unless

# What these point at is gone with the talk.
_POINTING = unless(r"""
    it, that, this, these, those, them, him, her, his, their, its, to[.!]*$, you, your, yours, how, what, where, when,
    the, to (?:see|say|know|hear|think|bother|ask|admit|be), working with you, talking, everything, all of, both,
    one of, a lot, being, hearing, seeing
""")
_OFTEN = either("""
    really, much, strongly, absolutely, generally, usually, always, personally, definitely, also, still, very much, do,
    truly, particularly
""")
_ADVERBS = f"(?:{_OFTEN} )*"

_OPINION = pattern(
    rf"{CLAUSE}(?:i|we) {_ADVERBS}",
    either("""
        love, like, enjoy, adore, hate, dislike, detest, loathe, despise, don't (?:like|enjoy|love),
        do not (?:like|enjoy|love), can't stand, cannot stand, can't bear
    """),
    rf" {_POINTING}\w+",
)
_PREFERENCE = pattern(
    rf"{CLAUSE}(?:i|we)(?:'d|'ll)? {_ADVERBS}(?:prefer|favou?r) ",
    unless("it, that, this, these, those, them, neither"),
    unless("the (?:first|second|third|last|former|latter|other|new|old|one|previous)"),
    r"\w+",
)
# After "always" and "never" the past tense and the mind tell a story, not a habit.
_HABIT = pattern(
    rf"{CLAUSE}(?:i|we) (?:always|never|only ever|only|usually|typically|normally|generally) (?!\w+ed\b)",
    unless("""
        said, knew, thought, got, understood, heard, saw, meant, had, did, been, seen, felt, was, were, could, would,
        forget, know, mind, get, see, seem, have to, need, want, just, told, found, came, went, made, gave, took, ever,
        understand, remember, end up, feel, wonder, give up, worry, hope, chose
    """),
    r"[a-z]+\s+(?!(?:it|that|this)\b[.!]?$)\w+",
)
_ABSTAINS = pattern(
    r"\b(?:i|we) (?:don't|do not|can't|cannot) ",
    either("eat, drink, smoke, drive, fly, use, wear, watch, work on, take, do, tolerate, cook, consume, buy, accept"),
    " ",
    unless("it, that, this, these, those, them, the, any of, much"),
    r"\w+",
)
_FAVOURITE = pattern(
    r"\b(?:my|our) (?:all-time |absolute |least )?(?:favou?rite|preferred|go-to|default|usual)\b[^.?!,;-]{0,40}?",
    r"\b(?:is|are|'s) ",
    unless("that, this, it, what, the one, not"),
    r"\w+|\bis (?:my|our) (?:favou?rite|preferred)\b",
)
_FAN = pattern(
    r"\b(?:i'm|i am) (?:not )?(?:really )?(?:a (?:big |huge )?fan of|allergic to|into|fond of) ", _POINTING, r"\w+"
)
# "Always answer in German": how somebody wants to be served from now on.
_STANDING = pattern(
    "^(?:always|never) ",
    unless("mind, again, the, a, been, ever, say never, give up"),
    either("""
        use, answer, reply, respond, write, include, add, send, call, address, speak, show, give, format, put, start,
        end, ask, assume, commit, push, deploy, delete, suggest, recommend, schedule, book, order, run, keep, refer,
        explain, provide, mention, share, round, sort, name, prefix, cite, quote, translate, convert, avoid, check,
        confirm, make, say, tell, be, do, let
    """),
    r"\b .*\w",
)
_FROM_NOW_ON = pattern(
    "^",
    either("""
        answer, reply, respond, write, speak, talk, address, explain, use, call, send, format, include, avoid, round
    """),
    r"\b.*\b(?:from now on|every time|in (?:the )?future)[.!]?$",
)
# "I like holding them": whom, nobody will know.
_LEFT_OPEN = pattern(r"^(?:\S+ ){1,5}(?:it|them|that|this|those|these|one|ones)[.!]*$")

_RULES = (_PREFERENCE, _OPINION, _HABIT, _ABSTAINS, _FAVOURITE, _FAN, _STANDING, _FROM_NOW_ON)


def is_preference(plain: str) -> bool:
    """Whether a sentence says what its speaker wants or does as a rule."""
    if PASSING.search(plain) or _LEFT_OPEN.search(plain):
        return False
    return any(rule.search(plain) for rule in _RULES)
