"""How near texts are to a question: each is compared once, and nothing is known while the embedder is down."""

from __future__ import annotations

import pytest

from recollect.inference.base import Embedding
from recollect.memory.meanings import Meanings
from tests.embedders import HashEmbedder, MoodyEmbedder

QUESTION = "Where does the neighbour play the cello?"
AT_HOME, BREAD = "He practises at home.", "Bread is baked."


def embedding(embedder: HashEmbedder) -> Embedding:
    """One that remembers no text itself."""
    return Embedding(embedder, batch=8, timeout=5.0, cache=0)


async def test_a_text_that_two_ask_about_is_compared_once():
    embedder = HashEmbedder()
    meanings = Meanings(embedding(embedder), QUESTION)
    first = await meanings.cosines([AT_HOME, BREAD])
    second = await meanings.cosines([BREAD, "The dog is called Biscuit.", AT_HOME])
    fresh = await Meanings(embedding(HashEmbedder()), QUESTION).cosines([BREAD, AT_HOME])
    assert first is not None
    assert second is not None
    assert fresh is not None
    assert [second[0][0], second[0][2]] == [first[0][1], first[0][0]] == pytest.approx(fresh[0])
    assert embedder.seen.count(BREAD) == 1


async def test_while_the_embedder_is_down_nothing_is_near_not_even_what_was():
    embedder = MoodyEmbedder()
    meanings = Meanings(embedding(embedder), QUESTION)
    assert await meanings.cosines([AT_HOME]) is not None
    embedder.down = True
    assert await meanings.cosines([BREAD]) is None
    assert await meanings.cosines([AT_HOME]) is None
