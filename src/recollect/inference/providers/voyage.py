"""Voyage's embeddings, through its official client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

from recollect.inference.access import Access
from recollect.inference.failures import Trouble, lost, of_status, too_slow
from recollect.inference.remote import Limits, RemoteEmbedder, Vectors

# A thousand texts, and 120 000 tokens for the largest models, of which one text may have 32 000 (16 000 for law).
_LIMITS = Limits(texts=1000, tokens=80_000, tokens_a_text=14_000)
_DIMS = {
    **dict.fromkeys(("voyage-4-large", "voyage-4", "voyage-4-lite", "voyage-3.5", "voyage-3.5-lite"), 1024),
    **dict.fromkeys(("voyage-3-large", "voyage-3", "voyage-code-3", "voyage-finance-2", "voyage-law-2"), 1024),
    "voyage-multilingual-2": 1024,
    "voyage-3-lite": 512,
    "voyage-code-2": 1536,
}


def voyage_embedder(access: Access) -> RemoteEmbedder:
    model = access.named.model

    @cache
    def made() -> tuple[Any, Any]:
        import voyageai

        client = voyageai.AsyncClient(
            api_key=access.key.reveal(),
            base_url=access.base_url or None,
            timeout=access.timeout,
            max_retries=0,  # ours is the only policy
        )
        return voyageai.error, client

    async def ask(texts: Sequence[str]) -> tuple[Vectors, int]:
        errors, client = await asyncio.to_thread(made)
        try:
            async with asyncio.timeout(access.timeout):
                answer = await client.embed(list(texts), model=model)
        except Warning:
            raise  # only where somebody made warnings errors
        except Exception as error:
            raise _trouble(error, errors, access) from error
        if len(answer.embeddings) != len(texts):
            raise Trouble(f"answered with {len(answer.embeddings)} vectors for {len(texts)} texts", again=True)
        return answer.embeddings, answer.total_tokens

    async def close() -> None:
        """Nothing to do: this client opens a connection for each request."""

    known = 0 if access.base_url else _DIMS.get(model, 0)
    return RemoteEmbedder(access, ask, _LIMITS, dim=known, close=close)


def _trouble(error: Exception, errors: Any, access: Access) -> Trouble:
    match error:
        case TimeoutError() | errors.Timeout():
            return too_slow(access.timeout)
        case errors.APIConnectionError():
            return lost(type(error.__cause__ or error).__name__)
        case errors.VoyageError() if error.http_status:
            headers = {name.lower(): value for name, value in dict(error.headers or {}).items()}
            return of_status(error.http_status, headers, error.json_body, access.clock)
        case errors.VoyageError():
            return Trouble(f"refused the request ({type(error).__name__})")
    if type(error).__module__.startswith("aiohttp"):
        return lost(type(error).__name__)
    # Its client takes some error pages for answers; those it then cannot read.
    return Trouble(f"answered something that its client cannot read ({type(error).__name__})", again=True)
