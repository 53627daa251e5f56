"""Analysis of a query: terms, speakers and times, references to the session, and questions within it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import pairwise

from recollect.language.analysis import STOP_WORDS, analyze
from recollect.retrieval.time_expressions import TimeSpan, find_times

SPEAKER_ROLES = frozenset({"user", "assistant", "system", "tool", "human", "ai", "bot", "agent", "model"})

_ABOUT_ASSISTANT = re.compile(
    r"\b(did|had|have|were|was|could|would) you\b"
    r"|\byou (just |also |once |previously |already )?"
    r"(said|say|told|tell|suggest|recommend|mention|advis|explain|gave|give|list|propos|describ|provid|shar|wrote)"
    r"|\byour (advice|suggestion|recommendation|answer|reply|response|list|explanation|tip|opinion|idea)",
    re.IGNORECASE,
)
_ABOUT_USER = re.compile(r"\b(i|i'm|i've|i'd|i'll|my|me|mine|myself)\b", re.IGNORECASE)

# A speaker with one of these words in the name is not a person, and has no first name.
_NON_PERSON_TERMS = frozenset(
    "the a an team support customer customers service services bot desk group department office system narrator "
    "voice guest host moderator interviewer speaker agent staff help sales data user users client".split()
)

# First names that are also English words: in lower case they count as the word.
_AMBIGUOUS_NAMES = frozenset(
    "mark rose will may grace hope art bill jack pat sue frank faith joy dawn iris lily ruby olive ivy amber crystal "
    "summer autumn april june august rich rob nick drew chase chip guy gene dean earl king major robin jay ray lance "
    "miles chance hunter mason page penny sky star violet daisy melody charity mercy victor pierce wade clay cliff "
    "dale glen heath reed forest brook stone west max sage angel ace christian jean don tony sandy rusty buck".split()
)

_MAX_TERMS = 64


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The terms, vector text, speakers and times of a query."""

    text_to_embed: str
    terms: tuple[str, ...]
    named_speakers: frozenset[str]
    role: str | None
    times: tuple[TimeSpan, ...] = ()
    is_about_owner: bool = False
    """True if the query names the owner; then facts without a speaker match, too."""
    term_pairs: frozenset[tuple[str, str]] = frozenset()
    """Terms that are adjacent in the query."""


def plan_query(query: str, speakers: Iterable[str], now: datetime, owner: str = "") -> QueryPlan:
    """Plan a query for a space with these speakers.

    Names of speakers are removed from the terms and from the embedded text, because they would match every turn that
    addresses the speaker. They become `named_speakers`. In a chat of user and assistant, the `owner` is the user. That
    name is not embedded either, but stays among the terms, because facts may contain it.
    """
    # Relative times depend on the day only, so plans are cached for a day.
    today, known = now.replace(hour=0, minute=0, second=0, microsecond=0), frozenset(speakers)
    return _build_plan(query, known, today, owner if known else "")


def clear_plan_cache() -> None:
    _build_plan.cache_clear()
    _parse_terms.cache_clear()


@lru_cache(maxsize=256)
def _parse_terms(query: str, today: datetime) -> tuple[list[str], tuple[TimeSpan, ...]]:
    return analyze(query)[:_MAX_TERMS], find_times(query, today)


@lru_cache(maxsize=256)
def _build_plan(query: str, speakers: frozenset[str], today: datetime, owner: str) -> QueryPlan:
    known = sorted(speakers)
    roles = {speaker.lower() for speaker in known} & SPEAKER_ROLES
    words = set(re.findall(r"\w+", query))
    names_by_speaker = {
        speaker: names
        for speaker in known
        if speaker.lower() not in SPEAKER_ROLES
        and (names := [name for name in _list_names(speaker) if _is_named(name, words)])
    }
    without_speakers = _remove_names(query, [name for names in names_by_speaker.values() for name in names])
    owner_names = [name for name in _list_names(owner[:1].upper() + owner[1:]) if _is_named(name, words)]
    is_about_owner = bool(owner_names) and "user" in roles and owner.lower() not in {"default", *SPEAKER_ROLES}
    ordered, times = _parse_terms(query, today)
    if without_speakers != query:
        ordered = analyze(without_speakers)[:_MAX_TERMS]
    return QueryPlan(
        text_to_embed=_remove_names(without_speakers, owner_names) if is_about_owner else without_speakers,
        terms=tuple(dict.fromkeys(ordered)),
        named_speakers=frozenset(names_by_speaker),
        role=_find_role(query, roles) or ("user" if is_about_owner else None),
        is_about_owner=is_about_owner,
        times=times,
        term_pairs=frozenset(pairwise(ordered)),
    )


def _list_names(speaker: str) -> list[str]:
    """Return the full name, and the first name of a person."""
    parts = speaker.split()
    is_name = len(parts) > 1 and all(part[:1].isupper() for part in parts) and len(parts[0]) > 2
    is_a_person = is_name and _NON_PERSON_TERMS.isdisjoint(speaker.lower().split())
    return [speaker, parts[0]] if is_a_person else [speaker]


def _is_named(name: str, words: set[str]) -> bool:
    """Return True if the query has the name in its case: `Mark`, not `mark the trail`.

    In a query without capitals any case counts, unless the name is also a word.
    """
    first, *rest = re.findall(r"\w+", name) or [""]
    if first in words and all(part in words for part in rest):
        return True
    if rest or any(word[:1].isupper() for word in words - {"I"}):
        return False
    return first.lower() in words - _AMBIGUOUS_NAMES - STOP_WORDS


def _remove_names(query: str, names: list[str]) -> str:
    if not names:
        return query
    text = query
    for name in sorted(names, key=len, reverse=True):
        text = " ".join(re.sub(rf"(?<!\w){re.escape(name)}(['’]s)?(?!\w)", " ", text, flags=re.IGNORECASE).split())
    return text if analyze(text) else query  # a query that is only a name is about the name


def is_about_assistant(query: str) -> bool:
    """Return True if the query asks what the assistant said."""
    return bool(_ABOUT_ASSISTANT.search(query))


def _find_role(query: str, roles: set[str]) -> str | None:
    if "user" not in roles:
        return None
    if _ABOUT_ASSISTANT.search(query):
        return "assistant"
    return "user" if _ABOUT_USER.search(query) else None


# The relevance of the newest entry to a query that refers to the session. It is below what terms and vectors can reach,
# because the newest entry may not be the one that is meant.
STRONG_REFERENCE, WEAK_REFERENCE = 0.75, 0.7


def _compile_any(*phrases: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w'])(?:{'|'.join(phrases)})(?![\w'])", re.IGNORECASE)


_PERSON = "(?:we|i|you)"
_TALK = "(?:session|chat|conversation|discussion|thread|talk)"
_ADVERBS = r"(?: (?:all|both|already|ever|just|last|actually|finally|then|really|even|originally|not|n't))*"

# Verbs of a conversation. General verbs such as "find", "learn" and "use" are not among them.
_SESSION_VERBS = (
    "(?:say|said|saying|tell|told|ask|asked|asking|decide|decided|deciding|agree|agreed|discuss|discussed|discussing"
    "|talk|talked|talking|mention|mentioned|suggest|suggested|suggesting|recommend|recommended|conclude|concluded"
    "|settle|settled|promise|promised|propose|proposed|plan|planned|planning|leave off|left off|stop|stopped"
    "|try|tried|trying|do|did|done|doing|work on|worked on|working|finish|finished|cover|covered|pick|picked"
    "|fix|fixed|fixing|change|changed|changing|choose|chose|chosen|end up|ended up)"
)

# Phrases that refer to the session in any query.
_SESSION_PATTERN = _compile_any(
    rf"(?:did|didn't|have|had|were|are|was) {_PERSON}{_ADVERBS}(?: been)? {_SESSION_VERBS}",
    rf"{_PERSON}(?:'ve|'d)?{_ADVERBS} (?:have |had )?(?:said|told|asked|decided|agreed|discussed|mentioned)",
    rf"{_PERSON}(?:'ve|'d)?{_ADVERBS} (?:have |had )?talked about",
    rf"{_PERSON}(?:'ve|'d)?{_ADVERBS} (?:suggested|recommended|settled|promised|proposed|planned|concluded|tried|did)",
    rf"(?:we|i)(?:'ve|'d)?{_ADVERBS} (?:stopped|ended up|left off|were doing|was doing|were saying|was saying)",
    "you(?:'ve|'d)? (?:just )?(?:found|wrote|showed|explained)|you just",
    r"where (?:were|are) (?:we|things)(?! \w+ing\b)|where was i|where (?:did|do) (?:we|i) (?:stand|leave|stop|end)",
    rf"(?:we|i|you|our|my)\b.* so far|so far {_PERSON}",
    "just now|a (?:moment|minute|second) ago|earlier (?:today|you|i|we|in this)",
    rf"last time (?:{_PERSON}|around)|(?:this|our(?: last| previous| earlier)?|(?:the )?previous) {_TALK}",
    "remind me (?:what|which|where|who|how|why|when|of|about)|catch me up|(?:bring|get) me up to (?:speed|date)",
    rf"the last (?:\w+ )?{_PERSON}",
)
# Requests to continue, at the start of a message.
_CONTINUATION = re.compile(
    r"\W*(?:(?:ok|okay|please|yes|and|so|now|then|let's|can you|could you|can we|shall we|should we)[ ,]+)*"
    r"(?:continue|carry on|go on|keep going|proceed|resume|pick up|go ahead|move on)(?![\w'])",
    re.IGNORECASE,
)
# Phrases that refer to the session if the query has no other content.
_STANDALONE_REFERENCE = _compile_any(
    "and then|then what|what then|and now|what now|now what|and|so|what else|anything else|what more|more|else",
    "what(?:'s| is| comes| was)? next|next(?: steps?)?|next one|what(?:'s| is| was) left|left|remaining",
    "what happened|what's new|any (?:news|updates?|progress)|what(?:'s| is) (?:going on|the status|up)|status",
    "recap|summary|summari[sz]e|earlier|last time|so far|before that|previously|lately|recently",
    "continue|carry on|go on|going on|keep going|proceed|resume|again|once more|retry|undo|redo",
    r"(?:the )?(?:last|latest|previous|recent|first|other) (?:one|thing|step|message|error|result|answer|question|turn"
    "|output|command|reply|attempt|try|change|decision|task|problem|issue|point|part|idea|suggestion|plan|topic)",
    "(?:was|were|been|is|got) (?:decided|agreed|discussed|settled|said|done|tried)",
)
_DEMONSTRATIVES = _compile_any(
    "(?-i:[Ii]t|its)", "that", "this", "them", "they", "their", "those", "these", "he", "him", "she", "her"
)
_POSSESSIVES = _compile_any("my", "mine", "our", "ours", "about me")
_FIRST_PERSON = _compile_any("i", "i'm", "we", "we're", "let's", "(?-i:us)")
# "It" refers to nothing in "what time is it?" and "is it raining?".
_IMPERSONAL_TERMS = frozenset(
    analyze(
        "time day date month year weekday hour o'clock rain raining snow snowing sunny windy hot cold warm weather "
        "christmas summer winter monday tuesday wednesday thursday friday saturday sunday called"
    )
)
# Terms of requests that name no topic.
_FILLER_TERMS = frozenset(
    analyze(
        "please thanks thank ok okay hey hi hello yes yeah no well now then tell say said know give let go get make "
        "made try use want need like mean thing things stuff fix explain show see run do work change call one ones "
        "else happen happened happens let's really actually maybe still yet already back way kind sort bit possible "
        "sure right good want help look check think sense matter exactly everything anything something nothing"
    )
)

# Of a longer text, the first and the last 1,000 characters are scanned.
_MAX_SCANNED_CHARACTERS = 2000


def find_session_reference(query: str) -> float | None:
    """Return how strongly a query refers to its session: by a phrase, or by naming no topic of its own."""
    if len(query) > _MAX_SCANNED_CHARACTERS:
        query = f"{query[: _MAX_SCANNED_CHARACTERS // 2]} {query[-_MAX_SCANNED_CHARACTERS // 2 :]}"
    text = query.replace("\u2019", "'").strip()
    if _SESSION_PATTERN.search(text) or _CONTINUATION.match(text):
        return STRONG_REFERENCE
    rest, phrases = _STANDALONE_REFERENCE.subn(" ", text)
    content = set(analyze(rest)) - _FILLER_TERMS
    if phrases and not content:
        return STRONG_REFERENCE
    if len(content) > 1 or content & _IMPERSONAL_TERMS:
        return None
    if _DEMONSTRATIVES.search(text) or _POSSESSIVES.search(text):
        return WEAK_REFERENCE
    return WEAK_REFERENCE if not content and _FIRST_PERSON.search(text) else None


_ACKNOWLEDGMENTS = (
    "understood|ok(?:ay)?|k|thanks?|thank you|thx|cheers|great|good|perfect|cool|nice|fine|awesome|excellent|super"
    "|wonderful|lovely|brilliant|got it|i see|makes sense|sounds good|sounds great|looks good|noted|sure|sure thing"
    "|certainly|of course|absolutely|gladly|will do|right|alright|all right|agreed|yes|yeah|yep|yup|no|nope|done"
    "|you're welcome|you are welcome|no problem|no worries|my pleasure|anytime|hi|hello|hey|bye|goodbye|see you|good"
    " (?:morning|afternoon|evening|night|day|job|work|luck)|very (?:much|good|well)|a lot|so much|then|and|for that"
    "|for your help|for the help|please|i understand|how can i help(?: you)?(?: today)?|there|again|well|oh|ah|hm+"
    "|exactly|correct|true|that's (?:fine|good|great|right|all|it)|let me know(?: if you need anything(?: else)?)?"
)
# Matches lower case; re.IGNORECASE is slower here.
_SMALL_TALK = re.compile(rf"\W*(?:(?:{_ACKNOWLEDGMENTS})(?!\w)\W*)+")
_MAX_SMALL_TALK_CHARACTERS = 120


def is_small_talk(text: str) -> bool:
    """Return True if a message only acknowledges or greets."""
    short = text.strip()
    return len(short) <= _MAX_SMALL_TALK_CHARACTERS and bool(
        _SMALL_TALK.fullmatch(short.casefold().replace("\u2019", "'"))
    )


_MAX_CLAUSES = 3
_QUESTION_WORDS = "(?:what|where|when|who|whom|whose|which|why|how)"
# After "and", only a question word starts a new question: "salt and pepper" is not split.
_CLAUSE_BOUNDARY = re.compile(
    rf"\?+[\s\"')]+(?:and |also |but )*(?=\w)|[,;]?\s+(?:and|but) (?:also )?(?={_QUESTION_WORDS}\b)", re.IGNORECASE
)
# A part with a pronoun cannot stand alone.
_BACK_REFERENCE = re.compile(r"\b(?:it|its|that|this|they|them|their|those|these|he|him|his|she|her)\b", re.IGNORECASE)
_MIN_CLAUSE_WORDS = 3
_MIN_COVERAGE = 0.5
_MAX_SPLIT_CHARACTERS = 400


def split_query(query: str) -> list[str]:
    """Return the independent questions in a query; empty if there is only one."""
    clauses = _CLAUSE_BOUNDARY.split(query.strip()) if len(query) <= _MAX_SPLIT_CHARACTERS else []
    parts = [text for clause in clauses if (text := clause.strip(" ,;?"))]
    if not 1 < len(parts) <= _MAX_CLAUSES or any(map(_BACK_REFERENCE.search, parts[1:])):
        return []
    return parts if all(len(part.split()) >= _MIN_CLAUSE_WORDS and analyze(part) for part in parts) else []


def find_uncovered(questions: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return the questions for which no text has half of the terms."""
    terms_of_texts = [frozenset(analyze(text)) for text in texts] if questions else []

    def is_covered(question: str) -> bool:
        terms = frozenset(analyze(question))
        return any(len(terms & others) >= _MIN_COVERAGE * len(terms) for others in terms_of_texts)

    return [question for question in questions if not is_covered(question)]


# In "the user table", "user" is not a person.
_COMPOUND_NOUN = (
    r"(?! (?:table|interface|id|ids|group|groups|account|accounts|model|story|stories|manual|guide|base|data)\b)"
)
_POSSESSIVE_USER = re.compile(rf"\b(?:the )?user's\b{_COMPOUND_NOUN}", re.IGNORECASE)
_USER_IN_QUESTION = re.compile(
    rf"\b(do|does|did|is|was|has|have|had|can|could|would|should|will) the user\b(?!'){_COMPOUND_NOUN}", re.IGNORECASE
)
_USER_AS_SUBJECT = re.compile(
    r"\bthe user(?= (?:is|was|has|had|does|did|lives?|likes?|loves?|prefers?|wants?|works?|needs?|owns?|eats?|drinks?"
    r"|speaks?|said|told|asked|mentioned)\b)",
    re.IGNORECASE,
)
_USER_AS_OBJECT = re.compile(r"\b(about|for|to|with|of|call) the user(?=\s*[?.!,]|\s*$)", re.IGNORECASE)


def rewrite_in_first_person(query: str) -> str:
    """Replace "the user" by "I", "me" or "my", as users write of themselves."""
    text = _POSSESSIVE_USER.sub("my", query)
    text = _USER_IN_QUESTION.sub(r"\1 I", text)
    text = _USER_AS_SUBJECT.sub("I", text)
    return _USER_AS_OBJECT.sub(r"\1 me", text)
