"""Importance scores of texts by deterministic rules, without a language model."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLAIN_SCORE = 0.5
_SMALL_TALK_SCORE = 0.2
_MIN_SCORE = 0.05

# The first page is enough to score a text.
_MAX_CHARS_READ = 2000

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


@dataclass(frozen=True, slots=True)
class _ImportanceCue:
    """A cue in a text, and the weight that it adds.

    `phrases` are words with one space between. The `pattern` is only tried if the text has one of the words `when`.
    `signs` are all words of the cue and the first words of its phrases: most texts contain none of them.
    """

    weight: float
    words: frozenset[str]
    phrases: tuple[str, ...] = ()
    when: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    signs: frozenset[str] = frozenset()

    def matches(self, words: set[str], line: str) -> bool:
        if self.signs.isdisjoint(words):
            return False
        if not self.words.isdisjoint(words):
            return True
        if any(phrase in line for phrase in self.phrases):
            return True
        return self.pattern is not None and not self.when.isdisjoint(words) and bool(self.pattern.search(line))


def _build_cue(
    weight: float, words: str, phrases: str = "", when: str = "", pattern: str | None = None
) -> _ImportanceCue:
    split_phrases = [phrase.split() for phrase in phrases.split(",") if phrase.strip()]
    return _ImportanceCue(
        weight,
        frozenset(words.split()),
        tuple(f" {' '.join(phrase)} " for phrase in split_phrases),
        frozenset(when.split()),
        None if pattern is None else re.compile(pattern),
        frozenset((*words.split(), *when.split(), *(phrase[0] for phrase in split_phrases))),
    )


# Each cue counts once per text, so that long texts do not score higher.
_CUES = {
    "remember": _build_cue(
        0.3,
        "",
        "don't forget, do not forget, never forget, keep in mind, bear in mind, make a note, note that, "
        "for future reference, from now on, going forward",
        # "I remember" and "do you remember" are no requests.
        when="remember",
        pattern=r"(?<! i)(?<! you)(?<!'t)(?<! cannot)(?<! not) remember (?!when )",
    ),
    "rule": _build_cue(
        0.15,
        "must always critical crucial important mandatory required",
        "make sure, under no circumstances",
        when="never don't do",
        pattern=r" never (?!mind )|^ (do not|don't) ",
    ),
    "correction": _build_cue(
        0.15,
        "actually correction instead",
        "i meant, we meant, that's wrong, that is wrong, that was wrong, that's incorrect, that is incorrect, "
        "that's not right, that is not right, no longer, scratch that, i was wrong, we were wrong, turns out, "
        "rather than",
        when="changed moved switched renamed postponed rescheduled",
        pattern=r" (changed|moved|switched|renamed|postponed|rescheduled) ((it|them|the \S+) )?(to|from|until) ",
    ),
    "decision": _build_cue(
        0.15,
        "decided decision agreed approved chose chosen concluded",
        "settled on, signed off, go with, going with, went with, the plan is",
        when="let's we'll will",
        pattern=r" (let's|we'll|we will) (use|ship|drop|keep|migrate) ",
    ),
    "error": _build_cue(
        0.15,
        "fail fails failed failing failure failures error errors exception exceptions bug bugs crash crashes crashed "
        "crashing timeout timeouts traceback outage denied refused broke broken corrupt corrupted panic fatal segfault",
        "timed out, rolled back, unable to, not found, out of memory",
    ),
    # Lasting facts about a person or a project.
    "lasting": _build_cue(
        0.1,
        "prefer prefers favorite favourite allergic allergy hate hates love loves deadline password birthday "
        "anniversary born",
        "call me",
        when="my i i'm",
        pattern=r" my \S+ (\S+ )?is | (i'm|i am) an? | i (live|work|study) (in|at|for|as) ",
    ),
}
_QUESTION_WEIGHT = -0.1
_NUMBER_WEIGHT = 0.05
_NAME_WEIGHT = 0.05

_DIGIT = re.compile(r"\d")
# A capitalized word inside a sentence.
_CAPITALIZED_WORD = re.compile(r" (?<=[\w,;:] )[A-Z][a-z]")
_EMAIL_ADDRESS = re.compile(r"\w@\w+\.\w")
_IDENTIFIER = re.compile(r"\w[/_]\w")

# "No errors" is no error.
_NEGATED_ERROR = re.compile(
    r" (no|0|zero|without|without an?) (errors?|failures?|exceptions?|bugs?|crash\S*|timeouts?)(?= )"
)
_NEGATIONS = frozenset(("no", "0", "zero", "without"))
_ERROR_SUFFIXES = ("error", "errors", "exception", "exceptions")

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
    line, words = f" {' '.join(all_words)} ", set(all_words)
    if words <= _SMALL_TALK_WORDS:
        return _SMALL_TALK_SCORE
    if not words.isdisjoint(_NEGATIONS):
        line = _NEGATED_ERROR.sub(" ", line)
        words = set(line.split())
    found = {name for name, cue in _CUES.items() if cue.matches(words, line)}
    if ("error" in line or "exception" in line) and any(word.endswith(_ERROR_SUFFIXES) for word in words):
        found.add("error")  # ValueError, connectionrefusederror
    if lowered.lstrip().startswith("no, "):
        found.add("correction")
    score = _PLAIN_SCORE + sum(_CUES[name].weight for name in sorted(found))
    if _DIGIT.search(text):
        score += _NUMBER_WEIGHT
    if _CAPITALIZED_WORD.search(text) or _has_address(text):
        score += _NAME_WEIGHT
    return score + _QUESTION_WEIGHT if text.rstrip().endswith("?") else score


def _has_address(text: str) -> bool:
    """Return True if the text contains an email address, a path or an identifier."""
    if "@" in text and _EMAIL_ADDRESS.search(text):
        return True
    return ("/" in text or "_" in text) and bool(_IDENTIFIER.search(text))
