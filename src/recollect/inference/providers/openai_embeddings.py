"""Embeddings of OpenAI and of every server that speaks its protocol, through the official client."""

from __future__ import annotations

from collections.abc import Sequence

from recollect.inference.access import Access
from recollect.inference.failures import Trouble
from recollect.inference.providers.openai import openai_client
from recollect.inference.remote import Limits, RemoteEmbedder, Vectors

# OpenAI takes 2 048 texts and 300 000 tokens at once, and 8 191 in one text.
_LIMITS = Limits(texts=2048, tokens=200_000, tokens_a_text=7000)
_DIMS = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072, "text-embedding-ada-002": 1536}


def openai_embedder(access: Access) -> RemoteEmbedder:
    client = openai_client(access)
    model = access.named.model

    async def ask(texts: Sequence[str]) -> tuple[Vectors, int]:
        answer = await client.once(
            # As numbers: not every server that speaks this protocol knows the compact encoding.
            lambda made: made.embeddings.create(model=model, input=list(texts), encoding_format="float")
        )
        rows = sorted(answer.data, key=lambda row: row.index)
        if len(rows) != len(texts):
            raise Trouble(f"answered with {len(rows)} vectors for {len(texts)} texts; is it the right address?")
        tokens = getattr(answer.usage, "total_tokens", None)  # some servers do not count
        return [row.embedding for row in rows], tokens or 0

    # Elsewhere a model of the same name may be another.
    known = 0 if access.base_url else _DIMS.get(model, 0)
    return RemoteEmbedder(access, ask, _LIMITS, dim=known, close=client.close)
