"""An embedder behind an API, apart from the API: how texts are prepared for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from recollect.inference.access import Access, Named
from recollect.inference.ledger import Ledger
from recollect.inference.remote import Limits, RemoteEmbedder, Vectors
from recollect.inference.retry import Retry
from recollect.settings import Secret
from recollect.testing import ManualClock


@pytest.mark.parametrize(("letters", "in_a_thread"), [(20_001, True), (200, False)])
async def test_long_texts_are_counted_while_the_loop_goes_on(letters: int, in_a_thread: bool):
    turns = 0
    turns_when_asked: list[int] = []

    async def go_round() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def ask(texts: Sequence[str]) -> tuple[Vectors, int]:
        turns_when_asked.append(turns)
        return [[1.0]] * len(texts), 1

    async def close() -> None:
        """Nothing was opened."""

    access = Access(Named.parsed("openai:some"), "", Secret("k"), 1.0, Retry(0), Ledger(), ManualClock())
    embedder = RemoteEmbedder(access, ask, Limits(10, 1000, 100), dim=1, close=close)
    round_and_round = asyncio.create_task(go_round())
    try:
        assert await embedder.embed_batch(["a" * letters]) == [[1.0]]
    finally:
        round_and_round.cancel()
    assert (turns_when_asked[0] > 0) == in_a_thread
