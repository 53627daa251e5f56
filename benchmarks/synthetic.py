"""Synthetic memories with known vectors: clustered, seeded, and the same on every run."""

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
_VOCABULARY_SIZE = 6000
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class KnownVectors:
    """Embedder that looks up its vectors, so that the engine is timed and not a model."""

    name = "known-vectors"
    dim = DIM

    def __init__(self) -> None:
        self._rows: dict[str, Rows] = {}

    def add(self, texts: Sequence[str], rows: Rows) -> None:
        self._rows.update(zip(texts, rows, strict=True))

    def clear(self) -> None:
        """Remove all vectors, so that a million items never are in memory at the same time."""
        self._rows.clear()

    def embed(self, text: str) -> Rows:
        return self._rows[text] if text in self._rows else _build_random_vector(text)

    def embed_batch(self, texts: Sequence[str]) -> Rows:
        return np.stack([self.embed(text) for text in texts])


class InlineKnownVectors(KnownVectors):
    """Known vectors that are looked up on the event loop instead of in a thread, with the seconds that it took.

    An unknown text gets one of 1,000 random directions: a new random vector takes longer than many a call.
    """

    def __init__(self) -> None:
        super().__init__()
        self._random_rows = _normalize(np.random.default_rng(_SEED).standard_normal((1000, DIM)))
        self.seconds = 0.0
        """Time spent in this embedder."""

    def embed(self, text: str) -> Rows:
        row = self._rows.get(text)
        return self._random_rows[zlib.crc32(text.encode()) % len(self._random_rows)] if row is None else row

    async def embed_batch(self, texts: Sequence[str]) -> Rows:  # type: ignore[override]
        started = time.perf_counter()
        rows = super().embed_batch(texts)
        self.seconds += time.perf_counter() - started
        return rows


@dataclass(frozen=True, slots=True)
class Collection:
    """One user's memories and questions, with the vectors of both."""

    user: str
    texts: list[str]
    rows: Rows
    questions: list[str]
    question_rows: Rows

    def build_facts(self) -> list[dict[str, Any]]:
        """Return the arguments of `add_many`, with equal importance and time: vectors alone decide the order."""
        return [{"content": text, "importance": 0.5, "at": _NOON} for text in self.texts]

    def find_exact(self, question: int, n: int) -> set[str]:
        """Return the n texts with the highest float32 cosine."""
        scores = self.rows @ self.question_rows[question]
        return {self.texts[at] for at in np.argsort(-scores, kind="stable")[:n]}


def build_collection(user: str, items: int, questions: int = 50) -> Collection:
    """Return unit vectors in clusters of about 50; questions lie near the same centers."""
    digest = hashlib.blake2b(user.encode(), digest_size=8).digest()
    rng = np.random.default_rng((_SEED, int.from_bytes(digest, "big")))
    centers = _normalize(rng.standard_normal((max(8, items // 50), DIM)))
    return Collection(
        user=user,
        texts=_build_texts(rng, items, 12, f"{user}n"),
        rows=_sample_around(rng, centers, items),
        questions=_build_texts(rng, questions, 5, f"{user}q"),
        question_rows=_sample_around(rng, centers, questions),
    )


def _sample_around(rng: np.random.Generator, centers: Rows, count: int) -> Rows:
    noise = _normalize(rng.standard_normal((count, DIM)))
    return _normalize(centers[rng.integers(0, len(centers), count)] + 0.9 * noise)


def _normalize(rows: NDArray[Any]) -> Rows:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def _build_texts(rng: np.random.Generator, count: int, words: int, prefix: str) -> list[str]:
    """Return texts with the uneven word frequencies of a language: the first words are in every tenth text."""
    numbers = np.minimum((rng.pareto(0.9, (count, words)) * 20).astype(int), _VOCABULARY_SIZE - 1)
    return [
        f"{prefix}{at} " + " ".join(_build_word(number) for number in row) for at, row in enumerate(numbers.tolist())
    ]


def _build_word(number: int) -> str:
    size = len(_SYLLABLES)
    return _SYLLABLES[number % size] + _SYLLABLES[number // size % size] + "x"


def _build_random_vector(text: str) -> Rows:
    """Return a random direction for an unknown text, such as the sentences that calibrate an embedder."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return _normalize(np.random.default_rng(seed).standard_normal((1, DIM)))[0]
