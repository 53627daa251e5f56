"""A store has one embedding model; it is changed on purpose, online, and nobody's bad embedder costs anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from recollect import (
    AgentMemory,
    BadSettings,
    BadVector,
    EmbedderFailed,
    EmbeddingModelMismatch,
    RecollectError,
    Settings,
)
from recollect.memory import reembed_store
from tests.embedders import AsyncEmbedder, HashEmbedder, hashed
from tests.flows.conftest import Opener


async def top(memory: AgentMemory, query: str) -> str | None:
    hits = await memory.semantic.search(query, 1, min_relevance=0.0, mode="dense")
    return hits[0].item.content if hits else None


class Broken(HashEmbedder):
    """Works until it is told to answer something else."""

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


class TestFrozen:
    @pytest.mark.parametrize(
        "other",
        [HashEmbedder("another"), HashEmbedder(dim=32), HashEmbedder(fingerprint="other weights")],
        ids=["name", "dimension", "weights"],
    )
    async def test_another_model_is_refused_and_told_the_way_out(self, opener: Opener, tmp_path, other: HashEmbedder):
        store = tmp_path / "frozen.db"
        first = await opener(store=store)
        await first.remember("The cello is in the attic.")
        await first.close()
        with pytest.raises(EmbeddingModelMismatch, match="reembed"):
            await opener(store=store, embedder=other)
        again = await opener(store=store)
        assert await top(again, "cello attic") == "The cello is in the attic."

    async def test_an_empty_store_is_bound_by_its_first_item(self, opener: Opener, tmp_path):
        store = tmp_path / "empty.db"
        await (await opener(store=store)).close()
        other = await opener(store=store, embedder=HashEmbedder("another"))
        first = await opener(store=store)
        await other.remember("The cello is in the attic.")
        with pytest.raises(EmbeddingModelMismatch):
            await first.remember("Bread is baked on Tuesdays.")
        with pytest.raises(EmbeddingModelMismatch):
            await opener(store=store)

    async def test_a_model_changed_by_another_process_is_noticed(self, opener: Opener, tmp_path):
        """Same dimension, other meaning: without the check the answer would be silently wrong."""
        store = tmp_path / "shared.db"
        mine, theirs = await opener(store=store), await opener(store=store)
        await mine.remember("The cello is in the attic.")
        assert await top(mine, "cello") is not None
        for dim in (64, 32):
            await theirs.reembed(HashEmbedder("another", dim=dim))
            with pytest.raises(EmbeddingModelMismatch, match="reembed"):
                await mine.semantic.search("cello", min_relevance=0.0)
            with pytest.raises(EmbeddingModelMismatch, match="reembed"):
                await mine.remember("Bread is baked on Tuesdays.")


class TestReembed:
    async def test_everything_is_found_by_the_new_model(self, memory: AgentMemory):
        await memory.semantic.add_many({"content": f"fact about topic{n}"} for n in range(300))
        await memory.scoped(user="bob").remember("The cello is in the attic.")
        fresh = HashEmbedder("fresh", dim=32)
        steps: list[tuple[int, int]] = []
        assert await memory.reembed(fresh, progress=lambda done, total: steps.append((done, total))) == 301
        assert steps[-1] == (301, 301)
        assert (await memory.stats()).model == "fresh"
        assert await top(memory, "topic7") == "fact about topic7"
        assert await top(memory.scoped(user="bob"), "cello") == "The cello is in the attic."
        await memory.remember("Bread is baked on Tuesdays.")
        assert await top(memory, "bread") == "Bread is baked on Tuesdays."

    async def test_it_stays_open_for_reading_and_writing(self, memory: AgentMemory):
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
                assert await top(memory, text) == text
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
            assert await top(memory, text) == text
        assert (await memory.stats()).items == 600 + len(written)

    async def test_after_a_crash_only_the_rest_is_embedded(self, opener: Opener, place: str):
        memory = await opener()
        await memory.semantic.add_many({"content": f"fact about topic{n}"} for n in range(600))

        def crash(done: int, total: int) -> None:
            raise KeyboardInterrupt(f"at {done} of {total}")

        with pytest.raises(KeyboardInterrupt):
            await memory.reembed(HashEmbedder("fresh"), progress=crash)
        assert (await memory.stats()).model == "hash"
        assert await top(memory, "topic7") == "fact about topic7"
        if place != "memory://":
            await memory.close()
            memory = await opener()
        fresh = HashEmbedder("fresh")
        done = await memory.reembed(fresh)
        assert 0 < done < 600
        assert len(fresh.seen) == done
        assert await top(memory, "topic7") == "fact about topic7"

    async def test_the_old_model_is_not_needed(self, opener: Opener, tmp_path):
        store = tmp_path / "orphan.db"
        memory = await opener(store=store)
        await memory.remember("The cello is in the attic.")
        await memory.close()
        assert await reembed_store(store, HashEmbedder("fresh", dim=32)) == 1
        again = await opener(store=store, embedder=HashEmbedder("fresh", dim=32))
        assert await top(again, "cello") == "The cello is in the attic."

    @pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
    async def test_a_bad_new_model_changes_nothing(self, memory: AgentMemory, answer: Any):
        await memory.semantic.add_many([{"content": "The cello is in the attic."}, {"content": "Bread on Tuesdays."}])
        bad = Broken("fresh")
        bad.answer = answer
        with pytest.raises(BadVector):
            await memory.reembed(bad)
        assert (await memory.stats()).model == "hash"
        assert await top(memory, "cello") == "The cello is in the attic."


class TestOwnEmbedder:
    async def test_a_callable_for_one_text(self, opener: Opener):
        def embed(text: str) -> list[float]:
            assert isinstance(text, str)
            return [float(x) for x in hashed(text)]

        memory = await opener(embedder=embed)
        await memory.semantic.add_many([{"content": "The cello is in the attic."}, {"content": "Bread on Tuesdays."}])
        assert await top(memory, "cello") == "The cello is in the attic."

    async def test_a_callable_for_many_texts(self, opener: Opener):
        calls: list[int] = []

        def embed(texts: list[str]) -> Any:
            assert isinstance(texts, list)
            calls.append(len(texts))
            return np.stack([hashed(text) for text in texts])

        memory = await opener(embedder=embed)
        await memory.semantic.add_many([{"content": "The cello is in the attic."}, {"content": "Bread on Tuesdays."}])
        assert await top(memory, "cello") == "The cello is in the attic."
        assert 2 in calls

    async def test_a_coroutine_function(self, opener: Opener):
        async def embed(text: str) -> Any:
            if not isinstance(text, str):
                raise TypeError("one text, please")
            return hashed(text)

        memory = await opener(embedder=embed)
        await memory.remember("The cello is in the attic.")
        assert await top(memory, "cello") == "The cello is in the attic."

    async def test_an_object_with_coroutines(self, opener: Opener):
        memory = await opener(embedder=AsyncEmbedder("asynchronous"))
        await memory.remember("The cello is in the attic.")
        assert await top(memory, "cello") == "The cello is in the attic."

    @pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
    async def test_nonsense_is_refused_and_nothing_is_lost(self, opener: Opener, answer: Any):
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
        assert await top(memory, "cello") == "The cello is in the attic."

    async def test_one_that_raises_is_named_with_its_cause(self, opener: Opener):
        embedder = Broken()
        embedder.answer = raises
        memory = await opener(embedder=embedder)
        with pytest.raises(EmbedderFailed, match="failed: RuntimeError") as caught:
            await memory.remember("The cello is in the attic.")
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert (await memory.stats()).items == 0

    @pytest.mark.parametrize("kind", ["object", "coroutine", "callable"])
    async def test_one_that_hangs_is_given_up(self, opener: Opener, kind: str):
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
    async def test_what_is_no_embedder_is_refused(self, opener: Opener, given: Any):
        with pytest.raises(RecollectError) as caught:
            await opener(embedder=given)
        assert isinstance(caught.value, BadSettings | EmbedderFailed)

    async def test_huge_and_tiny_and_zero_vectors_are_fine(self, opener: Opener):
        embedder = Broken()
        memory = await opener(embedder=embedder)
        for size in (1e300, 1e-300, 0.0):
            embedder.answer = lambda texts, size=size: [[size] * 64 for _ in texts]
            await memory.remember(f"of size {size}")
        assert (await memory.stats()).items == 3
