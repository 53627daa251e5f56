"""How many tokens a text costs in a prompt, without the tokenizer of any one model."""

from __future__ import annotations

import math
import re

_PIECE = re.compile(r"[^\W\d_]+|\d|[^\w\s]|_")

# Byte-pair tokenizers keep common words whole and cut longer ones about every five letters.
_LETTERS_A_TOKEN = 5.5
# Other scripts are cut finer: an ideograph, three bytes long, is about one token.
_BYTES_A_TOKEN = 3


# Looked up instead of worked out: a context is counted line by line, and most words are short.
_BY_LENGTH = tuple(math.ceil(length / _LETTERS_A_TOKEN) for length in range(64))


def count_tokens(text: str) -> int:
    """A careful estimate: rarely below what current models count for English, by design. Other scripts cost more."""
    pieces = _PIECE.findall(text)
    if text.isascii():
        return sum([_BY_LENGTH[len(piece)] if len(piece) < len(_BY_LENGTH) else _of_ascii(piece) for piece in pieces])
    return sum([_of_ascii(piece) if piece.isascii() else _of_others(piece) for piece in pieces])


def _of_ascii(piece: str) -> int:
    return _BY_LENGTH[len(piece)] if len(piece) < len(_BY_LENGTH) else math.ceil(len(piece) / _LETTERS_A_TOKEN)


def _of_others(piece: str) -> int:
    return math.ceil(len(piece.encode("utf-8", "surrogatepass")) / _BYTES_A_TOKEN)
