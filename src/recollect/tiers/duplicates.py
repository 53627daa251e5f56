"""Which texts say the same: a text as the words that carry its meaning; what is not known to be idle counts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from recollect.tiers.synonyms import NUMBERS, SAME, TOGETHER
from recollect.words import MONTHS

# No cosine tells `room 12` from `room 13` or `open` from `closed`: both lie above many a true duplicate. So the words
# decide, all of them and in their order, and the model may only object, to a word that is used in another sense. Of
# the labelled pairs whose gist is the same, the farthest lay at 0.81 (tests/unit/tiers/test_duplicates.py).
ALIKE = 0.80

# Where a letter, its case or a mark may be all that matters, nothing is overlooked but white space.
_TO_THE_LETTER = re.compile(
    r"[`{}\\|]|\b(?:pass(?:word|phrase|code|wd)s?|pins?|tokens?|secrets?|codes?|keys?|log ?in|user ?names?|hash(?:es)?|"
    r"spell(?:s|ed|ing|t)?|regex)\b",
    re.IGNORECASE,
)

_INTRODUCTION = re.compile(
    r"""(?:
        (?:please\s+|and\s+|just\s+)*
        (?:remember|note|keep\s+in\s+mind|bear\s+in\s+mind|(?:do\s+not|don't)\s+forget) (?:\s+that\b|:)
      | (?:reminder|note):
      | (?:fyi|btw)\b[,:]?
      | (?:by\s+the\s+way|for\s+the\s+record|just\s+so\s+you\s+know|so\s+you\s+know),
      | (?:oh|ok|okay|well|hey|hi|hello|so|actually),(?:\s+and\b)?
    )\s*""",
    re.IGNORECASE | re.VERBOSE,
)

_OPENING = "([¿¡"
_CLOSING = ")],;:.!?…"
_DASHES = frozenset("-–—")
_ENDS = frozenset(".!?…")
_PAUSES = frozenset(",;:")
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_HYPHENATED = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")
_AMOUNT = re.compile(r"([$€£¥]?)(\d+(?:[.:]\d+)?|\d{1,3}(?:,\d{3})+(?:\.\d+)?)(am|pm|km|cm|kg|%|€)?", re.IGNORECASE)
_QUOTES = str.maketrans("’‘“”„«»", '\'\'"""""')
_RANGE = re.compile(r"(?<=\d)[–—](?=\d)")

# A full stop after these ends no sentence.
_TITLES = frozenset("dr mr mrs ms prof st vs etc approx".split())
_WRITTEN = {"p.m": "pm", "a.m": "am", "e.g": "eg", "i.e": "ie", "u.s": "US", "u.k": "UK", "&": "and"}

# Words that are another word with a capital: `Polish`, `May`, `Turkey`. All capitals are kept whatever the word.
_CASED = frozenset(
    """
    aids april august bath bill china chase crystal drew faith frank grace grant hope hunter jack japan job joy lance
    march mark may mobile nice norm pat polish pole poles reading reed rich rob rose ruby sandy sue summer turkey will
    wood apple amazon target oracle shell gap visa java rust swift go python sun mercury earth mars
    """.split()
)
# Prefixes and symbols of units whose case makes a factor of thousands or millions.
_CASED_UNITS = frozenset("b kb mb gb tb kbps mbps gbps mw kw gw mv kv mg m k g s mpa mhz ma ms mm pm am".split())
_HOURS = frozenset(("am", "pm"))

_CONTRACTED = {
    "won't": "will not", "can't": "can not", "cannot": "can not", "shan't": "shall not", "let's": "let us",
    "dont": "do not", "doesnt": "does not", "didnt": "did not", "isnt": "is not", "arent": "are not",
    "wasnt": "was not", "werent": "were not", "cant": "can not", "wont": "will not", "couldnt": "could not",
    "wouldnt": "would not", "shouldnt": "should not", "hasnt": "has not", "havent": "have not", "hadnt": "had not",
    "im": "i am", "ive": "i have", "it's": "it is", "he's": "he is", "she's": "she is", "that's": "that is",
    "there's": "there is", "what's": "what is", "who's": "who is", "where's": "where is", "here's": "here is",
}  # fmt: skip
_ENDINGS = {"n't": "not", "'re": "are", "'ve": "have", "'ll": "will", "'m": "am", "'s": "'s"}

_REWRITTEN = frozenset((*_CONTRACTED, *NUMBERS, "an"))

_IDLE = frozenset("also actually".split())
# Idle where a sentence begins, and `please` where it ends; elsewhere somebody may be in prison, or in the prison.
_IDLE_FIRST = frozenset("the please kindly".split())
# `Few came` and `the few came` are two things.
_NOT_WITHOUT_THE = frozenset("few little most more only".split())
# A comma makes a list of `cooking, dogs and kids`, and a greeting of `call me, Ada`. Before these it makes nothing.
_NO_COMMA_BEFORE = frozenset(("and", "or", "but", "not", "please", "also", "too", "|", "?", ",", ""))
# Capitals that are kept in a text that has no other letters.
_ACRONYMS = frozenset("us it who aids".split())
# `Two-year-old dogs` are not `two year-old dogs`, nor is a `man-eating` fish a man eating fish.
_JOINED = re.compile(r"(?:^|-)(?:old|half|\w+ing|" + "|".join(NUMBERS) + r")(?:-|$)", re.IGNORECASE)

_SAYING = frozenset(
    "said says say knows know knew thinks think thought believes believe mentioned confirmed noted hopes hope agreed "
    "decided explained reported".split()
)
_LIGHT = frozenset("currently presently already".split())
# `Not definitely` is less than `not`.
_EMPHATIC = frozenset("definitely certainly absolutely".split())
_PERSONAL = frozenset("i me my mine myself we us our ours you your yours yourself".split())
_OF_THE_DAY = frozenset(
    "today tomorrow yesterday tonight now soon recently lately later earlier ago next last this these just morning "
    "afternoon evening night noon midnight am pm week weekend month year hours days weeks months years "
    "monday tuesday wednesday thursday friday saturday sunday".split()
)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?:am|pm)?|\d{1,2}(?:am|pm)")
_OF_THE_MONTH = frozenset((*MONTHS, "spring", "summer", "autumn", "winter"))
_NEGATIONS = frozenset("not no never none nobody nothing neither nor without hardly barely".split())


@dataclass(frozen=True, slots=True)
class Wording:
    """A text as the words that matter: two texts with the same `words` say the same.

    `gist` goes further, over spellings, synonyms and light words. Where only that is the same, ask the embedder too.
    """

    words: tuple[str, ...]
    gist: tuple[str, ...]

    @property
    def is_personal(self) -> bool:
        """Whether it depends on who says it: `I` is somebody else for everybody."""
        return not _PERSONAL.isdisjoint(map(_bare, self.words))

    @property
    def holds_for(self) -> Literal["day", "month", "always"]:
        """For how long the same words mean the same: `tomorrow`, `on Monday` and `at 3 pm` are new every day."""
        bare = [_bare(word) for word in self.gist]
        if any(word in _OF_THE_DAY or _CLOCK.fullmatch(word) for word in bare):
            return "day"
        return "always" if _OF_THE_MONTH.isdisjoint(bare) else "month"


def wording(text: str) -> Wording:
    """What a text says, less what makes no difference: case, full stops, a first `the`, courtesies, introductions.

    Order, negations, numbers, names, tenses, prepositions and every symbol stay: what is not on a list here counts.
    Stems would not do, since `Ada lived in Oslo` and `Ada lives in Oslo` have the same.
    """
    text = unicodedata.normalize("NFC", text).translate(_QUOTES)
    as_written = tuple(text.split())
    if _TO_THE_LETTER.search(text):
        return Wording(as_written, as_written)
    words = tuple(_without_idle(list(_tokens(_told(text)))))
    gist = tuple(_gist(words))
    if not any(word != "|" for word in gist):
        return Wording(as_written, as_written)  # or `Please!` and `...` would be the same
    return Wording(words, gist)


def _told(text: str) -> str:
    """The text without quotes around the whole, its `Remember that`, `By the way,` and the like."""
    text = _RANGE.sub("-", text).strip()
    if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'" and text.count(text[0]) == 2:
        text = text[1:-1]
    start = 0
    while (found := _INTRODUCTION.match(text, start)) and found.end() < len(text):
        start = found.end()
    return text[start:].replace("—", " — ").replace("\n", " | ")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a word stands: capitals mean little at the start of a sentence, and much after a number."""

    shouted: bool
    at_start: bool
    before: str

    @property
    def after_number(self) -> bool:
        return self.before[-1:].isdigit()


def _tokens(text: str) -> Iterator[str]:
    chunks = text.split()
    shouted = text.isupper()
    place = _Place(shouted, at_start=True, before="")
    for number, chunk in enumerate(chunks, 1):
        if chunk.isalpha() and chunk.islower() and chunk not in _REWRITTEN:  # most of any text, so it goes first
            yield chunk
            place = _Place(shouted, at_start=False, before=chunk)
            continue
        core = chunk.lstrip(_OPENING).rstrip(_CLOSING)
        tail = chunk[len(chunk.rstrip(_CLOSING)) :]
        found = list(_parts(core, place))
        yield from found
        if "?" in tail:
            yield "?"
        ended = core == "|" or (not _ENDS.isdisjoint(tail) and core.lower() not in _TITLES | _WRITTEN.keys())
        if not _ENDS.isdisjoint(tail) and ended and number < len(chunks):
            yield "|"
        elif not _PAUSES.isdisjoint(tail):
            yield ","
        place = _Place(shouted, at_start=ended, before=found[-1] if found else place.before)


def _parts(core: str, place: _Place) -> Iterator[str]:
    """The tokens of what stands between two blanks, without the punctuation around it."""
    if core.isalpha():
        yield from _word(core, place)
    elif core in _DASHES:
        yield "-" if place.after_number else ","
    elif core.lower() in _WRITTEN:
        yield _WRITTEN[core.lower()]
    elif amount := _AMOUNT.fullmatch(core):
        yield from _amount(*amount.groups())
    elif _WORD.fullmatch(core):
        yield from _word(core, place)
    elif _HYPHENATED.fullmatch(core) and not _JOINED.search(core):
        for part in core.split("-"):
            yield from _word(part, place)
    elif core:
        yield core  # an address, a path, a name such as C++: every character may matter


def _amount(sign: str, number: str, unit: str | None) -> Iterator[str]:
    if sign:
        yield sign
    yield number.replace(",", "")
    if unit:
        yield unit.lower()


def _word(word: str, place: _Place) -> Iterator[str]:
    lowered = word.lower()
    if lowered in _CONTRACTED:
        yield from _CONTRACTED[lowered].split()
        return
    if "'" in word:
        for ending, meant in _ENDINGS.items():
            if lowered.endswith(ending) and len(word) > len(ending):
                yield _cased(word[: -len(ending)], place)
                yield meant
                return
    yield NUMBERS.get(lowered) or ("a" if lowered == "an" else _cased(word, place))


def _cased(word: str, place: _Place) -> str:
    """The word in lower case, unless its capitals may be what tells it from another."""
    lowered = word.lower()
    if place.after_number and lowered in _CASED_UNITS:
        return lowered if lowered in _HOURS else word
    if word in ("I", lowered) or (place.shouted and lowered not in _ACRONYMS):
        return lowered
    if len(word) == 1:
        return lowered if place.at_start else word
    if word[1:] != lowered[1:]:
        return word
    return word if lowered in _CASED and not place.at_start else lowered


def _without_idle(tokens: list[str]) -> Iterator[str]:
    kept = "|"
    for before, token, after in zip(("", *tokens), tokens, (*tokens[1:], ""), strict=False):
        at_start = kept == "|"
        if token in _IDLE or (token == "please" and before == ","):
            continue
        if at_start and token in _IDLE_FIRST and after not in _NOT_WITHOUT_THE:
            continue
        if (token == "," and (at_start or after in _NO_COMMA_BEFORE)) or (token == "|" and (at_start or not after)):
            continue
        yield token
        kept = token


def _gist(words: tuple[str, ...]) -> Iterator[str]:
    denied = not _NEGATIONS.isdisjoint(words)
    joined = False
    for before, word, after in zip(("", *words), words, (*words[1:], ""), strict=False):
        if joined:
            joined = False
        elif (word, after) in TOGETHER:
            joined = True
            yield TOGETHER[word, after]
        elif not _is_light(before, word, after, denied):
            yield SAME.get(word, word)


def _bare(word: str) -> str:
    """A word without its marks, for texts that are kept to the letter."""
    return word.lower().strip(_CLOSING + _OPENING + "\"'").partition("'")[0]


def _is_light(before: str, word: str, after: str, denied: bool) -> bool:
    match word:
        case "that":
            return before in _SAYING and after not in ("", "|", ",", "?")
        case "too":
            return after in ("", "|")
        case "personally":
            return before == "i"
        case _:
            return word in _LIGHT or (word in _EMPHATIC and not denied)
