"""Work with a store's vectors by the one model they are of, also while this memory changes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from recollect.errors import BadVector, Conflict, EmbeddingModelMismatch
from recollect.inference.base import Embedding
from recollect.stores.ops import Model

T = TypeVar("T")

# Each try is lost to a whole re-embedding, so the second is the last in practice.
_TRIES = 64


def model_of(embedding: Embedding) -> Model:
    return Model(embedding.name, embedding.dim, embedding.fingerprint)


async def under_one_model(embedding: Embedding, act: Callable[[Model], Awaitable[T]]) -> T:
    """Do something with the model of now, and again when this memory has changed it meanwhile.

    Where the model is still the same, the store is bound to another one, and that is the caller's to know.
    """
    for _ in range(_TRIES):
        model = model_of(embedding)
        try:
            return await act(model)
        except (EmbeddingModelMismatch, BadVector):
            await embedding.settled()
            if model_of(embedding) == model:
                raise
    raise Conflict("the store's embedding model is being changed all the time; try again")
