"""Sentences of a message, with flags for questions, suppositions, reported speech and secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recollect.language.analysis import analyze
from recollect.language.recalled_text import has_recalled_mark


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern, ignoring case; use `(?-i:[A-Z])` to require a capital letter.

    Line breaks in the pattern are ignored, with the blanks that follow: a part of others must not end with one.
    """
    return re.compile(re.sub(r"\n\s*", "", pattern), re.I | re.S)


# A longer message is a pasted document: only its first sentences may be the sender's own.
MAX_MESSAGE_LENGTH = 4000
_MAX_OWN_TEXT = 600
# A longer sentence is a log, a table or a list.
_MAX_SENTENCE_LENGTH = 400

NON_USER_ROLES = frozenset("assistant agent ai bot model system tool function developer llm".split())

_SENTENCE_END = re.compile(r"(?<=[.!?…])([\"'”’)\]]*)\s+|\s*[\r\n]+\s*")
# A period after these does not end a sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Za-z]|dr|mr|mrs|ms|st|prof|e\.g|i\.e|vs|approx|no|ca|etc|inc|ltd)\.$", re.I
)
_BULLET = re.compile(r"^(?:[-*•]|\d{1,2}[.)])\s+")

_CODE_FENCE = re.compile(r"```.*?(?:```|\Z)", re.S)
_QUOTED_LINE = re.compile(r"^[ \t]*>.*$", re.M)
_QUOTATION = re.compile(r"\"[^\"]*(?:\"|$)|“[^”]*(?:”|$)|«[^»]*»|`[^`]*`|(?<!\w)'[^']*'(?!\w)|(?<!\w)‘[^’]*’(?!\w)")

# "Translate this: I love sushi" is no statement about the sender: the text after the colon is input for a task.
_TASK_MATERIAL = compile_pattern(r"""
    \b(?:translate|summari[sz]e|rewrite|reword|rephrase|paraphrase|proofread|edit|draft|write|compose|classify|label|
    reply|respond|answer|analy[sz]e|explain|complete|continue|say|spell|type|print|repeat|review|
    check)\b[^.?!\n:]{0,80}:(?!\d)""")

_QUESTION = compile_pattern(r"""
    ^(?:what|where|when|why|who|whom|whose|which|how|do|does|did|is|are|am|was|were|can|could|will|would|should|shall|
    may|might|have|has|had)\b(?!.*\b(?:is|are) (?:what|why|how)\b)""")

# Doubt, role play and fiction.
_SUPPOSITION = compile_pattern(r"""
    \b(?:if|unless|suppose|supposing|imagine|pretend|hypothetically|what if|in case|would have|could have|might|maybe|
    perhaps|probably|possibly|i think|i guess|i suppose|i wish|i wonder|i'm not sure|not sure|i am not sure|let's say|
    let us say|assume|assuming|role ?play|in the story|in this story|the character|for example|for instance|e\.g\.|
    just kidding|kidding|joking|lol|as if|used to|hopefully|not sure)\b""")

# Statements and opinions of other people.
_REPORTED_SPEECH = compile_pattern(r"""
    \b(?:he|she|they|you|who|people|everyone|everybody|someone|somebody|it|article|page|website|book|doc|docs|[a-z]+
    (?:'s)? (?:friend|boss|colleague|doctor|wife|husband|partner|mother|father|mom|mum|dad|brother|sister|son|daughter|
    teacher|manager|client|customer)|(?-i:[A-Z][a-z]+)) (?:just |always |once |also |has |had )?(?:said|says|say|told|
    tells|tell|asked|asks|wrote|writes|claims|claimed|thinks|thought|believes|believed|states|stated|replied|mentioned|
    insists|insisted|quotes|suggests|suggested)\b|\baccording to\b|\bquote\b""")

# Requests not to keep a message.
_OFF_THE_RECORD = compile_pattern(r"""
    \b(?:don't|do not|dont|never|please don't|no need to|needn't|not necessary to|shouldn't|should not|
    mustn't) (?:you )?(?:have to |need to |ever )?(?:remember|memori[sz]e|save|store|keep|record|note|log|
    write) (?:this|that|it|any|anything|what|my|down|me)\b|\bforget (?:it|that|this|what|about|everything|i said|my)\b|
    \boff the record\b|\bbetween us\b|\bscratch that\b|\b(?:don't|do not) (?:share|repeat) (?:this|that|it)\b|
    \bno need to (?:remember|save|store|note)\b|\bjust (?:testing|a test)\b""")
_DO_NOT_FORGET = re.compile(r"\b(?:don't|do not|dont|never|didn't|cannot|can't|won't) (?:ever )?forget\b", re.I)

# Secrets are promoted only if the sender asks for it explicitly.
_SECRET = compile_pattern(r"""
    \b(?:passwords?|passcode|passphrase|pin(?: code)?|api[ -]?keys?|secrets?|tokens?|credentials?|private key|
    credit card|card number|cvv|iban|ssn|social security)\b""")


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence; in `plain`, each quoted character is replaced by a space."""

    text: str
    plain: str
    previous: Statement | None = None

    @property
    def is_question(self) -> bool:
        return self.text.rstrip("\"')]”’ ").endswith("?") or bool(_QUESTION.match(self.plain))

    @property
    def is_supposed(self) -> bool:
        return bool(_SUPPOSITION.search(self.plain))

    @property
    def is_reported(self) -> bool:
        return bool(_REPORTED_SPEECH.search(self.plain))

    @property
    def is_secret(self) -> bool:
        return bool(_SECRET.search(self.plain))


def parse_statements(message: str) -> list[Statement]:
    """Return the sentences that the sender may be stating; none if the sender asks not to keep the message."""
    if is_off_the_record(message):
        return []
    text = message if len(message) <= MAX_MESSAGE_LENGTH else message[:_MAX_OWN_TEXT].rpartition("\n")[0]
    text = _QUOTED_LINE.sub("", _CODE_FENCE.sub("\n", text))
    material = _TASK_MATERIAL.search(text)
    if material:
        text = text[: material.start()]
    found: list[Statement] = []
    for sentence in split_sentences(text):
        if len(sentence) <= _MAX_SENTENCE_LENGTH and not has_recalled_mark(sentence):
            plain = _QUOTATION.sub(lambda match: " " * len(match[0]), sentence).replace("’", "'")
            found.append(Statement(sentence, plain, found[-1] if found else None))
    return found


def is_off_the_record(text: str) -> bool:
    """Return True if the sender asks not to keep the text."""
    return bool(_OFF_THE_RECORD.search(_DO_NOT_FORGET.sub(" ", text.replace("’", "'"))))


def normalize_sentence(sentence: str) -> str:
    """Return the sentence in lower case, without punctuation and with single spaces."""
    return " ".join(re.findall(r"[^\W_]+(?:'[^\W_]+)?", sentence.lower().replace("’", "'")))


def has_content_words(text: str, minimum: int = 1) -> bool:
    """Return True if the text has at least `minimum` different index terms."""
    return len(set(analyze(text))) >= minimum


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text; each line of a list is a sentence."""
    pieces: list[str] = []
    start = 0
    for gap in (*_SENTENCE_END.finditer(text), None):
        end = len(text) if gap is None else gap.start() + len(gap[1] or "")
        if gap is not None and not gap[1] and "\n" not in gap[0] and _ABBREVIATION.search(text[start:end]):
            continue
        piece = _BULLET.sub("", text[start:end].strip())
        if piece:
            pieces.append(piece)
        start = end if gap is None else gap.end()
    return pieces


# Phrases with which an assistant introduces what it knows about the user.
_INTRODUCTION = compile_pattern(r"""
    ^(?:(?:yes|sure|ok|okay|got it|noted|understood|right|so|well|based on memory|according to (?:my |our )?\w+|
    as far as i know|you (?:told|said)(?: me)?|(?:from|as|like) (?:what )?you(?:'ve| have)? (?:told|said)(?: me)?|
    i (?:know|remember|recall|see|have noted))\b[,.:;!—-]*(?: that)? )+""")
_SECOND_PERSON = compile_pattern(r"\byou")
_PERSON_REWRITES = (
    (_INTRODUCTION, ""),
    (compile_pattern(r"\byou(?:'re| are)\b"), "I am"),
    (compile_pattern(r"\byou(?:'ve| have)\b"), "I have"),
    (compile_pattern(r"\byour\b"), "my"),
    (compile_pattern(r"\byou\b"), "I"),
)
# Summaries label each sentence with its speaker.
_SUMMARY_LABEL = compile_pattern("^(?:(?P<user>user|human)|assistant|agent|ai): ")


_PAST_QUESTION = compile_pattern(r"""
    \b(?:did|was|were|had|used to|before|previous|previously|former|formerly|past|earlier|ever|originally|until|ago|old|
    once|history|back then|back when|at first|in \d{4}|last (?:year|month|week))\b""")


def rewrite_as_user(text: str, by_user: bool) -> str:
    """Return a sentence in the user's first person, "I live in Lisbon"; "" if it is not about the user."""
    label = _SUMMARY_LABEL.match(text)
    if label is not None:
        text, by_user = text[label.end() :], label["user"] is not None
    if by_user:
        return text
    if _SECOND_PERSON.search(text) is None:
        return ""
    for pattern, replacement in _PERSON_REWRITES:
        text = pattern.sub(replacement, text)
    return text


def is_about_past(query: str) -> bool:
    """Return True if the query asks how something was before: then ended statements are the answer."""
    return bool(_PAST_QUESTION.search(query))
