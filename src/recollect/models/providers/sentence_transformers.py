"""Local embedding models of the sentence-transformers library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from recollect.models.embedding import LateDimensionEmbedder


class SentenceTransformersEmbedder(LateDimensionEmbedder):
    """A sentence-transformers model, loaded with the first text."""

    def __init__(self, model: str) -> None:
        self.name = f"sentence-transformers:{model}"
        self._model = model

    def embed_batch(self, texts: Sequence[str]) -> Any:
        return self._loaded_model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)

    @cached_property
    def _loaded_model(self) -> Any:
        import sentence_transformers

        return sentence_transformers.SentenceTransformer(self._model)
