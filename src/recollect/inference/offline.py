"""How much a text matters, judged without a language model: deterministic, instant, good enough to start with."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLAIN = 0.5
_SMALL_TALK = 0.2
_LEAST = 0.05

# What a text is about shows in its first page; the rest would only cost time.
_READ = 2000

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


@dataclass(frozen=True, slots=True)
class _Cue:
    """Something that is noticed in a text, and by how much it raises importance.

    `phrases` are words with one blank between. A `pattern` costs the most, so it is only tried on a text that has
    one of the words `when`. Most texts have none of the `signs`: any of these words, or the first one of a phrase.
    """

    weight: float
    words: frozenset[str]
    phrases: tuple[str, ...] = ()
    when: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    signs: frozenset[str] = frozenset()

    def noticed(self, words: set[str], line: str) -> bool:
        if self.signs.isdisjoint(words):
            return False
        if not self.words.isdisjoint(words):
            return True
        for phrase in self.phrases:
            if phrase in line:
                return True
        return self.pattern is not None and not self.when.isdisjoint(words) and bool(self.pattern.search(line))


def _cue(weight: float, words: str, phrases: str = "", when: str = "", pattern: str | None = None) -> _Cue:
    said = [phrase.split() for phrase in phrases.split(",") if phrase.strip()]
    return _Cue(
        weight,
        frozenset(words.split()),
        tuple(f" {' '.join(phrase)} " for phrase in said),
        frozenset(when.split()),
        None if pattern is None else re.compile(pattern),
        frozenset((*words.split(), *when.split(), *(phrase[0] for phrase in said))),
    )


# Each counts once, however often it is met, so that a long text does not gain by its length.
_CUES = {
    "remember": _cue(
        0.3,
        "",
        "don't forget, do not forget, never forget, keep in mind, bear in mind, make a note, note that, "
        "for future reference, from now on, going forward",
        # "I remember" and "do you remember" are about the past, not a request.
        when="remember",
        pattern=r"(?<! i)(?<! you)(?<!'t)(?<! cannot)(?<! not) remember (?!when )",
    ),
    "rule": _cue(
        0.15,
        "must always critical crucial important mandatory required",
        "make sure, under no circumstances",
        when="never don't do",
        pattern=r" never (?!mind )|^ (do not|don't) ",
    ),
    "correction": _cue(
        0.15,
        "actually correction instead",
        "i meant, we meant, that's wrong, that is wrong, that was wrong, that's incorrect, that is incorrect, "
        "that's not right, that is not right, no longer, scratch that, i was wrong, we were wrong, turns out, "
        "rather than",
        when="changed moved switched renamed postponed rescheduled",
        pattern=r" (changed|moved|switched|renamed|postponed|rescheduled) ((it|them|the \S+) )?(to|from|until) ",
    ),
    "decision": _cue(
        0.15,
        "decided decision agreed approved chose chosen concluded",
        "settled on, signed off, go with, going with, went with, the plan is",
        when="let's we'll will",
        pattern=r" (let's|we'll|we will) (use|ship|drop|keep|migrate) ",
    ),
    "error": _cue(
        0.15,
        "fail fails failed failing failure failures error errors exception exceptions bug bugs crash crashes crashed "
        "crashing timeout timeouts traceback outage denied refused broke broken corrupt corrupted panic fatal segfault",
        "timed out, rolled back, unable to, not found, out of memory",
    ),
    # What stays true of a person or a project for longer than a talk.
    "lasting": _cue(
        0.1,
        "prefer prefers favorite favourite allergic allergy hate hates love loves deadline password birthday "
        "anniversary born",
        "call me",
        when="my i i'm",
        pattern=r" my \S+ (\S+ )?is | (i'm|i am) an? | i (live|work|study) (in|at|for|as) ",
    ),
}
_QUESTION = -0.1
_NUMBER = 0.05
_NAME = 0.05

_DIGIT = re.compile(r"\d")
# A capital inside a sentence.
_CAPITAL = re.compile(r" (?<=[\w,;:] )[A-Z][a-z]")
_ADDRESS = re.compile(r"\w@\w+\.\w")
_IDENTIFIER = re.compile(r"\w[/_]\w")

# "No errors" is good news.
_NO_TROUBLE = re.compile(
    r" (no|0|zero|without|without an?) (errors?|failures?|exceptions?|bugs?|crash\S*|timeouts?)(?= )"
)
_NO = frozenset(("no", "0", "zero", "without"))
_ERROR_NAMES = ("error", "errors", "exception", "exceptions")

# By what an episode is, besides what it says.
_KINDS = {"error": 0.2, "decision": 0.2, "outcome": 0.15, "tool_call": -0.05}

_TALK = frozenset(
    """
    hi hey hello there yo thanks thank you so much very many a lot again ok okay sure great good bye goodbye lol haha
    hahaha cool nice yes no yep yeah yup nope fine perfect awesome sounds sound got it morning afternoon evening night
    day how are is doing do i i'm am we well see later soon cheers problem welcome wow hmm hm um oh ah right alright
    please that's that this what's up have one too and all of course never mind np ty thx k kk brilliant lovely amazing
    interesting fair enough makes sense talk to
    """.split()
)


def importance_of(text: str, kind: str | None = None) -> float:
    """From 0 to 1, by what a text says rather than how long it is.

    A plain statement is 0.5 and small talk 0.2. Raised by a request to remember (0.3), a rule, a correction, a
    decision or an error (0.15 each), a lasting trait (0.1), a number or a name (0.05 each); lowered by being a
    question (0.1). `kind` is an episode's: errors and decisions add 0.2, outcomes 0.15, tool calls take 0.05.
    """
    head = text[:_READ].replace("\u2019", "'")
    score = _said(head) + _KINDS.get(kind or "", 0.0)
    return round(min(1.0, max(_LEAST, score)), 2)


def _said(text: str) -> float:
    lowered = text.lower()
    said = _WORD.findall(lowered)
    line, words = f" {' '.join(said)} ", set(said)
    if words <= _TALK:
        return _SMALL_TALK  # nothing but how people greet, thank and nod; or no word at all
    if not words.isdisjoint(_NO):
        line = _NO_TROUBLE.sub(" ", line)
        words = set(line.split())
    noticed = {name for name, cue in _CUES.items() if cue.noticed(words, line)}
    if ("error" in line or "exception" in line) and any(word.endswith(_ERROR_NAMES) for word in words):
        noticed.add("error")  # ValueError, connectionrefusederror
    if lowered.lstrip().startswith("no, "):
        noticed.add("correction")
    score = _PLAIN + sum(_CUES[name].weight for name in sorted(noticed))
    if _DIGIT.search(text):
        score += _NUMBER
    if _CAPITAL.search(text) or _has_address(text):
        score += _NAME
    return score + _QUESTION if text.rstrip().endswith("?") else score


def _has_address(text: str) -> bool:
    """Whether a mail address, a path or an identifier is in the text."""
    if "@" in text and _ADDRESS.search(text):
        return True
    return ("/" in text or "_" in text) and bool(_IDENTIFIER.search(text))
