"""An embedder behind its face: in order, in batches, once a text, and off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recollect.errors import BadVector, EmbedderFailed
from recollect.inference.base import Embedding, FunctionEmbedder
from recollect.inference.failures import Trouble
from tests.embedders import HashEmbedder, hashed


class Watched(HashEmbedder):
    """Remembers how it was asked."""

    def __init__(self, name: str = "watched") -> None:
        super().__init__(name)
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.batches.append(list(texts))
        self.threads.add(threading.current_thread().name)
        return super().embed_batch(texts)


def face(embedder: Any, *, batch: int = 4, timeout: float = 10.0, cache: int = 100) -> Embedding:
    return Embedding(embedder, batch=batch, timeout=timeout, cache=cache)


async def test_vectors_come_in_the_order_of_the_texts():
    texts = [f"text {n % 7}" for n in range(20)]
    rows = await face(HashEmbedder("x")).embed(texts)
    assert rows.shape == (20, 64)
    assert rows.dtype == np.float32
    assert np.allclose(rows, [hashed(text, 64, "x") for text in texts], atol=1e-6)


async def test_a_text_is_asked_for_once_and_in_batches():
    watched = Watched()
    embedding = face(watched)
    await embedding.embed([f"text {n % 6}" for n in range(30)])
    assert watched.batches == [["text 0", "text 1", "text 2", "text 3"], ["text 4", "text 5"]]
    await embedding.embed(["text 5", "text 6", "text 0"])
    assert watched.batches[2:] == [["text 6"]]


async def test_the_cache_forgets_what_was_asked_longest_ago():
    watched = Watched()
    embedding = face(watched, cache=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        await embedding.embed([text])
    assert watched.batches == [["a"], ["b"], ["c"], ["b"]]


async def test_without_a_cache_everything_is_asked_again():
    watched = Watched()
    embedding = face(watched, cache=0)
    for _ in range(2):
        await embedding.embed(["a", "a"])
    assert watched.batches == [["a"], ["a"]]


async def test_nothing_is_asked_for_nothing():
    watched = Watched()
    assert (await face(watched).embed([])).shape == (0, 64)
    assert watched.batches == []


async def test_it_works_beside_the_loop():
    watched = Watched()
    await face(watched).embed(["a"])
    assert threading.current_thread().name not in watched.threads


async def test_vectors_have_unit_length_whatever_the_embedder_thinks():
    def embed(texts: Sequence[str]) -> Any:
        return [[3.0, 4.0], [1e30, 1e30], [1e-30, 0.0], [0.0, 0.0]][: len(texts)]

    rows = await face(FunctionEmbedder(embed, name="f", dim=2, takes_many=True)).embed(["a", "b", "c", "d"])
    assert np.allclose(np.linalg.norm(rows, axis=1), [1, 1, 1, 0], atol=1e-6)
    assert np.allclose(rows[0], [0.6, 0.8])


@pytest.mark.parametrize("takes_many", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_every_kind_of_function_serves(takes_many: bool, asynchronous: bool):
    def embed(given: Any) -> Any:
        return [hashed(text) for text in given] if takes_many else hashed(given)

    async def embed_later(given: Any) -> Any:
        await asyncio.sleep(0)
        return embed(given)

    function = embed_later if asynchronous else embed
    embedder = FunctionEmbedder(function, name="f", dim=64, takes_many=takes_many)
    rows = await face(embedder).embed(["a tree", "a bush"])
    assert np.allclose(rows, [hashed("a tree"), hashed("a bush")], atol=1e-6)
    assert np.allclose(await embedder.embed("a tree"), hashed("a tree"))


async def test_a_bad_answer_is_not_kept():
    class Moody(Watched):
        def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
            rows = super().embed_batch(texts)
            return rows * np.nan if len(self.batches) == 1 else rows

    embedding = face(Moody())
    with pytest.raises(BadVector, match="NaN"):
        await embedding.embed(["a"])
    assert np.isfinite(await embedding.embed(["a"])).all()


@pytest.mark.parametrize("size", [1e-300, 1e-3, 1e300], ids=str)
async def test_however_long_an_answer_is_the_vectors_are_of_unit_length(size: float):
    class Odd(Watched):
        def embed_batch(self, texts: Sequence[str]) -> Any:
            return [[size, 0.0, -size, *[0.0] * (self.dim - 3)] for _ in texts]

    rows = await face(Odd()).embed(["a", "b"])
    assert np.allclose(rows[:, :3], [[0.5**0.5, 0.0, -(0.5**0.5)]] * 2)


async def test_after_a_change_no_vector_of_the_old_model_is_left():
    """…not in the cache, and not in an answer that was under way when the change came."""
    started, go_on = threading.Event(), threading.Event()

    class Slow(Watched):
        def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
            started.set()
            go_on.wait(10)
            return super().embed_batch(texts)

    embedding = face(Slow("old"), batch=1)
    asked = asyncio.create_task(embedding.embed(["a tree", "a bush"]))
    await asyncio.to_thread(started.wait, 10)
    embedding.become(face(HashEmbedder("new")))
    go_on.set()
    assert np.allclose(await asked, [hashed("a tree", 64, "old"), hashed("a bush", 64, "old")], atol=1e-6)
    assert np.allclose((await embedding.embed(["a tree"]))[0], hashed("a tree", 64, "new"), atol=1e-6)
    assert (embedding.name, embedding.fingerprint) == ("new", "new")


class Refused(Exception):
    """An error of somebody's client."""

    status_code = 413


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("cannot embed 'the code is 4711'"), "failed: OSError, the cause"),
        (Refused("too long: 'the code is 4711'"), r"failed: Refused \(413\)"),
        (Trouble("is asked too often (429); slow down"), r"is asked too often \(429\); slow down"),
    ],
    ids=["any", "status", "ours"],
)
async def test_a_failure_is_told_without_its_words_which_may_hold_content(error: Exception, said: str):
    def broken(texts: Any) -> Any:
        raise error

    embedding = face(FunctionEmbedder(broken, name="far away", dim=2, takes_many=True))
    with pytest.raises(EmbedderFailed, match=rf"far away.*{said}.*nothing was stored") as caught:
        await embedding.embed(["the code is 4711"])
    assert "4711" not in str(caught.value)
    assert caught.value.__cause__ is error


async def test_one_without_a_fingerprint_is_known_by_its_name():
    class Plain:
        name, dim = "plain", 2

        def embed(self, text: str) -> Any:
            return [1.0, 0.0]

        def embed_batch(self, texts: Sequence[str]) -> Any:
            return [[1.0, 0.0] for _ in texts]

    assert face(Plain()).fingerprint == "plain"
