"""Importance scores of texts by deterministic rules, without a language model."""

from __future__ import annotations

import re

_PLAIN_SCORE = 0.5
_SMALL_TALK_SCORE = 0.2
_MIN_SCORE = 0.05

# The first page is enough to score a text.
_MAX_CHARS_READ = 2000

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


def _build_cue(
    weight: float, phrases: str, when: str = "", pattern: str = "(?!)"
) -> tuple[float, frozenset[str], re.Pattern[str]]:
    """Return the weight of a cue, words of which each text with it has one, and the pattern of a line with it.

    The line has one of the phrases, or it has one of the words `when` and matches `pattern`.
    """
    texts = phrases.split(", ")
    signs = frozenset((*when.split(), *(text.split()[0] for text in texts)))
    return weight, signs, re.compile(f" (?:{'|'.join(map(re.escape, texts))}) |{pattern}")


# Most texts have no sign of any cue. A cue counts once per text, so that long texts do not score higher.
_CUES = {
    "remember": _build_cue(
        0.3,
        "don't forget, do not forget, never forget, keep in mind, bear in mind, make a note, note that, "
        "for future reference, from now on, going forward",
        "remember",
        # "I remember" and "do you remember" are no requests.
        r"(?<! i)(?<! you)(?<!'t)(?<! cannot)(?<! not) remember (?!when )",
    ),
    "rule": _build_cue(
        0.15,
        "must, always, critical, crucial, important, mandatory, required, make sure, under no circumstances",
        "never don't do",
        r" never (?!mind )|^ (do not|don't) ",
    ),
    "correction": _build_cue(
        0.15,
        "actually, correction, instead, i meant, we meant, that's wrong, that is wrong, that was wrong, "
        "that's incorrect, that is incorrect, that's not right, that is not right, no longer, scratch that, "
        "i was wrong, we were wrong, turns out, rather than",
        "changed moved switched renamed postponed rescheduled",
        r" (changed|moved|switched|renamed|postponed|rescheduled) ((it|them|the \S+) )?(to|from|until) ",
    ),
    "decision": _build_cue(
        0.15,
        "decided, decision, agreed, approved, chose, chosen, concluded, settled on, signed off, go with, going with, "
        "went with, the plan is",
        "let's we'll will",
        r" (let's|we'll|we will) (use|ship|drop|keep|migrate) ",
    ),
    "error": _build_cue(
        0.15,
        "fail, fails, failed, failing, failure, failures, bug, bugs, crash, crashes, crashed, crashing, timeout, "
        "timeouts, traceback, outage, denied, refused, broke, broken, corrupt, corrupted, panic, fatal, segfault, "
        "timed out, rolled back, unable to, not found, out of memory",
    ),
    # Lasting facts about a person or a project.
    "lasting": _build_cue(
        0.1,
        "prefer, prefers, favorite, favourite, allergic, allergy, hate, hates, love, loves, deadline, password, "
        "birthday, anniversary, born, call me",
        "my i i'm",
        r" my \S+ (\S+ )?is | (i'm|i am) an? | i (live|work|study) (in|at|for|as) ",
    ),
}
_QUESTION_WEIGHT = -0.1
_NUMBER_WEIGHT = 0.05
_NAME_WEIGHT = 0.05

_DIGIT = re.compile(r"\d")
# A capitalized word inside a sentence, or an email address, a path or an identifier.
_CAPITALIZED_WORD = re.compile(r" (?<=[\w,;:] )[A-Z][a-z]")
_ADDRESS = re.compile(r"\w@\w+\.\w|\w[/_]\w")
_ADDRESS_SIGNS = frozenset("@/_")
_ERROR_NAME = re.compile(r"(?:error|exception)s? ")  # ValueError, connectionrefusederror

# "No errors" is no error.
_NEGATED_ERROR = re.compile(
    r" (no|0|zero|without|without an?) (errors?|failures?|exceptions?|bugs?|crash\S*|timeouts?)(?= )"
)

# The weight of an episode's kind.
_KIND_WEIGHTS = {"error": 0.2, "decision": 0.2, "outcome": 0.15, "tool_call": -0.05}

_SMALL_TALK_WORDS = frozenset(
    """
    hi hey hello there yo thanks thank you so much very many a lot again ok okay sure great good bye goodbye lol haha
    hahaha cool nice yes no yep yeah yup nope fine perfect awesome sounds sound got it morning afternoon evening night
    day how are is doing do i i'm am we well see later soon cheers problem welcome wow hmm hm um oh ah right alright
    please that's that this what's up have one too and all of course never mind np ty thx k kk brilliant lovely amazing
    interesting fair enough makes sense talk to
    """.split()
)


def score_importance(text: str, kind: str | None = None) -> float:
    """Return the importance of a text from 0 to 1, independent of its length.

    A plain statement scores 0.5 and small talk 0.2. A request to remember adds 0.3; a rule, a correction, a decision
    or an error 0.15; a lasting fact 0.1; a number or a name 0.05. A question subtracts 0.1. The `kind` of an episode
    adds 0.2 for errors and decisions and 0.15 for outcomes, and subtracts 0.05 for tool calls.
    """
    head = text[:_MAX_CHARS_READ].replace("\u2019", "'")
    score = _score_text(head) + _KIND_WEIGHTS.get(kind or "", 0.0)
    return round(min(1.0, max(_MIN_SCORE, score)), 2)


def _score_text(text: str) -> float:
    lowered = text.lower()
    all_words = _WORD.findall(lowered)
    if set(all_words) <= _SMALL_TALK_WORDS:
        return _SMALL_TALK_SCORE
    line = _NEGATED_ERROR.sub(" ", f" {' '.join(all_words)} ")
    words = set(line.split())
    found = {name for name, (_, signs, cue) in _CUES.items() if not signs.isdisjoint(words) and cue.search(line)}
    if _ERROR_NAME.search(line):
        found.add("error")
    if lowered.lstrip().startswith("no, "):
        found.add("correction")
    score = _PLAIN_SCORE + sum(_CUES[name][0] for name in sorted(found))
    if _DIGIT.search(text):
        score += _NUMBER_WEIGHT
    if _CAPITALIZED_WORD.search(text) or (not _ADDRESS_SIGNS.isdisjoint(text) and _ADDRESS.search(text)):
        score += _NAME_WEIGHT
    return score + _QUESTION_WEIGHT if text.rstrip().endswith("?") else score
