"""What somebody states in a message: its sentences, word for word, without what is quoted, pasted or only asked."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recollect.lifecycle.recited import is_recited
from recollect.words import analyse

# A longer message is a pasted document: its first sentences may be the sender's own, the rest is material.
LONGEST_MESSAGE = 4000
_OWN_WORDS = 600
# A longer sentence is a log, a table or a list.
_LONGEST_SENTENCE = 400

_END = re.compile(r"(?<=[.!?…])([\"'”’)\]]*)\s+|\s*[\r\n]+\s*")
# A full stop after these ends no sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Za-z]|dr|mr|mrs|ms|st|prof|e\.g|i\.e|vs|approx|no|ca|etc|inc|ltd)\.$", re.I
)
_BULLET = re.compile(r"^(?:[-*•]|\d{1,2}[.)])\s+")

_FENCED = re.compile(r"```.*?(?:```|\Z)", re.S)
_QUOTED_LINE = re.compile(r"^[ \t]*>.*$", re.M)
_IN_QUOTES = re.compile(r"\"[^\"]*(?:\"|$)|“[^”]*(?:”|$)|«[^»]*»|`[^`]*`|(?<!\w)'[^']*'(?!\w)|(?<!\w)‘[^’]*’(?!\w)")

# "Translate this: I love sushi" states nothing about anybody: what follows is to be worked on.
_MATERIAL = re.compile(
    r"\b(?:translate|summari[sz]e|rewrite|reword|rephrase|paraphrase|proofread|edit|draft|write|compose|classify|label"
    r"|reply|respond|answer|analy[sz]e|explain|complete|continue|say|spell|type|print|repeat|review|check)\b"
    r"[^.?!\n:]{0,80}:(?!\d)",
    re.I,
)

_QUESTION = re.compile(
    r"^(?:what|where|when|why|who|whom|whose|which|how|do|does|did|is|are|am|was|were|can|could|will|would|should|shall"
    r"|may|might|have|has|had)\b(?!.*\b(?:is|are) (?:what|why|how)\b)",
    re.I,
)

# Said with reservation, in play or of another world: none of it is known to be so.
_SUPPOSED = re.compile(
    r"\b(?:if|unless|suppose|supposing|imagine|pretend|hypothetically|what if|in case|would have|could have"
    r"|might|maybe|perhaps|probably|possibly|i think|i guess|i suppose|i wish|i wonder|i'm not sure|not sure"
    r"|i am not sure|let's say|let us say|assume|assuming|role ?play|in the story|in this story|the character"
    r"|for example|for instance|e\.g\.|just kidding|kidding|joking|lol|as if|used to|hopefully|not sure)\b",
    re.I,
)

# What others say, think or want is theirs.
_REPORTED = re.compile(
    r"\b(?:he|she|they|you|who|people|everyone|everybody|someone|somebody|it|article|page|website|book|doc|docs"
    r"|[a-z]+(?:'s)? (?:friend|boss|colleague|doctor|wife|husband|partner|mother|father|mom|mum|dad|brother|sister|son"
    r"|daughter|teacher|manager|client|customer)|(?-i:[A-Z][a-z]+))"
    r" (?:just |always |once |also |has |had )?(?:said|says|say|told|tells|tell|asked|asks|wrote|writes|claims|claimed"
    r"|thinks|thought|believes|believed|states|stated|replied|mentioned|insists|insisted|quotes|suggests|suggested)\b"
    r"|\baccording to\b|\bquote\b",
    re.I,
)

# Asked not to be kept: then nothing of the message is.
_NOT_TO_BE_KEPT = re.compile(
    r"\b(?:don't|do not|dont|never|please don't|no need to|needn't|not necessary to|shouldn't|should not|mustn't)"
    r" (?:you )?(?:have to |need to |ever )?(?:remember|memori[sz]e|save|store|keep|record|note|log|write)"
    r" (?:this|that|it|any|anything|what|my|down|me)\b"
    r"|\bforget (?:it|that|this|what|about|everything|i said|my)\b|\boff the record\b|\bbetween us\b"
    r"|\bscratch that\b|\b(?:don't|do not) (?:share|repeat) (?:this|that|it)\b"
    r"|\bno need to (?:remember|save|store|note)\b|\bjust (?:testing|a test)\b",
    re.I,
)
_DO_NOT_FORGET = re.compile(r"\b(?:don't|do not|dont|never|didn't|cannot|can't|won't) (?:ever )?forget\b", re.I)

# A secret is kept for ever only where somebody asked for that in so many words.
_SECRET = re.compile(
    r"\b(?:passwords?|passcode|passphrase|pin(?: code)?|api[ -]?keys?|secrets?|tokens?|credentials?|private key"
    r"|credit card|card number|cvv|iban|ssn|social security)\b",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence as it was said; in `plain` what stands in quotation marks is blanked out, letter by letter."""

    text: str
    plain: str
    before: Statement | None = None

    @property
    def is_question(self) -> bool:
        return self.text.rstrip("\"')]”’ ").endswith("?") or bool(_QUESTION.match(self.plain))

    @property
    def is_supposed(self) -> bool:
        return bool(_SUPPOSED.search(self.plain))

    @property
    def is_reported(self) -> bool:
        return bool(_REPORTED.search(self.plain))

    @property
    def is_secret(self) -> bool:
        return bool(_SECRET.search(self.plain))


def statements(message: str) -> list[Statement]:
    """The sentences of a message that its sender may be stating; none when it asks not to be kept."""
    if asks_to_be_forgotten(message):
        return []
    text = message if len(message) <= LONGEST_MESSAGE else message[:_OWN_WORDS].rpartition("\n")[0]
    text = _QUOTED_LINE.sub("", _FENCED.sub("\n", text))
    material = _MATERIAL.search(text)
    if material:
        text = text[: material.start()]
    found: list[Statement] = []
    for sentence in sentences(text):
        if len(sentence) <= _LONGEST_SENTENCE and not is_recited(sentence):
            found.append(Statement(sentence, _unquoted(sentence), found[-1] if found else None))
    return found


def asks_to_be_forgotten(text: str) -> bool:
    """Whether the sender wants this not to be kept."""
    return bool(_NOT_TO_BE_KEPT.search(_DO_NOT_FORGET.sub(" ", text.replace("’", "'"))))


def fingerprint(sentence: str) -> str:
    """The sentence without what does not change its meaning: case, marks and blanks."""
    return " ".join(re.findall(r"[^\W_]+(?:'[^\W_]+)?", sentence.lower().replace("’", "'")))


def says_something(text: str, least: int = 1) -> bool:
    """Whether there are words with a meaning of their own in a text, and how many at least."""
    return len(set(analyse(text))) >= least


def sentences(text: str) -> list[str]:
    """The sentences of a text, and the lines of a list."""
    pieces: list[str] = []
    start = 0
    for gap in (*_END.finditer(text), None):
        end = len(text) if gap is None else gap.start() + len(gap[1] or "")
        if gap is not None and not gap[1] and "\n" not in gap[0] and _ABBREVIATION.search(text[start:end]):
            continue
        piece = _BULLET.sub("", text[start:end].strip())
        if piece:
            pieces.append(piece)
        start = end if gap is None else gap.end()
    return pieces


def _unquoted(sentence: str) -> str:
    return _IN_QUOTES.sub(lambda match: " " * len(match[0]), sentence).replace("’", "'")
