"""From a name or an object to an embedder: the only module that names a provider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recollect.errors import BadSettings, EmbedderFailed
from recollect.inference.base import Embedder, Embedding, FunctionEmbedder, called
from recollect.settings import Settings

_PROBE = ["the quick brown fox", "a memory of last summer"]


async def connect_embedder(given: str | Embedder | Callable[[Any], Any] | None, settings: Settings) -> Embedding:
    """The embedder that was asked for, ready to use; nothing is loaded before the first text."""
    embedder = await _embedder(settings.embedder if given is None else given, settings)
    return Embedding(embedder, batch=settings.embed_batch, timeout=settings.embed_timeout, cache=settings.embed_cache)


def install_local_model(progress: Callable[[str, float], None] | None = None) -> Path:
    """Set the default model up on this machine; the only step that may use the network."""
    from recollect.inference.minilm import install

    return install(progress)


async def _embedder(given: str | Embedder | Callable[[Any], Any], settings: Settings) -> Embedder:
    if isinstance(given, str):
        return _named(given, settings)
    if all(hasattr(given, part) for part in ("name", "dim", "embed", "embed_batch")):
        return given  # type: ignore[return-value]
    if callable(given):
        return await _probed(given, settings.embed_timeout)
    raise BadSettings(
        f"{type(given).__name__} is not an embedder; give a name such as 'minilm', a callable, "
        "or an object with name, dim, embed and embed_batch"
    )


def _named(name: str, settings: Settings) -> Embedder:
    from recollect.inference.minilm import MiniLM

    provider, _, detail = name.partition(":")
    threads = settings.threads or None
    if name == "minilm":
        return MiniLM(threads=threads)
    if provider == "minilm":
        return MiniLM(Path(detail), threads=threads)
    raise BadSettings(f"there is no embedder {name!r}; use 'minilm', or 'minilm:DIRECTORY' for a model of your own")


async def _probed(function: Callable[[Any], Any], patience: float) -> FunctionEmbedder:
    """Find out, by asking, whether a callable takes one text or many, and how long its vectors are."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    failure: Exception | None = None
    for takes_many, question in ((True, list(_PROBE)), (False, _PROBE[0])):
        try:
            async with asyncio.timeout(patience):
                answer = np.asarray(await called(function, question, None), dtype=np.float64)
        except TimeoutError as error:
            raise EmbedderFailed(f"{name} gave no answer within {patience:g} s") from error
        except Exception as error:  # noqa: BLE001 - the other way of calling is tried, then this is the cause
            failure = error
            continue
        if answer.ndim == (2 if takes_many else 1) and answer.size and (not takes_many or len(answer) == len(_PROBE)):
            return FunctionEmbedder(function, name=name, dim=int(answer.shape[-1]), takes_many=takes_many)
        failure = None
    raise EmbedderFailed(
        f"{name} answered neither a text with a vector nor a list of texts with a list of vectors"
    ) from failure
