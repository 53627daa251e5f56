"""Whether a question leans on the session it is asked in, and which messages are too bare to be leaned on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recollect.words import analyse


@dataclass(frozen=True, slots=True)
class Leaning:
    """What the newest entry is worth to a question that leans on it, and how much less each one before it.

    Nobody knows whether the newest is what was meant: it stays below what words and meaning can give.
    """

    newest: float
    step: float


ON_THE_SESSION = Leaning(0.75, 0.02)
A_LITTLE = Leaning(0.7, 0.02)


def _any(*phrases: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w'])(?:{'|'.join(phrases)})(?![\w'])", re.IGNORECASE)


_US = "(?:we|i|you)"
_TALK = "(?:session|chat|conversation|discussion|thread|talk)"
_BETWEEN = r"(?: (?:all|both|already|ever|just|last|actually|finally|then|really|even|originally|not|n't))*"

# What people do in a session. What mankind does too ("find", "learn", "land", "use") is not among them.
_SPOKE = (
    "(?:say|said|saying|tell|told|ask|asked|asking|decide|decided|deciding|agree|agreed|discuss|discussed|discussing"
    "|talk|talked|talking|mention|mentioned|suggest|suggested|suggesting|recommend|recommended|conclude|concluded"
    "|settle|settled|promise|promised|propose|proposed|plan|planned|planning|leave off|left off|stop|stopped"
    "|try|tried|trying|do|did|done|doing|work on|worked on|working|finish|finished|cover|covered|pick|picked"
    "|fix|fixed|fixing|change|changed|changing|choose|chose|chosen|end up|ended up)"
)
_DONE_TO = "(?:do|doing|done|try|tried|change|changed|fix|fixed|work|working|cover|covered|stop|stopped)"

# Who asks like this asks about the session, whatever else is in the question.
_OF_THE_SESSION = _any(
    rf"(?:did|didn't|have|had|were|are|was) {_US}{_BETWEEN}(?: been)? {_SPOKE}",
    rf"{_US}(?:'ve|'d)?{_BETWEEN} (?:have |had )?(?:said|told|asked|decided|agreed|discussed|talked about|mentioned)",
    rf"{_US}(?:'ve|'d)?{_BETWEEN} (?:suggested|recommended|settled|promised|proposed|planned|concluded|tried|did)",
    rf"(?:we|i)(?:'ve|'d)?{_BETWEEN} (?:stopped|ended up|left off|were doing|was doing|were saying|was saying)",
    "you(?:'ve|'d)? (?:just )?(?:found|wrote|showed|explained)|you just",
    "where (?:were|are) (?:we|things)|where was i|where (?:did|do) (?:we|i) (?:stand|leave|stop|end)",
    rf"(?:we|i|you|our|my)\b.* so far|so far {_US}",
    "just now|a (?:moment|minute|second) ago|earlier (?:today|you|i|we|in this)",
    rf"last time (?:{_US}|around)|(?:this|our(?: last| previous| earlier)?|(?:the )?previous) {_TALK}",
    "remind me (?:what|which|where|who|how|why|when|of|about)|catch me up|(?:bring|get) me up to (?:speed|date)",
    rf"the last (?:\w+ )?{_US}",
)
# The same at the beginning of what is said: it tells the other to go on with something.
_GOES_ON = re.compile(
    r"\W*(?:(?:ok|okay|please|yes|and|so|now|then|let's|can you|could you|can we|shall we|should we)[ ,]+)*"
    r"(?:continue|carry on|go on|keep going|proceed|resume|pick up|go ahead|move on)(?![\w'])",
    re.IGNORECASE,
)
# These are about the session only if they are all there is to a question.
_BY_ITSELF = _any(
    "and then|then what|what then|and now|what now|now what|and|so|what else|anything else|what more|more|else",
    "what(?:'s| is| comes| was)? next|next(?: steps?)?|next one|what(?:'s| is| was) left|left|remaining",
    "what happened|what's new|any (?:news|updates?|progress)|what(?:'s| is) (?:going on|the status|up)|status",
    "recap|summary|summari[sz]e|earlier|last time|so far|before that|previously|lately|recently",
    "continue|carry on|go on|going on|keep going|proceed|resume|again|once more|retry|undo|redo",
    r"(?:the )?(?:last|latest|previous|recent|first|other) (?:one|thing|step|message|error|result|answer|question|turn"
    "|output|command|reply|attempt|try|change|decision|task|problem|issue|point|part|idea|suggestion|plan|topic)",
    "(?:was|were|been|is|got) (?:decided|agreed|discussed|settled|said|done|tried)",
)
_POINTS = _any("(?-i:[Ii]t|its)", "that", "this", "them", "they", "their", "those", "these", "he", "him", "she", "her")
_OWNS = _any("my", "mine", "our", "ours", "about me")
_SPEAKS = _any("i", "i'm", "we", "we're", "let's", "(?-i:us)")
# "It" is nothing that was named before in "what time is it?" and "is it raining?".
_IMPERSONAL = frozenset(
    analyse(
        "time day date month year weekday hour o'clock rain raining snow snowing sunny windy hot cold warm weather "
        "christmas summer winter monday tuesday wednesday thursday friday saturday sunday called"
    )
)
# Words that a request is made of, not what it is about.
_EMPTY = frozenset(
    analyse(
        "please thanks thank ok okay hey hi hello yes yeah no well now then tell say said know give let go get make "
        "made try use want need like mean thing things stuff fix explain show see run do work change call one ones "
        "else happen happened happens let's really actually maybe still yet already back way kind sort bit possible "
        "sure right good want help look check think sense matter exactly everything anything something nothing"
    )
)

# A longer text has its question at one of its ends, if anywhere.
_READ = 2000


def leans(query: str) -> Leaning | None:
    """How much a question leans on the session: by what it says of it, or by naming nothing else itself."""
    text = query if len(query) <= _READ else f"{query[: _READ // 2]} {query[-_READ // 2 :]}"
    text = text.replace("\u2019", "'").strip()
    if _OF_THE_SESSION.search(text) or _GOES_ON.match(text):
        return ON_THE_SESSION
    rest, phrases = _BY_ITSELF.subn(" ", text)
    content = _content(rest)
    if phrases and not content:
        return ON_THE_SESSION
    if not content:
        return A_LITTLE if _POINTS.search(text) or _OWNS.search(text) or _SPEAKS.search(text) else None
    if len(content) > 1 or content & _IMPERSONAL:
        return None
    return A_LITTLE if _POINTS.search(text) or _OWNS.search(text) else None


def _content(text: str) -> set[str]:
    """The words of a question that say what it is about."""
    return set(analyse(text)) - _EMPTY


_ACKNOWLEDGES = (
    "understood|ok(?:ay)?|k|thanks?|thank you|thx|cheers|great|good|perfect|cool|nice|fine|awesome|excellent|super"
    "|wonderful|lovely|brilliant|got it|i see|makes sense|sounds good|sounds great|looks good|noted|sure|sure thing"
    "|certainly|of course|absolutely|gladly|will do|right|alright|all right|agreed|yes|yeah|yep|yup|no|nope|done"
    "|you're welcome|you are welcome|no problem|no worries|my pleasure|anytime|hi|hello|hey|bye|goodbye|see you|good"
    " (?:morning|afternoon|evening|night|day|job|work|luck)|very (?:much|good|well)|a lot|so much|then|and|for that"
    "|for your help|for the help|please|i understand|how can i help(?: you)?(?: today)?|there|again|well|oh|ah|hm+"
    "|exactly|correct|true|that's (?:fine|good|great|right|all|it)|let me know(?: if you need anything(?: else)?)?"
)
# In lower case: regardless of case, each of the words would be tried on every message.
_BARE = re.compile(rf"\W*(?:(?:{_ACKNOWLEDGES})(?!\w)\W*)+")
_LONGEST_BARE = 120


def is_bare(text: str) -> bool:
    """Whether a message only says that it was heard, or greets: by itself it is worth nobody's while."""
    short = text.strip()
    return len(short) <= _LONGEST_BARE and bool(_BARE.fullmatch(short.casefold().replace("\u2019", "'")))
