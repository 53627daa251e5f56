"""Embedding models: a store has one, `reembed` changes it online, and a bad embedder loses no data."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from recollect import AgentMemory, RecollectError, Settings
from recollect.errors import BadSettings, BadVector, EmbedderFailed, EmbeddingModelMismatch
from recollect.portability.reembed import reembed_store
from recollect.types import Progress
from tests.embedders import AsyncEmbedder, HashEmbedder, hashed
from tests.flows.conftest import Opener


async def find_top(memory: AgentMemory, query: str) -> str | None:
    hits = await memory.semantic.search(query, 1, min_relevance=0.0, mode="dense")
    return hits[0].item.content if hits else None


class Broken(HashEmbedder):
    """Embedder that returns `answer(texts)` if `answer` is set."""

    answer: Any = None

    def embed_batch(self, texts: Sequence[str]) -> Any:
        if self.answer is None:
            return super().embed_batch(texts)
        return self.answer(texts)


def raises(texts: Sequence[str]) -> Any:
    raise RuntimeError("the service is down")


ANSWERS = {
    "NaN": lambda texts: np.full((len(texts), 64), np.nan),
    "infinity": lambda texts: np.full((len(texts), 64), np.inf),
    "wrong dimension": lambda texts: np.ones((len(texts), 63)),
    "too few": lambda texts: np.ones((len(texts) - 1, 64)),
    "ragged": lambda texts: [[1.0] * 64, [1.0]] if len(texts) > 1 else [[1.0]],
    "words": lambda texts: [["x"] * 64 for _ in texts],
    "nothing": lambda texts: (),
}


class TestModelMismatch:
    @pytest.mark.parametrize(
        "other",
        [HashEmbedder("another"), HashEmbedder(dim=32), HashEmbedder(fingerprint="other weights")],
        ids=["name", "dimension", "weights"],
    )
    async def test_open_with_another_model_raises_and_suggests_reembed(
        self, opener: Opener, tmp_path, other: HashEmbedder
    ):
        store = tmp_path / "frozen.db"
        first = await opener(store=store)
        await first.remember("The cello is in the attic.")
        await first.close()
        with pytest.raises(EmbeddingModelMismatch, match="reembed"):
            await opener(store=store, embedder=other)
        again = await opener(store=store)
        assert await find_top(again, "cello attic") == "The cello is in the attic."

    async def test_empty_store_is_bound_to_the_model_of_its_first_item(self, opener: Opener, tmp_path):
        store = tmp_path / "empty.db"
        await (await opener(store=store)).close()
        other = await opener(store=store, embedder=HashEmbedder("another"))
        first = await opener(store=store)
        await other.remember("The cello is in the attic.")
        with pytest.raises(EmbeddingModelMismatch):
            await first.remember("Bread is baked on Tuesdays.")
        with pytest.raises(EmbeddingModelMismatch):
            await opener(store=store)

    async def test_model_changed_by_another_process_raises(self, opener: Opener, tmp_path):
        """With the same dimension, the results would be silently wrong without the check."""
        store = tmp_path / "shared.db"
        mine, theirs = await opener(store=store), await opener(store=store)
        await mine.remember("The cello is in the attic.")
        assert await find_top(mine, "cello") is not None
        for dim in (64, 32):
            await theirs.reembed(HashEmbedder("another", dim=dim))
            with pytest.raises(EmbeddingModelMismatch, match="reembed"):
                await mine.semantic.search("cello", min_relevance=0.0)
            with pytest.raises(EmbeddingModelMismatch, match="reembed"):
                await mine.remember("Bread is baked on Tuesdays.")


class TestReembed:
    async def test_reembed_makes_every_item_searchable_with_the_new_model(self, memory: AgentMemory):
        await memory.semantic.add_many({"content": f"fact about topic{n}"} for n in range(300))
        await memory.scoped(user="bob").remember("The cello is in the attic.")
        fresh = HashEmbedder("fresh", dim=32)
        steps: list[Progress] = []
        assert await memory.reembed(fresh, progress=steps.append) == 301
        assert steps[-1] == Progress("reembed", 301, 301)
        assert (await memory.stats()).model == "fresh"
        assert await find_top(memory, "topic7") == "fact about topic7"
        assert await find_top(memory.scoped(user="bob"), "cello") == "The cello is in the attic."
        await memory.remember("Bread is baked on Tuesdays.")
        assert await find_top(memory, "bread") == "Bread is baked on Tuesdays."

    async def test_reembed_allows_concurrent_reads_and_writes(self, memory: AgentMemory):
        await memory.semantic.add_many({"content": f"fact about topic{n}"} for n in range(600))
        stop = asyncio.Event()
        written: list[str] = []

        async def write() -> None:
            while not stop.is_set():
                text = f"late fact about topic{1000 + len(written)}"
                await memory.remember(text)
                written.append(text)

        async def read() -> int:
            asked = 0
            while not stop.is_set():
                text = f"fact about topic{asked % 600}"
                assert await find_top(memory, text) == text
                asked += 1
            return asked

        async def change() -> None:
            try:
                for name, dim in (("second", 32), ("third", 48), ("fourth", 48)):
                    await memory.reembed(HashEmbedder(name, dim=dim))
            finally:
                stop.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            reading = group.create_task(read())
            group.create_task(change())
        assert reading.result() > 3
        assert len(written) > 3
        for text in written:
            assert await find_top(memory, text) == text
        assert (await memory.stats()).items == 600 + len(written)

    async def test_reembed_after_a_crash_embeds_only_the_rest(self, opener: Opener, place: str):
        memory = await opener()
        await memory.semantic.add_many({"content": f"fact about topic{n}"} for n in range(600))

        def crash(progress: Progress) -> None:
            raise KeyboardInterrupt(str(progress))

        with pytest.raises(KeyboardInterrupt):
            await memory.reembed(HashEmbedder("fresh"), progress=crash)
        assert (await memory.stats()).model == "hash"
        assert await find_top(memory, "topic7") == "fact about topic7"
        if place != "memory://":
            await memory.close()
            memory = await opener()
        fresh = HashEmbedder("fresh")
        done = await memory.reembed(fresh)
        assert 0 < done < 600
        assert len(fresh.seen) == done
        assert await find_top(memory, "topic7") == "fact about topic7"

    async def test_reembed_store_does_not_need_the_old_model(self, opener: Opener, tmp_path):
        store = tmp_path / "orphan.db"
        memory = await opener(store=store)
        await memory.remember("The cello is in the attic.")
        await memory.close()
        assert await reembed_store(store, HashEmbedder("fresh", dim=32)) == 1
        again = await opener(store=store, embedder=HashEmbedder("fresh", dim=32))
        assert await find_top(again, "cello") == "The cello is in the attic."

    @pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
    async def test_reembed_with_bad_vectors_changes_nothing(self, memory: AgentMemory, answer: Any):
        await memory.semantic.add_many([{"content": "The cello is in the attic."}, {"content": "Bread on Tuesdays."}])
        bad = Broken("fresh")
        bad.answer = answer
        with pytest.raises(BadVector):
            await memory.reembed(bad)
        assert (await memory.stats()).model == "hash"
        assert await find_top(memory, "cello") == "The cello is in the attic."


class TestCustomEmbedder:
    async def test_callable_for_one_text_is_an_embedder(self, opener: Opener):
        def embed(text: str) -> list[float]:
            assert isinstance(text, str)
            return [float(x) for x in hashed(text)]

        memory = await opener(embedder=embed)
        await memory.semantic.add_many([{"content": "The cello is in the attic."}, {"content": "Bread on Tuesdays."}])
        assert await find_top(memory, "cello") == "The cello is in the attic."

    async def test_callable_for_many_texts_is_an_embedder(self, opener: Opener):
        calls: list[int] = []

        def embed(texts: list[str]) -> Any:
            assert isinstance(texts, list)
            calls.append(len(texts))
            return np.stack([hashed(text) for text in texts])

        memory = await opener(embedder=embed)
        await memory.semantic.add_many([{"content": "The cello is in the attic."}, {"content": "Bread on Tuesdays."}])
        assert await find_top(memory, "cello") == "The cello is in the attic."
        assert 2 in calls

    async def test_coroutine_function_is_an_embedder(self, opener: Opener):
        async def embed(text: str) -> Any:
            if not isinstance(text, str):
                raise TypeError("one text, please")
            return hashed(text)

        memory = await opener(embedder=embed)
        await memory.remember("The cello is in the attic.")
        assert await find_top(memory, "cello") == "The cello is in the attic."

    async def test_object_with_coroutine_methods_is_an_embedder(self, opener: Opener):
        memory = await opener(embedder=AsyncEmbedder("asynchronous"))
        await memory.remember("The cello is in the attic.")
        assert await find_top(memory, "cello") == "The cello is in the attic."

    @pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
    async def test_bad_vectors_raise_and_store_nothing(self, opener: Opener, answer: Any):
        embedder = Broken()
        memory = await opener(embedder=embedder)
        await memory.remember("The cello is in the attic.", key="cello")
        before = await memory.semantic.history("cello")
        embedder.answer = answer
        with pytest.raises(BadVector, match="hash"):
            await memory.semantic.add_many([{"content": "one more"}, {"content": "and another", "key": "cello"}])
        with pytest.raises(BadVector):
            await memory.semantic.search("a question nobody asked yet")
        embedder.answer = None
        assert await memory.semantic.history("cello") == before
        assert (await memory.stats()).items == 1
        assert await find_top(memory, "cello") == "The cello is in the attic."

    async def test_failing_embedder_raises_embedder_failed_with_its_cause(self, opener: Opener):
        embedder = Broken()
        embedder.answer = raises
        memory = await opener(embedder=embedder)
        with pytest.raises(EmbedderFailed, match="failed: RuntimeError") as caught:
            await memory.remember("The cello is in the attic.")
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert (await memory.stats()).items == 0

    @pytest.mark.parametrize("kind", ["object", "coroutine", "callable"])
    async def test_hanging_embedder_raises_after_the_timeout(self, opener: Opener, kind: str):
        released = threading.Event()
        options = {"settings": Settings(embed_timeout=0.1)}

        def hang(texts: Any) -> Any:
            released.wait(30)

        async def hang_politely(text: Any) -> Any:
            await asyncio.Event().wait()

        embedder = Broken()
        embedder.answer = hang
        given: Any = {"object": embedder, "coroutine": hang_politely, "callable": hang}[kind]
        try:
            with pytest.raises(EmbedderFailed, match=r"0\.1 s"):
                await (await opener(embedder=given, **options)).remember("The cello is in the attic.")
        finally:
            released.set()

    @pytest.mark.parametrize(
        "given", [42, object(), lambda text: "no vector", lambda: [1.0], raises, "no-such-model", ""]
    )
    async def test_open_with_invalid_embedder_raises(self, opener: Opener, given: Any):
        with pytest.raises(RecollectError) as caught:
            await opener(embedder=given)
        assert isinstance(caught.value, BadSettings | EmbedderFailed)

    async def test_huge_tiny_and_zero_vectors_are_accepted(self, opener: Opener):
        embedder = Broken()
        memory = await opener(embedder=embedder)
        for size in (1e300, 1e-300, 0.0):
            embedder.answer = lambda texts, size=size: [[size] * 64 for _ in texts]
            await memory.remember(f"of size {size}")
        assert (await memory.stats()).items == 3
