"""Cuts text into the word pieces of an uncased BERT vocabulary, with the same result as its reference tokenizer."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from recollect.errors import BadInput, ModelDamaged
from recollect.inference.minilm.characters import DROPPED, MARKS, PUNCTUATION, is_ideograph

_LONGEST_WORD = 100
_REMEMBERED_WORDS = 1 << 16
_FIRST_PRIVATE_PLANE = 0xF0000
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


class _Clean(dict[int, str]):
    """Before decomposition: drop what is invisible, make every space a plain one, set ideographs apart."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if char in "\t\n\r":
            result = " "
        elif code in DROPPED or (code >= _FIRST_PRIVATE_PLANE and unicodedata.category(char) == "Co"):
            result = ""
        elif char.isspace():
            result = " "
        else:
            result = f" {char} " if is_ideograph(code) else char
        self[code] = result
        return result


class _Fold(dict[int, str]):
    """After decomposition: drop accents, lower the case, set punctuation apart."""

    def __missing__(self, code: int) -> str:
        # Character by character, because str.lower() of a whole word knows the Greek final sigma and BERT does not.
        lowered = "" if code in MARKS else chr(code).lower()
        result = "".join(f" {char} " if ord(char) in PUNCTUATION else char for char in lowered)
        self[code] = result
        return result


_CLEAN = _Clean()
_FOLD = _Fold()
# ASCII does not decompose, so both steps are one there.
_ASCII = {code: "".join(_FOLD[ord(char)] for char in _CLEAN[code]) for code in range(128)}


def words(text: str) -> list[str]:
    """The folded words and punctuation marks of a text, in order."""
    if text.isascii():
        return text.translate(_ASCII).split()
    return unicodedata.normalize("NFD", text.translate(_CLEAN)).translate(_FOLD).split()


class WordPiece:
    """Greedy longest match of each word against a fixed vocabulary.

    Text is only ever text: `[SEP]` written by a user is punctuation and letters, never the control token.
    """

    def __init__(self, vocabulary: dict[str, int]) -> None:
        missing = [token for token in _SPECIAL if token not in vocabulary]
        if missing:
            raise ModelDamaged(f"the vocabulary lacks {', '.join(missing)}; it is not a BERT vocabulary")
        self._vocabulary = vocabulary
        self.pad, self.unknown, self.start, self.end = (vocabulary[token] for token in _SPECIAL)
        self._longest = max(map(len, vocabulary))
        self._seen: dict[str, tuple[int, ...]] = {}

    @classmethod
    def read(cls, path: Path) -> WordPiece:
        """From a `vocab.txt`, or from a `tokenizer.json` that describes an uncased WordPiece."""
        if path.suffix == ".json":
            return cls(_described(path))
        lines = path.read_text(encoding="utf-8").split("\n")
        return cls({token: number for number, token in enumerate(lines) if token})

    def pieces(self, text: str) -> list[int]:
        """The ids of a text without the start and end tokens."""
        ids: list[int] = []
        seen = self._seen
        for word in words(text):
            found = seen.get(word)
            ids.extend(self._cut(word) if found is None else found)
        return ids

    def framed(self, pieces: Sequence[int]) -> list[int]:
        """What the model reads: the pieces between the start and end tokens."""
        return [self.start, *pieces, self.end]

    def _cut(self, word: str) -> tuple[int, ...]:
        found = self._match(word) if len(word) <= _LONGEST_WORD else (self.unknown,)
        if len(self._seen) >= _REMEMBERED_WORDS:
            self._seen.clear()
        if len(word) <= _LONGEST_WORD:
            self._seen[word] = found
        return found

    def _match(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for stop in range(min(len(word), start + self._longest), start, -1):
                piece = self._vocabulary.get(prefix + word[start:stop])
                if piece is not None:
                    break
            else:
                # One piece that does not fit makes the whole word unknown.
                return (self.unknown,)
            ids.append(piece)
            start = stop
        return tuple(ids)


def _described(path: Path) -> dict[str, int]:
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        kind = described["model"].get("type", "WordPiece")
        lowers = (described.get("normalizer") or {}).get("lowercase")
        vocabulary = described["model"]["vocab"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelDamaged(f"{path} is not a readable tokenizer.json: {error}") from error
    if kind != "WordPiece" or not lowers or not isinstance(vocabulary, dict):
        raise BadInput(
            f"{path} describes a {kind} tokenizer (lowercase={lowers}); only uncased BERT WordPiece models such as "
            "MiniLM, gte, e5 or bge (English) can be used from a directory; for others use "
            "embedder='sentence-transformers:NAME'"
        )
    return {str(token): int(number) for token, number in vocabulary.items()}
