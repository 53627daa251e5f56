"""Near-duplicate detection: texts are compared by their content words, ignoring a fixed list of filler words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from recollect.language.analysis import MONTHS

# Pairs of exact synonyms and spelling variants, each with the endings that both words take; `-` is no ending.
# Near-synonyms (like and love) and words that differ in some variety of English (licence and license) are left out.
_SYNONYM_PAIRS = """
    colour/color - s ed, favour/favor - s ite ites, behaviour/behavior - s, flavour/flavor - s, honour/honor,
    humour/humor, labour/labor, neighbour/neighbor - s hood, harbour/harbor, rumour/rumor - s, organis/organiz e es ed
    ing ation ations, realis/realiz e es ed ing, recognis/recogniz e es ed ing, apologis/apologiz e es ed ing,
    prioritis/prioritiz e es ed ing, optimis/optimiz e es ed ing ation, summaris/summariz e es ed ing, analys/analyz e
    es ed ing, customis/customiz e es ed ing, minimise/minimize - s d, maximise/maximize - s, specialise/specialize - s
    d, normalise/normalize - d, finalise/finalize - s d, authorise/authorize - d, memorise/memorize - d,
    visualise/visualize - d, centre/center - s, theatre/theater - s, fibre/fiber, travell/travel ed ing er ers,
    cancell/cancel ed ing, labell/label ed ing, modell/model ed ing, grey/gray, catalogue/catalog - s,
    judgement/judgment, jewellery/jewelry, aluminium/aluminum, pyjamas/pajamas, ageing/aging, tyre/tire - s,
    enrol/enroll, fulfil/fulfill, sceptical/skeptical, practis/practic e es ed ing, defence/defense, learnt/learned,
    spelt/spelled, burnt/burned,
    kilometre/km, kilometres/km, kilometer/km, kilometers/km, metre/m, metres/m, meter/m, meters/m, centimetre/cm,
    centimetres/cm, centimeter/cm, centimeters/cm, millimetre/mm, millimetres/mm, millimeter/mm, millimeters/mm,
    kilogram/kg, kilograms/kg, kgs/kg, gram/g, grams/g, litre/l, litres/l, liter/l, liters/l, percent/%, mins/minutes,
    hrs/hours, secs/seconds, jan/january, feb/february, aug/august, sept/september, oct/october, nov/november,
    dec/december, tues/tuesday, thurs/thursday, fri/friday,
    purchase/buy - s, purchased/bought, purchasing/buying, begin/start - s, began/started, beginning/starting,
    require/need - s, assist/help - s ed ing, repair/fix - ed ing, repairs/fixes, resid/liv e es ed ing, apartment/flat
    - s, physician/doctor - s, attorney/lawyer - s, film/movie - s, automobile/car - s, photograph/photo - s,
    telephone/phone - s, vacation/holiday - s, refrigerator/fridge - s, aeroplane/airplane - s
"""


def _expand_pairs(text: str) -> Iterator[tuple[str, str]]:
    for entry in text.split(","):
        pair, *endings = entry.split()
        word, canonical = pair.split("/")
        for ending in endings or ["-"]:
            yield word + ending.strip("-"), canonical + ending.strip("-")


SYNONYMS: Mapping[str, str] = dict(_expand_pairs(_SYNONYM_PAIRS))

COMPOUNDS: Mapping[tuple[str, str], str] = {
    ("e", "mail"): "email", ("e", "mails"): "emails", ("web", "site"): "website", ("web", "sites"): "websites",
    ("per", "cent"): "%", ("wi", "fi"): "wifi",
}  # fmt: skip
"""Words that are written as one or as two."""

NUMBER_WORDS: Mapping[str, str] = {
    word: str(number)
    for number, word in enumerate("two three four five six seven eight nine ten eleven twelve".split(), 2)
} | {
    "first": "1st", "second": "2nd", "third": "3rd", "fourth": "4th", "fifth": "5th",
    "sixth": "6th", "seventh": "7th", "eighth": "8th", "ninth": "9th", "tenth": "10th",
}  # fmt: skip
"""Number words and digits. `One` is left out, because `no one` is not `no. 1`."""


# A cosine does not separate `room 12` from `room 13`, so texts with different words are never duplicates. The cosine
# only rejects pairs whose words have other senses. Labeled duplicates have at least 0.81
# (tests/unit/tiers/test_near_duplicates.py).
MIN_DUPLICATE_COSINE = 0.80

# In a text with one of these, each character may matter; only white space is normalized.
_VERBATIM = re.compile(
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

_OPENING_MARKS = "([¿¡"
_CLOSING_MARKS = ")],;:.!?…"
_DASHES = frozenset("-–—")
_SENTENCE_ENDS = frozenset(".!?…")
_PAUSES = frozenset(",;:")
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_HYPHENATED = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")
_AMOUNT = re.compile(r"([$€£¥]?)(\d+(?:[.:]\d+)?|\d{1,3}(?:,\d{3})+(?:\.\d+)?)(am|pm|km|cm|kg|%|€)?", re.IGNORECASE)
_QUOTES = str.maketrans("’‘“”„«»", '\'\'"""""')
_RANGE = re.compile(r"(?<=\d)[–—](?=\d)")

# A period after these does not end a sentence.
_TITLES = frozenset("dr mr mrs ms prof st vs etc approx".split())
_ABBREVIATIONS = {"p.m": "pm", "a.m": "am", "e.g": "eg", "i.e": "ie", "u.s": "US", "u.k": "UK", "&": "and"}

# Words with another meaning when capitalized: `Polish`, `May`, `Turkey`.
_CASED_WORDS = frozenset(
    """
    aids april august bath bill china chase crystal drew faith frank grace grant hope hunter jack japan job joy lance
    march mark may mobile nice norm pat polish pole poles reading reed rich rob rose ruby sandy sue summer turkey will
    wood apple amazon target oracle shell gap visa java rust swift go python sun mercury earth mars
    """.split()
)
# Units whose case distinguishes factors of thousands or millions.
_CASED_UNITS = frozenset("b kb mb gb tb kbps mbps gbps mw kw gw mv kv mg m k g s mpa mhz ma ms mm pm am".split())
_HOUR_UNITS = frozenset(("am", "pm"))

_CONTRACTIONS = {
    "won't": "will not", "can't": "can not", "cannot": "can not", "shan't": "shall not", "let's": "let us",
    "dont": "do not", "doesnt": "does not", "didnt": "did not", "isnt": "is not", "arent": "are not",
    "wasnt": "was not", "werent": "were not", "cant": "can not", "wont": "will not", "couldnt": "could not",
    "wouldnt": "would not", "shouldnt": "should not", "hasnt": "has not", "havent": "have not", "hadnt": "had not",
    "im": "i am", "ive": "i have", "it's": "it is", "he's": "he is", "she's": "she is", "that's": "that is",
    "there's": "there is", "what's": "what is", "who's": "who is", "where's": "where is", "here's": "here is",
}  # fmt: skip
_CONTRACTION_ENDINGS = {"n't": "not", "'re": "are", "'ve": "have", "'ll": "will", "'m": "am", "'s": "'s"}

_REWRITTEN_WORDS = frozenset((*_CONTRACTIONS, *NUMBER_WORDS, "an"))

_FILLER_WORDS = frozenset("also actually".split())
# Filler at the start of a sentence only.
_FILLER_AT_START = frozenset("the please kindly".split())
# `Few came` and `the few came` differ.
_NOT_WITHOUT_THE = frozenset("few little most more only".split())
# A comma before these does not change the meaning, unlike in `cooking, dogs` or `call me, Ada`.
_NO_COMMA_BEFORE = frozenset(("and", "or", "but", "not", "please", "also", "too", "|", "?", ",", ""))
# Acronyms stay in upper case in a text that is all upper case.
_ACRONYMS = frozenset("us it who aids".split())
# Hyphens that change the meaning: `two-year-old dogs`, a `man-eating` fish.
_KEPT_HYPHENATED = re.compile(r"(?:^|-)(?:old|half|\w+ing|" + "|".join(NUMBER_WORDS) + r")(?:-|$)", re.IGNORECASE)

_SPEECH_VERBS = frozenset(
    "said says say knows know knew thinks think thought believes believe mentioned confirmed noted hopes hope agreed "
    "decided explained reported".split()
)
_FILLER_ADVERBS = frozenset("currently presently already".split())
# Filler unless negated: `not definitely` is weaker than `not`.
_EMPHATIC_ADVERBS = frozenset("definitely certainly absolutely".split())
_PERSONAL_PRONOUNS = frozenset("i me my mine myself we us our ours you your yours yourself".split())
_DAY_WORDS = frozenset(
    "today tomorrow yesterday tonight now soon recently lately later earlier ago next last this these just morning "
    "afternoon evening night noon midnight am pm week weekend month year hours days weeks months years "
    "monday tuesday wednesday thursday friday saturday sunday".split()
)
_CLOCK_TIME = re.compile(r"\d{1,2}:\d{2}(?:am|pm)?|\d{1,2}(?:am|pm)")
_MONTH_WORDS = frozenset((*MONTHS, "spring", "summer", "autumn", "winter"))
_NEGATIONS = frozenset("not no never none nobody nothing neither nor without hardly barely".split())


@dataclass(frozen=True, slots=True)
class NormalizedText:
    """Content words of a text: texts with equal `words` say the same."""

    words: tuple[str, ...]
    gist: tuple[str, ...]
    """The words without filler adverbs, in one spelling. If only the gists are equal, compare the cosine, too."""

    @property
    def is_personal(self) -> bool:
        """True if the meaning depends on the speaker, as with `I`."""
        return not _PERSONAL_PRONOUNS.isdisjoint(map(_strip_marks, self.words))

    @property
    def validity(self) -> Literal["day", "month", "always"]:
        """The period in which the words keep their meaning: `tomorrow`, `on Monday` and `at 3 pm` change every day."""
        bare = [_strip_marks(word) for word in self.gist]
        if any(word in _DAY_WORDS or _CLOCK_TIME.fullmatch(word) for word in bare):
            return "day"
        return "always" if _MONTH_WORDS.isdisjoint(bare) else "month"


def normalize_text(text: str) -> NormalizedText:
    """Return the content words of a text, without case, periods, a leading `the`, courtesies and introductions.

    Words are not stemmed, because `Ada lived in Oslo` and `Ada lives in Oslo` have the same stems.
    """
    text = unicodedata.normalize("NFC", text).translate(_QUOTES)
    as_written = tuple(text.split())
    if _VERBATIM.search(text):
        return NormalizedText(as_written, as_written)
    words = tuple(_drop_filler(list(_tokenize(_strip_introduction(text)))))
    gist = tuple(_simplify(words))
    if not any(word != "|" for word in gist):
        return NormalizedText(as_written, as_written)  # otherwise `Please!` and `...` would be equal
    return NormalizedText(words, gist)


def _strip_introduction(text: str) -> str:
    """Return the text without surrounding quotes and introductions such as `Remember that` and `By the way,`."""
    text = _RANGE.sub("-", text).strip()
    if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'" and text.count(text[0]) == 2:
        text = text[1:-1]
    start = 0
    while (found := _INTRODUCTION.match(text, start)) and found.end() < len(text):
        start = found.end()
    return text[start:].replace("—", " — ").replace("\n", " | ")


@dataclass(frozen=True, slots=True)
class _TokenContext:
    """Context of a token, which decides if its capitals matter."""

    is_upper: bool
    is_at_start: bool
    before: str


def _tokenize(text: str) -> Iterator[str]:
    chunks = text.split()
    shouted = text.isupper()
    place = _TokenContext(shouted, is_at_start=True, before="")
    for number, chunk in enumerate(chunks, 1):
        if chunk.isalpha() and chunk.islower() and chunk not in _REWRITTEN_WORDS:  # the common case first
            yield chunk
            place = _TokenContext(shouted, is_at_start=False, before=chunk)
            continue
        core = chunk.lstrip(_OPENING_MARKS).rstrip(_CLOSING_MARKS)
        tail = chunk[len(chunk.rstrip(_CLOSING_MARKS)) :]
        found = list(_split_chunk(core, place))
        yield from found
        if "?" in tail:
            yield "?"
        ended = core == "|" or (
            not _SENTENCE_ENDS.isdisjoint(tail) and core.lower() not in _TITLES | _ABBREVIATIONS.keys()
        )
        if not _SENTENCE_ENDS.isdisjoint(tail) and ended and number < len(chunks):
            yield "|"
        elif not _PAUSES.isdisjoint(tail):
            yield ","
        place = _TokenContext(shouted, is_at_start=ended, before=found[-1] if found else place.before)


def _split_chunk(core: str, place: _TokenContext) -> Iterator[str]:
    """Yield the tokens of a chunk between blanks, without the punctuation around it."""
    if core.isalpha():
        yield from _normalize_word(core, place)
    elif core in _DASHES:
        yield "-" if place.before[-1:].isdigit() else ","
    elif core.lower() in _ABBREVIATIONS:
        yield _ABBREVIATIONS[core.lower()]
    elif amount := _AMOUNT.fullmatch(core):
        sign, number, unit = amount.groups("")
        yield from filter(None, (sign, number.replace(",", ""), unit.lower()))
    elif _WORD.fullmatch(core):
        yield from _normalize_word(core, place)
    elif _HYPHENATED.fullmatch(core) and not _KEPT_HYPHENATED.search(core):
        for part in core.split("-"):
            yield from _normalize_word(part, place)
    elif core:
        yield core  # a URL, a path, a name such as C++: each character may matter


def _normalize_word(word: str, place: _TokenContext) -> Iterator[str]:
    lowered = word.lower()
    if lowered in _CONTRACTIONS:
        yield from _CONTRACTIONS[lowered].split()
        return
    if "'" in word:
        for ending, meant in _CONTRACTION_ENDINGS.items():
            if lowered.endswith(ending) and len(word) > len(ending):
                yield _normalize_case(word[: -len(ending)], place)
                yield meant
                return
    yield NUMBER_WORDS.get(lowered) or ("a" if lowered == "an" else _normalize_case(word, place))


def _normalize_case(word: str, place: _TokenContext) -> str:
    """Return the word in lower case, unless its capitals distinguish it from another word."""
    lowered = word.lower()
    if place.before[-1:].isdigit() and lowered in _CASED_UNITS:
        return lowered if lowered in _HOUR_UNITS else word
    if word in ("I", lowered) or (place.is_upper and lowered not in _ACRONYMS):
        return lowered
    if len(word) == 1:
        return lowered if place.is_at_start else word
    if word[1:] != lowered[1:]:
        return word
    return word if lowered in _CASED_WORDS and not place.is_at_start else lowered


def _drop_filler(tokens: list[str]) -> Iterator[str]:
    kept = "|"
    for before, token, after in zip(("", *tokens), tokens, (*tokens[1:], ""), strict=False):
        at_start = kept == "|"
        if token in _FILLER_WORDS or (token == "please" and before == ","):
            continue
        if at_start and token in _FILLER_AT_START and after not in _NOT_WITHOUT_THE:
            continue
        if (token == "," and (at_start or after in _NO_COMMA_BEFORE)) or (token == "|" and (at_start or not after)):
            continue
        yield token
        kept = token


def _simplify(words: tuple[str, ...]) -> Iterator[str]:
    denied = not _NEGATIONS.isdisjoint(words)
    joined = False
    for before, word, after in zip(("", *words), words, (*words[1:], ""), strict=False):
        if joined:
            joined = False
        elif (word, after) in COMPOUNDS:
            joined = True
            yield COMPOUNDS[word, after]
        elif not _is_filler(before, word, after, denied):
            yield SYNONYMS.get(word, word)


def _strip_marks(word: str) -> str:
    return word.lower().strip(_CLOSING_MARKS + _OPENING_MARKS + "\"'").partition("'")[0]


def _is_filler(before: str, word: str, after: str, denied: bool) -> bool:
    match word:
        case "that":
            return before in _SPEECH_VERBS and after not in ("", "|", ",", "?")
        case "too":
            return after in ("", "|")
        case "personally":
            return before == "i"
        case _:
            return word in _FILLER_ADVERBS or (word in _EMPHATIC_ADVERBS and not denied)
