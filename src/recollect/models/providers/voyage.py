"""Voyage embeddings through its SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

from recollect.models.embedding import RemoteEmbedder, RequestLimits, Vectors
from recollect.models.endpoint import ModelEndpoint, ProviderError, connection_error, error_from_status, timeout_error

# Voyage accepts 1,000 texts, 120,000 tokens for the largest models, and 32,000 in one text (16,000 for law).
_VOYAGE_LIMITS = RequestLimits(texts=1000, tokens=80_000, tokens_per_text=14_000)
_VOYAGE_DIMENSIONS = {
    **dict.fromkeys(("voyage-4-large", "voyage-4", "voyage-4-lite", "voyage-3.5", "voyage-3.5-lite"), 1024),
    **dict.fromkeys(("voyage-3-large", "voyage-3", "voyage-code-3", "voyage-finance-2", "voyage-law-2"), 1024),
    "voyage-multilingual-2": 1024,
    "voyage-3-lite": 512,
    "voyage-code-2": 1536,
}


def build_voyage_embedder(endpoint: ModelEndpoint) -> RemoteEmbedder:
    model = endpoint.model

    @cache
    def make_client() -> tuple[Any, Any]:
        import voyageai

        client = voyageai.AsyncClient(
            api_key=endpoint.key.reveal(),
            base_url=endpoint.base_url or None,
            timeout=endpoint.timeout,
            max_retries=endpoint.max_retries + 1,  # the SDK counts attempts
        )
        return voyageai.error, client

    async def request(texts: Sequence[str]) -> tuple[Vectors, int]:
        errors, client = await asyncio.to_thread(make_client)
        try:
            response = await client.embed(list(texts), model=model)
        except Warning:
            raise  # the caller's warning filter turned the SDK's warning into an error
        except Exception as error:
            raise _to_provider_error(error, errors, endpoint.timeout) from error
        if len(response.embeddings) != len(texts):
            raise ProviderError(f"answered with {len(response.embeddings)} vectors for {len(texts)} texts")
        return response.embeddings, response.total_tokens

    async def close() -> None:
        """Do nothing: the SDK opens a connection for each request."""

    dim = 0 if endpoint.base_url else _VOYAGE_DIMENSIONS.get(model, 0)
    return RemoteEmbedder(endpoint, request, _VOYAGE_LIMITS, dim=dim, close=close)


def _to_provider_error(error: Exception, errors: Any, timeout: float) -> ProviderError:
    match error:
        case TimeoutError() | errors.Timeout():
            return timeout_error(timeout)
        case errors.APIConnectionError():
            return connection_error(type(error.__cause__ or error).__name__)
        case errors.VoyageError() if error.http_status:
            return error_from_status(error.http_status, error.json_body)
        case errors.VoyageError():
            return ProviderError(f"refused the request ({type(error).__name__})")
    if type(error).__module__.startswith("aiohttp"):
        return connection_error(type(error).__name__)
    # The SDK takes some error pages for answers, which it then cannot read.
    return ProviderError(f"answered something that its SDK cannot read ({type(error).__name__})")
