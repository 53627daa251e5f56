"""How many tokens a text costs in a prompt, without the tokenizer of any one model."""

from __future__ import annotations

import math
import re

_PIECE = re.compile(r"[^\W\d_]+|\d|[^\w\s]|_")

# Byte-pair tokenizers keep common words whole and cut longer ones about every five letters.
_LETTERS_A_TOKEN = 5.5
# Other scripts are cut finer: an ideograph, three bytes long, is about one token.
_BYTES_A_TOKEN = 3


def count_tokens(text: str) -> int:
    """A careful estimate: rarely below what current models count for English, by design. Other scripts cost more."""
    if text.isascii():
        return sum(math.ceil(len(piece) / _LETTERS_A_TOKEN) for piece in _PIECE.findall(text))
    return sum(_cost(piece) for piece in _PIECE.findall(text))


def _cost(piece: str) -> int:
    if piece.isascii():
        return math.ceil(len(piece) / _LETTERS_A_TOKEN)
    return math.ceil(len(piece.encode("utf-8", "surrogatepass")) / _BYTES_A_TOKEN)
