"""Made-up memories whose vectors are known beforehand: clustered, seeded, and the same on every run."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]

DIM = 384
_SEED = 20260101
_VOCABULARY = 6000
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class KnownVectors:
    """An embedder that looks its answers up, so that what is timed is the engine and not a model."""

    name = "known-vectors"
    dim = DIM

    def __init__(self) -> None:
        self._rows: dict[str, Rows] = {}

    def know(self, texts: Sequence[str], rows: Rows) -> None:
        self._rows.update(zip(texts, rows, strict=True))

    def forget(self) -> None:
        """Let go of everything, so that a million items can pass through without staying in memory."""
        self._rows.clear()

    def embed(self, text: str) -> Rows:
        return self._rows[text] if text in self._rows else _of_a_stranger(text)

    def embed_batch(self, texts: Sequence[str]) -> Rows:
        return np.stack([self.embed(text) for text in texts])


class AtHand(KnownVectors):
    """The same for those who time what stands around a model: it is looked up where it is asked for, in no thread.

    What nobody prepared gets one of a thousand directions, since to make one up takes longer than many a call.
    """

    def __init__(self) -> None:
        super().__init__()
        self._others = _unit(np.random.default_rng(_SEED).standard_normal((1000, DIM)))
        self.spent = 0.0
        """Seconds in which nothing but this was done."""

    def embed(self, text: str) -> Rows:
        row = self._rows.get(text)
        return self._others[zlib.crc32(text.encode()) % len(self._others)] if row is None else row

    async def embed_batch(self, texts: Sequence[str]) -> Rows:  # type: ignore[override]
        began = time.perf_counter()
        rows = super().embed_batch(texts)
        self.spent += time.perf_counter() - began
        return rows


@dataclass(frozen=True, slots=True)
class Collection:
    """One user's memories with their vectors, and questions with theirs."""

    user: str
    texts: list[str]
    rows: Rows
    questions: list[str]
    asked: Rows

    def facts(self) -> list[dict[str, Any]]:
        """As `add_many` takes them. Equal importance and time, so that nothing but the vectors decides an order."""
        return [{"content": text, "importance": 0.5, "at": _NOON} for text in self.texts]

    def exact(self, question: int, n: int) -> set[str]:
        """The texts that a search by meaning has to return, by float32 cosine."""
        scores = self.rows @ self.asked[question]
        return {self.texts[at] for at in np.argsort(-scores, kind="stable")[:n]}


def collection(user: str, items: int, questions: int = 50) -> Collection:
    """Unit vectors around centres, about fifty to each; questions lie near the same centres."""
    digest = hashlib.blake2b(user.encode(), digest_size=8).digest()
    rng = np.random.default_rng((_SEED, int.from_bytes(digest, "big")))
    centres = _unit(rng.standard_normal((max(8, items // 50), DIM)))
    return Collection(
        user=user,
        texts=_texts(rng, items, 12, f"{user}n"),
        rows=_around(rng, centres, items),
        questions=_texts(rng, questions, 5, f"{user}q"),
        asked=_around(rng, centres, questions),
    )


def _around(rng: np.random.Generator, centres: Rows, count: int) -> Rows:
    noise = _unit(rng.standard_normal((count, DIM)))
    return _unit(centres[rng.integers(0, len(centres), count)] + 0.9 * noise)


def _unit(rows: NDArray[Any]) -> Rows:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def _texts(rng: np.random.Generator, count: int, words: int, prefix: str) -> list[str]:
    """Words as unevenly spread as in a language: the first of the vocabulary are in every tenth text."""
    spread = np.minimum((rng.pareto(0.9, (count, words)) * 20).astype(int), _VOCABULARY - 1)
    return [f"{prefix}{at} " + " ".join(_word(number) for number in row) for at, row in enumerate(spread.tolist())]


def _word(number: int) -> str:
    size = len(_SYLLABLES)
    return _SYLLABLES[number % size] + _SYLLABLES[number // size % size] + "x"


def _of_a_stranger(text: str) -> Rows:
    """A random direction for a text nobody prepared, such as the sentences an embedder is calibrated with."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return _unit(np.random.default_rng(seed).standard_normal((1, DIM)))[0]
