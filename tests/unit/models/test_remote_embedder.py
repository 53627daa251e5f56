"""Remote embedder: preparation of texts for the API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from recollect.models.embedding import RemoteEmbedder, RequestLimits, Vectors
from recollect.models.endpoint import ModelEndpoint
from recollect.models.usage import UsageLedger
from recollect.settings import Secret


async def test_long_texts_are_counted_off_the_event_loop():
    turns = 0
    turns_when_asked: list[int] = []

    async def count_loop_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def embed(texts: Sequence[str]) -> tuple[Vectors, int]:
        turns_when_asked.append(turns)
        return [[1.0]] * len(texts), 1

    async def close() -> None:
        """Close nothing."""

    endpoint = ModelEndpoint("openai:some", "", Secret("k"), 1.0, 0, UsageLedger())
    embedder = RemoteEmbedder(endpoint, embed, RequestLimits(10, 1000, 100), dim=1, close=close)
    counting = asyncio.create_task(count_loop_turns())
    try:
        assert await embedder.embed_batch(["a" * 100_000]) == [[1.0]]
    finally:
        counting.cancel()
    assert turns_when_asked[0] > 0
