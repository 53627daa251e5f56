"""Embedders for tests: small, deterministic and instant; one fails on request."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from recollect.language.analysis import analyze, stem

# The words of a line share a topic, so that texts about the same topic have similar embeddings.
_THESAURUS = {
    stem(word): topic
    for topic in (
        "live flat lisbon home moved house office",
        "food allergic peanuts eat bread baked",
        "database billing data postgresql cluster",
        "project due deadline release june",
        "instrument neighbour play cello practises",
        "deploy production push pipeline version",
        "dog puppy called named name",
        "units reports report measurements metric",
        "doctor knee physician leg rest",
        "won chess tournament beat rounds",
        "colour car vehicle green",
        "train ride rail journey hours",
    )
    for word in topic.split()
}


class HashEmbedder:
    """A bag of hashed words and topics: texts that share some have similar embeddings."""

    def __init__(self, name: str = "hash", dim: int = 64, fingerprint: str | None = None) -> None:
        self.name = name
        self.dim = dim
        self.fingerprint = fingerprint or name
        self.seen: list[str] = []

    def embed(self, text: str) -> NDArray[np.float32]:
        self.seen.append(text)
        return hashed(text, self.dim, self.name)

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.seen.extend(texts)
        return np.stack([hashed(text, self.dim, self.name) for text in texts])


class MoodyEmbedder(HashEmbedder):
    """An embedder that raises ConnectionError while `down` is set."""

    down = False

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.down:
            raise ConnectionError("no model today")
        return super().embed_batch(texts)


class AsyncEmbedder(HashEmbedder):
    """The same embedder with coroutine methods."""

    async def embed(self, text: str) -> NDArray[np.float32]:  # type: ignore[override]
        return hashed(text, self.dim, self.name)

    async def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:  # type: ignore[override]
        return np.stack([hashed(text, self.dim, self.name) for text in texts])


def hashed(text: str, dim: int = 64, salt: str = "") -> NDArray[np.float32]:
    """Return the normalized sum of one pseudo-random direction per word, the same in every process."""
    vector = np.full(dim, 1e-3)
    for word in analyze(text):
        vector += _direction(f"{salt}:{word}", dim)
        if word in _THESAURUS:
            vector += _direction(f"{salt}:{_THESAURUS[word]}", dim)
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


@cache
def _direction(name: str, dim: int) -> NDArray[np.float64]:
    seed = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "big")
    return np.random.default_rng(seed).standard_normal(dim)
