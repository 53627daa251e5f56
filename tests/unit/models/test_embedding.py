"""Embedding: order, batches of concurrent calls, cache, normalization, and errors of the embedder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recollect.errors import BadVector, EmbedderFailed, StoreClosed
from recollect.models.embedding import Embedding, FunctionEmbedder
from tests.embedders import HashEmbedder, hashed


class RecordingEmbedder(HashEmbedder):
    """Embedder that records its batches and threads."""

    def __init__(self, name: str = "watched") -> None:
        super().__init__(name)
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.batches.append(list(texts))
        self.threads.add(threading.current_thread().name)
        return super().embed_batch(texts)


class GatedEmbedder(RecordingEmbedder):
    """Embedder whose batches start one at a time, each after a call of `open_gate`."""

    def __init__(self, name: str = "gated") -> None:
        super().__init__(name)
        self._started, self._gate = threading.Semaphore(0), threading.Semaphore(0)

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = super().embed_batch(texts)
        self._started.release()
        assert self._gate.acquire(timeout=30)
        if "bad" in texts:
            rows[list(texts).index("bad")] = np.nan
        return rows

    def open_gate(self, batches: int = 100) -> None:
        self._gate.release(batches)

    async def wait_for_batch(self) -> None:
        assert await asyncio.to_thread(self._started.acquire, timeout=30)


async def start_calls(embedding: Embedding, *calls: Sequence[str]) -> list[asyncio.Task[NDArray[np.float32]]]:
    """Start concurrent calls of `embed`; return when each of them waits."""
    tasks = [asyncio.create_task(embedding.embed(texts)) for texts in calls]
    await asyncio.sleep(0)
    return tasks


async def occupy(embedding: Embedding, embedder: GatedEmbedder) -> asyncio.Task[NDArray[np.float32]]:
    """Start a call that occupies the model until a gate is opened."""
    [running] = await start_calls(embedding, ["first"])
    await embedder.wait_for_batch()
    return running


def make_embedding(embedder: Any, *, batch: int = 4, timeout: float = 10.0, cache: int = 100) -> Embedding:
    return Embedding(embedder, batch=batch, timeout=timeout, cache=cache)


async def test_vectors_are_in_the_order_of_the_texts():
    texts = [f"text {n % 7}" for n in range(20)]
    rows = await make_embedding(HashEmbedder("x")).embed(texts)
    assert rows.shape == (20, 64)
    assert rows.dtype == np.float32
    assert np.allclose(rows, [hashed(text, 64, "x") for text in texts], atol=1e-6)


async def test_each_text_is_embedded_once_in_batches():
    recorder = RecordingEmbedder()
    embedding = make_embedding(recorder)
    await embedding.embed([f"text {n % 6}" for n in range(30)])
    assert recorder.batches == [["text 0", "text 1", "text 2", "text 3"], ["text 4", "text 5"]]
    await embedding.embed(["text 5", "text 6", "text 0"])
    assert recorder.batches[2:] == [["text 6"]]


async def test_cache_evicts_the_least_recently_used_text():
    recorder = RecordingEmbedder()
    embedding = make_embedding(recorder, cache=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        await embedding.embed([text])
    assert recorder.batches == [["a"], ["b"], ["c"], ["b"]]


async def test_without_a_cache_every_call_embeds():
    recorder = RecordingEmbedder()
    embedding = make_embedding(recorder, cache=0)
    for _ in range(2):
        await embedding.embed(["a", "a"])
    assert recorder.batches == [["a"], ["a"]]


async def test_no_texts_make_no_call():
    recorder = RecordingEmbedder()
    assert (await make_embedding(recorder).embed([])).shape == (0, 64)
    assert recorder.batches == []


async def test_embedding_runs_off_the_event_loop():
    recorder = RecordingEmbedder()
    await make_embedding(recorder).embed(["a"])
    assert threading.current_thread().name not in recorder.threads


async def test_vectors_are_normalized():
    def embed(texts: Sequence[str]) -> Any:
        return [[3.0, 4.0], [1e30, 1e30], [1e-30, 0.0], [0.0, 0.0]][: len(texts)]

    rows = await make_embedding(FunctionEmbedder(embed, name="f", dim=2, takes_many=True)).embed(["a", "b", "c", "d"])
    assert np.allclose(np.linalg.norm(rows, axis=1), [1, 1, 1, 0], atol=1e-6)
    assert np.allclose(rows[0], [0.6, 0.8])


@pytest.mark.parametrize("takes_many", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_every_kind_of_function_is_supported(takes_many: bool, asynchronous: bool):
    def embed(given: Any) -> Any:
        return [hashed(text) for text in given] if takes_many else hashed(given)

    async def embed_later(given: Any) -> Any:
        await asyncio.sleep(0)
        return embed(given)

    function = embed_later if asynchronous else embed
    embedder = FunctionEmbedder(function, name="f", dim=64, takes_many=takes_many)
    rows = await make_embedding(embedder).embed(["a tree", "a bush"])
    assert np.allclose(rows, [hashed("a tree"), hashed("a bush")], atol=1e-6)


async def test_invalid_vector_is_not_cached():
    class Moody(RecordingEmbedder):
        def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
            rows = super().embed_batch(texts)
            return rows * np.nan if len(self.batches) == 1 else rows

    embedding = make_embedding(Moody())
    with pytest.raises(BadVector, match="NaN"):
        await embedding.embed(["a"])
    assert np.isfinite(await embedding.embed(["a"])).all()


@pytest.mark.parametrize("size", [1e-300, 1e-3, 1e300], ids=str)
async def test_vectors_of_any_length_are_normalized(size: float):
    class Odd(RecordingEmbedder):
        def embed_batch(self, texts: Sequence[str]) -> Any:
            return [[size, 0.0, -size, *[0.0] * (self.dim - 3)] for _ in texts]

    rows = await make_embedding(Odd()).embed(["a", "b"])
    assert np.allclose(rows[:, :3], [[0.5**0.5, 0.0, -(0.5**0.5)]] * 2)


async def test_switch_discards_cached_and_pending_vectors():
    # Mutants: the cache is kept; a pending answer of the old model is cached.
    started, go_on = threading.Event(), threading.Event()

    class Slow(RecordingEmbedder):
        def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
            started.set()
            go_on.wait(10)
            return super().embed_batch(texts)

    embedding = make_embedding(Slow("old"), batch=1)
    pending = asyncio.create_task(embedding.embed(["a tree", "a bush"]))
    await asyncio.to_thread(started.wait, 10)
    embedding.switch_to(make_embedding(HashEmbedder("new")))
    go_on.set()
    assert np.allclose(await pending, [hashed("a tree", 64, "old"), hashed("a bush", 64, "old")], atol=1e-6)
    assert np.allclose((await embedding.embed(["a tree"]))[0], hashed("a tree", 64, "new"), atol=1e-6)
    assert (embedding.name, embedding.fingerprint) == ("new", "new")


class TestConcurrentCalls:
    async def test_calls_that_wait_are_merged_into_one_batch(self):
        # Mutant: each call is a batch of its own.
        gated = GatedEmbedder()
        embedding = make_embedding(gated)
        running = await occupy(embedding, gated)
        waiting = await start_calls(embedding, ["a tree", "a bush"], ["bread"])
        gated.open_gate()
        [trees, bread] = await asyncio.gather(*waiting)
        assert gated.batches == [["first"], ["bread", "a tree", "a bush"]]
        assert np.allclose(trees, [hashed(text, 64, "gated") for text in ("a tree", "a bush")], atol=1e-6)
        assert np.allclose(bread, [hashed("bread", 64, "gated")], atol=1e-6)
        assert (await running).shape == (1, 64)

    async def test_equal_texts_are_embedded_once(self):
        # Mutants: no search in the cache when a batch starts; equal texts of a batch stay.
        gated = GatedEmbedder()
        embedding = make_embedding(gated, batch=8)
        await occupy(embedding, gated)
        waiting = await start_calls(embedding, ["first"], ["bread", "cello"], ["cello", "first"])
        gated.open_gate()
        rows = await asyncio.gather(*waiting)
        assert gated.batches == [["first"], ["bread", "cello"]]
        assert np.allclose(rows[1][1], rows[2][0])

    async def test_merged_batch_is_not_larger_than_the_limit(self):
        # Mutant: all waiting calls are merged.
        gated = GatedEmbedder()
        embedding = make_embedding(gated, batch=4)
        await occupy(embedding, gated)
        waiting = await start_calls(embedding, *([f"text {number}", f"note {number}"] for number in range(5)))
        gated.open_gate()
        await asyncio.gather(*waiting)
        assert [len(batch) for batch in gated.batches] == [1, 4, 4, 2]

    async def test_large_call_queues_one_batch_at_a_time(self):
        # Mutants: the whole call is queued at once; calls are answered in the order of their start.
        gated = GatedEmbedder()
        embedding = make_embedding(gated, batch=4)
        [large] = await start_calls(embedding, [f"text {number}" for number in range(12)])
        await gated.wait_for_batch()
        await start_calls(embedding, ["a", "b", "c", "d"])
        [query] = await start_calls(embedding, ["query"])
        gated.open_gate()
        await query
        assert gated.batches[:2] == [[f"text {number}" for number in range(4)], ["query"]]
        assert (await large).shape == (12, 64)

    async def test_large_call_is_not_starved_by_queries(self):
        # Mutant: the smallest call always goes first.
        recorder = RecordingEmbedder()
        embedding = make_embedding(recorder, batch=4)
        large = ["a", "b", "c", "d"]
        answer: asyncio.Task[NDArray[np.float32]] | None = None

        async def ask(number: int) -> None:
            for turn in range(100):
                if answer is not None and answer.done():
                    return
                await embedding.embed([f"query {number}.{turn}"])

        workers = [asyncio.create_task(ask(number)) for number in range(16)]
        await asyncio.sleep(0)
        [answer] = await start_calls(embedding, large)
        await asyncio.gather(answer, *workers)
        assert recorder.batches.index(large) <= 2 * len(large)

    async def test_bad_text_fails_its_own_call_only(self):
        # Mutant: the error of a batch is raised by all of its calls.
        gated = GatedEmbedder()
        embedding = make_embedding(gated)
        await occupy(embedding, gated)
        tree, bad, bread = await start_calls(embedding, ["a tree"], ["bad"], ["bread"])
        gated.open_gate()
        assert np.allclose(await tree, [hashed("a tree", 64, "gated")], atol=1e-6)
        assert np.allclose(await bread, [hashed("bread", 64, "gated")], atol=1e-6)
        with pytest.raises(BadVector, match="NaN"):
            await bad

    async def test_cancelled_call_does_not_fail_others(self):
        # Mutants: a cancelled call is embedded; the answer of a cancelled call is set.
        gated = GatedEmbedder()
        embedding = make_embedding(gated)
        running = await occupy(embedding, gated)
        tree, waiting, bread = await start_calls(embedding, ["a tree"], ["cello"], ["bread"])
        waiting.cancel()
        gated.open_gate(1)
        await gated.wait_for_batch()
        tree.cancel()
        gated.open_gate()
        assert np.allclose(await bread, [hashed("bread", 64, "gated")], atol=1e-6)
        assert (await running).shape == (1, 64)
        assert gated.batches == [["first"], ["a tree", "bread"]]
        assert waiting.cancelled()
        assert tree.cancelled()

    async def test_timeout_includes_the_wait_for_other_calls(self):
        # Mutant: a call waits for the batch of another without a timeout.
        gated = GatedEmbedder()
        embedding = make_embedding(gated, timeout=0.05)
        running = await occupy(embedding, gated)
        [waiting] = await start_calls(embedding, ["a tree"])
        for call in (running, waiting):
            with pytest.raises(EmbedderFailed, match=r"no answer within 0\.05 s"):
                await call
        gated.open_gate()
        embedding._timeout = 30.0
        assert (await embedding.embed(["bread"])).shape == (1, 64)
        assert gated.batches == [["first"], ["bread"]]

    async def test_calls_that_wait_during_a_switch_use_the_old_model(self):
        # Mutant: the queue takes its model when a batch starts.
        old, new = GatedEmbedder("old"), RecordingEmbedder("new")
        embedding = make_embedding(old)
        await occupy(embedding, old)
        [before] = await start_calls(embedding, ["a tree"])
        embedding.switch_to(make_embedding(new))
        [after] = await start_calls(embedding, ["a tree"])
        old.open_gate()
        assert np.allclose(await before, [hashed("a tree", 64, "old")], atol=1e-6)
        assert np.allclose(await after, [hashed("a tree", 64, "new")], atol=1e-6)
        assert (old.batches, new.batches) == ([["first"], ["a tree"]], [["a tree"]])

    async def test_close_fails_calls_that_wait(self):
        # Mutant: the queue ends with the first error.
        gated = GatedEmbedder()
        embedding = make_embedding(gated)
        running = await occupy(embedding, gated)
        waiting = await start_calls(embedding, ["a tree"], ["a bush"])
        embedding.close()
        gated.open_gate()
        assert (await running).shape == (1, 64)
        for call in waiting:
            with pytest.raises(StoreClosed):
                await call

    async def test_calls_end_if_the_task_of_the_queue_is_cancelled(self):
        # Mutant: calls wait for a task that does not run any more.
        gated = GatedEmbedder()
        embedding = make_embedding(gated)
        running = await occupy(embedding, gated)
        waiting = await start_calls(embedding, ["a tree"])
        [task] = [task for task in asyncio.all_tasks() if task.get_name() == "recollect-embedder"]
        task.cancel()
        await asyncio.wait([running, *waiting])
        gated.open_gate()
        assert all(call.cancelled() for call in (running, *waiting))
        assert (await embedding.embed(["bread"])).shape == (1, 64)

    async def test_calls_of_a_coroutine_function_run_concurrently(self):
        # Mutant: requests to a remote embedder wait for each other.
        class Remote(HashEmbedder):
            requests = asyncio.Barrier(3)

            async def embed_batch(self, texts: Sequence[str]) -> Any:  # type: ignore[override]
                await self.requests.wait()
                return super().embed_batch(texts)

        calls = await start_calls(make_embedding(Remote("r")), ["a tree"], ["a bush"], ["bread"])
        assert [rows.shape for rows in await asyncio.gather(*calls)] == [(1, 64)] * 3


class ClientError(Exception):
    """Error of a client library, with a status code."""

    status_code = 413


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError("cannot embed 'the code is 4711'"), "failed: OSError, the cause"),
        (ClientError("too long: 'the code is 4711'"), r"failed: ClientError \(413\)"),
    ],
    ids=["any", "status"],
)
async def test_failure_omits_the_error_text(error: Exception, message: str):
    def broken(texts: Any) -> Any:
        raise error

    embedding = make_embedding(FunctionEmbedder(broken, name="far away", dim=2, takes_many=True))
    with pytest.raises(EmbedderFailed, match=rf"far away.*{message}.*nothing was stored") as caught:
        await embedding.embed(["the code is 4711"])
    assert "4711" not in str(caught.value)
    assert caught.value.__cause__ is error


async def test_embedder_without_a_fingerprint_uses_its_name():
    class Plain:
        name, dim = "plain", 2

        def embed_batch(self, texts: Sequence[str]) -> Any:
            return [[1.0, 0.0] for _ in texts]

    assert make_embedding(Plain()).fingerprint == "plain"
