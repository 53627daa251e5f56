"""What a store promises of embedding models: one answers, another can be prepared meanwhile, none are mixed."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.errors import BadVector, Conflict, EmbeddingModelMismatch
from recollect.stores.base import Records
from recollect.stores.ops import Delete, Embed, Model, Put
from recollect.testing.samples import BOB, EVERYTHING, MODEL, OTHER_MODEL, SPACE, ids, item, put, vector
from recollect.values import MemoryItem


class ModelsContract:
    """Adopt, prepare, switch."""

    pytestmark = pytest.mark.asyncio

    async def test_a_store_is_bound_to_its_first_model(self, store: Records) -> None:
        assert await store.model() is None
        await store.adopt(MODEL)
        await store.adopt(MODEL)
        assert await store.model() == MODEL
        for other in (OTHER_MODEL, Model(MODEL.name, MODEL.dim, "other weights")):
            with pytest.raises(EmbeddingModelMismatch, match="reembed"):
                await store.adopt(other)
        assert await store.model() == MODEL

    async def test_the_first_vectors_bind_it_too(self, store: Records) -> None:
        await store.write(put("words", terms="only"))
        assert await store.model() is None
        await store.write(put("a", [1, 0, 0, 0]))
        assert await store.model() == MODEL

    async def test_the_old_model_answers_until_the_switch(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0]), put("b", [0, 1, 0, 0], scope=BOB), put("bare"))
        assert sorted(ids(await store.unembedded(OTHER_MODEL))) == ["a", "b", "bare"]
        assert len(await store.unembedded(OTHER_MODEL, limit=2)) == 2
        with pytest.raises(Conflict, match="go on embedding"):
            await store.switch(OTHER_MODEL)
        await _embed(store, await store.unembedded(OTHER_MODEL))
        assert await store.unembedded(OTHER_MODEL) == []
        assert ids(await store.nearest(EVERYTHING, vector(1, 0, 0, 0))) == ["a"]
        assert await store.model() == MODEL
        await store.switch(OTHER_MODEL)
        assert await store.model() == OTHER_MODEL
        assert ids(await store.nearest(EVERYTHING, vector(0, 0, 1))) == ["a", "bare"]
        with pytest.raises(BadVector):
            await store.nearest(EVERYTHING, vector(1, 0, 0, 0))
        with pytest.raises(EmbeddingModelMismatch):
            await store.write(put("late", [1, 0, 0, 0]))
        await store.write(Put(item=item("new"), vectors=vector(1, 0, 0)[None], model=OTHER_MODEL))
        assert ids(await store.nearest(EVERYTHING, vector(1, 0, 0), limit=1)) == ["new"]

    async def test_writes_during_the_preparation_are_not_lost(self, store: Records) -> None:
        await store.write(*(put(name, [1, 0, 0, 0]) for name in ("kept", "changed", "deleted")))
        listed = await store.unembedded(OTHER_MODEL)
        await store.write(put("added", [0, 1, 0, 0]), put("changed", [0, 0, 1, 0], content="other text"))
        await store.write(Delete(SPACE, "deleted"))
        await _embed(store, listed)  # of the texts as they were: what changed since has to be done again
        assert sorted(ids(await store.unembedded(OTHER_MODEL))) == ["added", "changed"]
        assert ids(await store.nearest(EVERYTHING, vector(0, 1, 0, 0), limit=1)) == ["added"]
        with pytest.raises(Conflict):
            await store.switch(OTHER_MODEL)
        await _embed(store, await store.unembedded(OTHER_MODEL))
        await store.switch(OTHER_MODEL)
        assert sorted(ids(await store.nearest(EVERYTHING, vector(0, 0, 1)))) == ["added", "changed", "kept"]

    async def test_preparing_a_third_model_starts_again(self, store: Records) -> None:
        third = Model("third", 3, "9")
        await store.write(put("a", [1, 0, 0, 0]))
        listed = await store.unembedded(OTHER_MODEL)
        await _embed(store, listed)
        assert ids(await store.unembedded(third)) == ["a"]
        with pytest.raises(Conflict, match="not being prepared"):
            await _embed(store, listed)
        await _embed(store, await store.unembedded(third), third)
        await store.switch(third)
        assert await store.model() == third

    async def test_late_vectors_after_the_switch_are_refused(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0]))
        listed = await store.unembedded(OTHER_MODEL)
        await _embed(store, listed)
        await store.switch(OTHER_MODEL)
        await store.switch(OTHER_MODEL)  # said twice, done once
        with pytest.raises(Conflict, match="not being prepared"):
            await _embed(store, listed)
        assert ids(await store.nearest(EVERYTHING, vector(0, 0, 1))) == ["a"]

    async def test_switching_there_and_back_answers_with_the_newest_vectors(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0]), put("b", [0, 1, 0, 0]))
        assert ids(await store.nearest(EVERYTHING, vector(1, 0, 0, 0))) == ["a", "b"]
        await _embed(store, await store.unembedded(OTHER_MODEL))
        await store.switch(OTHER_MODEL)
        rows = {"a": vector(0, 0, 0, 1), "b": vector(1, 0, 0, 0)}
        for one in await store.unembedded(MODEL):
            await store.write(Embed(SPACE, one.id, rows[one.id][None], MODEL, one.version))
        await store.switch(MODEL)
        assert ids(await store.nearest(EVERYTHING, vector(1, 0, 0, 0))) == ["b", "a"]

    async def test_fewer_passages_than_before_leave_none_behind(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0]))
        [one] = await store.unembedded(OTHER_MODEL)
        await store.write(Embed(SPACE, "a", np.eye(3, dtype=np.float32), OTHER_MODEL, one.version))
        await store.write(Embed(SPACE, "a", vector(1, 0, 0)[None], OTHER_MODEL, one.version))
        await store.switch(OTHER_MODEL)
        [found] = await store.nearest(EVERYTHING, vector(0, 1, 0))
        assert found.score == 0.0


async def _embed(store: Records, items: list[MemoryItem], model: Model = OTHER_MODEL) -> None:
    for one in items:
        space = one.scope.space(one.tier)
        await store.write(Embed(space, one.id, vector(0, 0, 1)[None], model, one.version))
