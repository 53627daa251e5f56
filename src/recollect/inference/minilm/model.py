"""Embeds texts with a local sentence encoder on onnxruntime."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recollect.errors import BadInput
from recollect.inference.minilm import identity, weights
from recollect.inference.minilm.encoder import Encoder
from recollect.inference.minilm.identity import Identity
from recollect.inference.minilm.passages import passages

# Keeps a run's working set in the processor's cache: 32 texts of 200 tokens at once were a fifth slower than 4.
_TOKENS_A_RUN = 1024
_MOST_THREADS = 4


class MiniLM:
    """all-MiniLM-L6-v2 by default, or the BERT encoder in `directory` (or RECOLLECT_MODEL_DIR).

    Making one is cheap; the model loads with the first text, and any number of threads may then share it.
    """

    def __init__(self, directory: Path | None = None, *, threads: int | None = None, batch: int = 32) -> None:
        if threads is not None and threads < 1:
            raise BadInput(f"threads must be at least 1, not {threads}")
        if batch < 1:
            raise BadInput(f"batch must be at least 1, not {batch}")
        self._directory = weights.chosen(directory)
        self._threads = threads or min(_MOST_THREADS, _processors())
        self._batch = batch
        self._encoder: Encoder | None = None
        self._loading = threading.Lock()

    @property
    def name(self) -> str:
        return self._identity.name

    @property
    def dim(self) -> int:
        return self._identity.dim or self._load().dim

    @property
    def fingerprint(self) -> str:
        """The sha256 of the weights, so that a graph built anew from them counts as the same model."""
        return self._identity.fingerprint

    @cached_property
    def _identity(self) -> Identity:
        return identity.OURS if self._directory is None else identity.of(weights.find(self._directory))

    def embed(self, text: str) -> NDArray[np.float32]:
        """The unit vector of one text."""
        vector: NDArray[np.float32] = self.embed_batch([text])[0]
        return vector

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One unit vector a text, in the order given; an empty text has a vector too."""
        _refuse_others(texts)
        encoder = self._load()
        parts = [passages(text, encoder.pieces) for text in texts]
        framed = [encoder.framed(part.pieces) for text in parts for part in text]
        vectors = self._run(encoder, framed)
        if len(framed) == len(texts):
            return vectors
        share = np.array([part.weight for text in parts for part in text], np.float32)
        starts = np.cumsum([0, *(len(text) for text in parts)])[:-1]
        pooled = np.add.reduceat(vectors * share[:, None], starts, axis=0)
        return np.ascontiguousarray(pooled / np.linalg.norm(pooled, axis=1, keepdims=True), np.float32)

    def _run(self, encoder: Encoder, framed: list[list[int]]) -> NDArray[np.float32]:
        """Longest first, neighbours in length together, so that little of a batch is padding."""
        vectors = np.empty((len(framed), encoder.dim), np.float32)
        order = sorted(range(len(framed)), key=lambda index: -len(framed[index]))
        start = 0
        while start < len(order):
            longest = len(framed[order[start]])
            chunk = order[start : start + max(1, min(self._batch, _TOKENS_A_RUN // longest))]
            vectors[chunk] = encoder.sentences([framed[index] for index in chunk])
            start += len(chunk)
        return vectors

    def _load(self) -> Encoder:
        if self._encoder is None:
            with self._loading:
                if self._encoder is None:
                    self._encoder = Encoder.load(self._directory, self._threads)
        return self._encoder


def _refuse_others(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise BadInput("embed_batch takes a list of texts; for a single text use embed")
    for text in texts:
        if not isinstance(text, str):
            raise BadInput(f"a text to embed must be a str, not {type(text).__name__}")


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
