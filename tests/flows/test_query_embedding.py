"""Cosines of texts to a question: each text is embedded once, and none is returned while the embedder is down."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.models.embedding import Embedding
from recollect.retrieval.request import QueryEmbedding
from tests.embedders import HashEmbedder, MoodyEmbedder

QUESTION = "Where does the neighbour play the cello?"
AT_HOME, BREAD = "He practises at home.", "Bread is baked."


def build_embedding(embedder: HashEmbedder) -> Embedding:
    """Return an embedding without a cache."""
    return Embedding(embedder, batch=8, timeout=5.0, cache=0)


async def test_same_text_compared_twice_is_embedded_once():
    embedder = HashEmbedder()
    meanings = QueryEmbedding(build_embedding(embedder), QUESTION)
    first = await meanings.compute_cosines([AT_HOME, BREAD])
    second = await meanings.compute_cosines([BREAD, "The dog is called Biscuit.", AT_HOME])
    fresh = await QueryEmbedding(build_embedding(HashEmbedder()), QUESTION).compute_cosines([BREAD, AT_HOME])
    assert first is not None
    assert second is not None
    assert fresh is not None
    assert [second[0][0], second[0][2]] == [first[0][1], first[0][0]] == pytest.approx(fresh[0])
    assert embedder.seen.count(BREAD) == 1


async def test_compute_cosines_while_embedder_is_down_returns_none():
    embedder = MoodyEmbedder()
    meanings = QueryEmbedding(build_embedding(embedder), QUESTION)
    assert await meanings.compute_cosines([AT_HOME]) is not None
    embedder.down = True
    assert await meanings.compute_cosines([BREAD]) is None
    assert await meanings.compute_cosines([AT_HOME]) is None


async def test_turn_and_query_are_embedded_once_by_record_turn_and_recall(tmp_path: Path):
    # Mutant: a text that the index is embedding is embedded again for the comparison with the query.
    embedder = HashEmbedder()
    async with AgentMemory.open(tmp_path / "a.db", user="ada", session="today", embedder=embedder) as memory:
        for number in range(8):
            await memory.record_turn(f"The neighbour plays cello suite {number}.", f"Suite {number} is a fine piece.")
            await memory.recall(f"Which suite did the neighbour play after number {number}?")
    repeated = [text for text, times in Counter(embedder.seen).items() if times > 1]
    assert repeated == []
