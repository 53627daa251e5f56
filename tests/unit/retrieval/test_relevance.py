"""Relevance from 0 to 1: it rises with the evidence, and has the same scale for every embedder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from recollect import AgentMemory
from recollect.models.embedding import Embedding
from recollect.retrieval.fusion import DEFAULT_CALIBRATION, bound_relevance, calibrate_embedding, score_relevance
from tests.embedders import HashEmbedder, hashed
from tests.unit.retrieval.candidates import Candidate, relevances, scored

share = st.floats(0.0, 1.0)

FACTS = (
    "The vehicle they bought is dark green.",
    "Irina beat everyone else in the final rounds of chess.",
    "By rail the journey is a little over two hours.",
    "They named the puppy Biscuit.",
    "Billing keeps its data in a PostgreSQL cluster.",
)
QUESTIONS = ("What colour is the car?", "Who won at chess?", "How long is the train ride?", "What is the dog called?")
OFF_TOPIC = ("How do volcanoes erupt?", "Which king ruled Sweden?", "Is coral alive?")


class SqueezedEmbedder(HashEmbedder):
    """Embedder with all cosines between 0.7 and 1, like many large models."""

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        shared = np.full((len(texts), 1), np.sqrt(0.7))
        rows = np.stack([hashed(text, self.dim - 1, self.name) for text in texts])
        return np.hstack([rows * np.sqrt(0.3), shared]).astype(np.float32)


@given(share, share)
def test_relevance_rises_with_the_cosine(one: float, other: float):
    less, more = sorted((one, other))
    # One candidate per call: the relevance of an item must not depend on other candidates.
    assert relevances([Candidate("x", more)])["x"] >= relevances([Candidate("x", less)])["x"]


@given(share, st.sampled_from([((0, 0), (1, 0)), ((1, 0), (1, 1)), ((0, 0), (1, 1))]))
def test_relevance_rises_with_the_terms(cosine: float, words: tuple[tuple[float, float], tuple[float, float]]):
    less, more = words
    assert relevances([Candidate("x", cosine, more)])["x"] >= relevances([Candidate("x", cosine, less)])["x"]


@given(st.lists(st.builds(Candidate, st.uuids().map(str), share, st.tuples(share, share)), min_size=1, max_size=8))
def test_relevance_is_between_0_and_1(candidates: list[Candidate]):
    assert all(0.0 <= worth <= 1.0 for worth in relevances(candidates).values())


@given(
    st.lists(
        st.builds(
            Candidate,
            st.uuids().map(str),
            st.floats(-1.0, 1.0) | st.just(float("nan")),
            st.tuples(share, share),
            session=st.sampled_from(["morning", "evening"]),
            position=st.integers(0, 4).map(float),
        ),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_bound_relevance_is_an_upper_bound(candidates: list[Candidate], words_alone: bool):
    """The bound includes the contribution of neighboring turns: a skipped item would not have been shown."""
    evidence, result = scored(candidates)
    worth = score_relevance(result, evidence.weights, terms_only=words_alone).round(4)
    assert worth.max() < bound_relevance(evidence.summary, DEFAULT_CALIBRATION, terms_only=words_alone)


def test_relevance_without_evidence_is_low_and_with_all_is_high():
    assert relevances([Candidate("nothing", 0.0)])["nothing"] < 0.3
    assert relevances([Candidate("everything", 0.9, (1, 1))])["everything"] > 0.8


async def test_calibration_measures_the_scale_of_an_embedder():
    plain = await calibrate_embedding(Embedding(HashEmbedder("a"), batch=64, timeout=10, cache=0))
    squeezed = await calibrate_embedding(Embedding(SqueezedEmbedder("a", dim=65), batch=64, timeout=10, cache=0))
    assert plain.noise < 0.2 < plain.signal
    assert squeezed.noise > 0.6
    assert squeezed.noise < squeezed.signal <= 1.0


@pytest.mark.parametrize(
    "embedder", [HashEmbedder("model"), SqueezedEmbedder("model", dim=65)], ids=["wide", "squeezed"]
)
async def test_one_threshold_fits_embedders_of_different_scales(embedder: HashEmbedder):
    async with AgentMemory.open("memory://", embedder=embedder) as memory:
        await memory.semantic.add_many({"content": fact} for fact in FACTS)
        for question, fact in zip(QUESTIONS, FACTS, strict=False):
            hits = await memory.semantic.search(question)
            assert [hit.item.content for hit in hits][:1] == [fact]
        for question in OFF_TOPIC:
            assert await memory.semantic.search(question) == []


async def test_relevance_is_the_same_on_both_scales():
    found = []
    for embedder in (HashEmbedder("model"), SqueezedEmbedder("model", dim=65)):
        async with AgentMemory.open("memory://", embedder=embedder) as memory:
            await memory.semantic.add_many({"content": fact} for fact in FACTS)
            found.append([(await memory.semantic.search(q, 1, min_relevance=0.0))[0].relevance for q in QUESTIONS])
    assert np.ptp(found, axis=0).max() < 0.1


async def test_constant_embedder_has_a_usable_scale():
    class Constant(HashEmbedder):
        def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return np.ones((len(texts), self.dim), np.float32)

    async with AgentMemory.open("memory://", embedder=Constant("constant")) as memory:
        await memory.semantic.add_many({"content": fact} for fact in FACTS)
        [hit, *_] = await memory.semantic.search("dark green vehicle", min_relevance=0.0)
        assert hit.item.content == FACTS[0]
        assert 0.0 <= hit.relevance <= 1.0
