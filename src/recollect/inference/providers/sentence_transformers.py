"""Any model of the sentence-transformers library, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from recollect.inference.base import LateEmbedder


class SentenceTransformers(LateEmbedder):
    """Loaded with the first text, in the embedder's thread."""

    def __init__(self, model: str) -> None:
        self.name = f"sentence-transformers:{model}"
        self._model = model

    def embed(self, text: str) -> Any:
        return self.embed_batch([text])[0]

    def embed_batch(self, texts: Sequence[str]) -> Any:
        return self._loaded.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)

    @cached_property
    def _loaded(self) -> Any:
        import sentence_transformers

        return sentence_transformers.SentenceTransformer(self._model)
