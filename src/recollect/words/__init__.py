"""Text into terms: the same analysis for what is stored and for what is asked."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime

from recollect.words.stem import stem

# Words that say how a sentence is built, not what it is about. Question words too: a memory is rarely about "when".
STOP = frozenset(
    """
    a an the this that these those and or but nor so if then than as of at by for with about into through during
    before after above below to from up down in out on off over under again further once here there
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves
    am is are was were be been being have has had having do does did doing done will would shall should can could
    may might must ought what which who whom whose when where why how all any both each few more most other some such
    no not only own same too very just also
    s t d ll m re ve don didn doesn isn aren wasn weren won wouldn couldn shouldn hasn haven hadn
    im ive youre dont didnt doesnt thats whats
    """.split()
)

MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_LONGEST = 64

# Han, Hiragana and Katakana are written without spaces, Hangul with particles grown onto its words: these are
# searched by pairs of characters.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff]+")


def analyse(text: str) -> list[str]:
    """The terms of a text in their order: lower case, without stop words, stemmed."""
    lowered = text.lower().replace("\u2019", "'")
    if lowered.isascii():
        words = _ASCII_WORD.findall(lowered)
    else:
        words = [piece for word in _WORD.findall(_folded(lowered)) for piece in _spaced(word)]
    terms = []
    for word in words:
        # The 's and 'll of English are stop words; what follows the apostrophe of O'Brien or l'avion is not.
        for part in word.split("'"):
            if part and part not in STOP:
                terms.append(stem(part[:_LONGEST]))
    return terms


def date_terms(at: datetime) -> list[str]:
    """A day as the words people ask for it by: month and year. The day's number would match every other number."""
    return [stem(MONTHS[at.month - 1]), str(at.year)]


def _folded(text: str) -> str:
    """Without accents: whoever types `cafe` means `café`."""
    decomposed = unicodedata.normalize("NFKD", text)
    # Lower case again: what is taken apart may have capitals in it, as the № that becomes No.
    return unicodedata.normalize("NFC", "".join(c for c in decomposed if not unicodedata.combining(c))).lower()


def _spaced(word: str) -> list[str]:
    if not _UNSPACED.search(word):
        return [word]
    pieces: list[str] = []
    for run in re.split(f"({_UNSPACED.pattern})", word):
        if _UNSPACED.fullmatch(run):
            pieces.extend(run[at : at + 2] for at in range(max(1, len(run) - 1)))
        elif run:
            pieces.append(run)
    return pieces
