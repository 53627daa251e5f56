"""Text analysis: stored texts and queries are split into the same terms."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import datetime
from functools import lru_cache

from Stemmer import Stemmer

# Function words and question words: a memory is rarely about "when".
STOP_WORDS = frozenset(
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
_MAX_TERM_LENGTH = 64

# Han, Hiragana and Katakana are written without spaces, and Hangul attaches particles to its words: these scripts are
# indexed by pairs of characters.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff]+")

# Snowball 3.1 stems these words to "paste". Existing indexes hold the older stem.
_STORED_STEMS = dict.fromkeys(("paste", "pastes", "pasted", "pasting"), "past")


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the Porter2 stem of a lower-case word."""
    # Threads cannot share a stemmer. A new one without a cache costs 0.1 µs.
    stemmed: str = _STORED_STEMS.get(word) or Stemmer("english", 0).stemWord(word)
    return stemmed


def analyze(text: str) -> list[str]:
    """Return the terms of a text in order: lower case, stemmed, without stop words."""
    lowered = text.lower().replace("\u2019", "'")
    if lowered.isascii():
        words = _ASCII_WORD.findall(lowered)
    else:
        # `cafe` finds `café`. Decomposition can produce capitals: № becomes No.
        decomposed = unicodedata.normalize("NFKD", lowered)
        folded = unicodedata.normalize("NFC", "".join(c for c in decomposed if not unicodedata.combining(c))).lower()
        words = [piece for word in _WORD.findall(folded) for piece in _split_unspaced(word)]
    # The 's and 'll of English are stop words; the part after the apostrophe in O'Brien or l'avion is a term.
    parts = (part for word in words for part in word.split("'"))
    return [stem(part[:_MAX_TERM_LENGTH]) for part in parts if part and part not in STOP_WORDS]


def build_date_terms(at: datetime) -> list[str]:
    """Return the month and the year of a date as terms. The day would match every other number."""
    return [stem(MONTHS[at.month - 1]), str(at.year)]


def _split_unspaced(word: str) -> list[str]:
    """Return the word with its unspaced runs replaced by their pairs of characters."""
    pieces: list[str] = []
    for run in re.split(f"({_UNSPACED.pattern})", word):
        is_unspaced = bool(_UNSPACED.fullmatch(run))
        pieces += [run[at : at + 2] for at in range(max(1, len(run) - 1))] if is_unspaced else [run]
    return pieces


_PIECE = re.compile(r"[^\W\d_]+|\d|[^\w\s]|_")

# Byte-pair tokenizers keep common words whole and cut longer ones about every five letters.
_LETTERS_PER_TWO_TOKENS = 11
# Other scripts are cut finer: an ideograph of three bytes is about one token.
_BYTES_PER_TOKEN = 3


def count_tokens(text: str) -> int:
    """Return an estimate that is rarely below the count of current models for English, and higher for other scripts."""
    pieces = _PIECE.findall(text)
    others = [] if text.isascii() else [piece for piece in pieces if not piece.isascii()]
    # Rounded up, by integers: this runs for each word of a prompt block.
    tokens = [
        (2 * len(piece) + _LETTERS_PER_TWO_TOKENS - 1) // _LETTERS_PER_TWO_TOKENS
        for piece in pieces
        if not others or piece.isascii()
    ]
    tokens += [math.ceil(len(piece.encode("utf-8", "surrogatepass")) / _BYTES_PER_TOKEN) for piece in others]
    return sum(tokens)
