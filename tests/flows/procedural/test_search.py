"""Current procedures are found by key, tag, terms and embedding."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from recollect.models.factory import open_embedder
from recollect.retrieval.search import HybridSearch
from recollect.settings import Settings
from recollect.stores.factory import open_stores
from recollect.stores.writes import Model
from recollect.testing import ManualClock
from recollect.tiers.procedural import ProceduralMemory
from recollect.types import Scope
from tests.embedders import AsyncEmbedder, HashEmbedder
from tests.flows.procedural.reading import keys_hit, record_outcomes


class TestLookup:
    async def test_prefix_matches_literally(self, tier: ProceduralMemory):
        for key in ("50%_off", "50x off", "Deploy", "deploy", "deploy.prod", "deploz", "\U0010ffffx", "déploy"):
            await tier.save(key, f"how to {key}")
        for prefix, keys in {
            "50%": ["50%_off"],
            "deploy": ["deploy", "deploy.prod"],
            "_": [],
            "*": [],
            "D": ["Deploy"],
            "\U0010ffff": ["\U0010ffffx"],
            "' or 1=1 --": [],
        }.items():
            assert await tier.keys(prefix) == keys
            assert [procedure.key for procedure in await tier.best(prefix=prefix, n=10)] == keys
        assert len(await tier.keys("")) == len(await tier.keys()) == 8

    async def test_tag_matches_exactly(self, tier: ProceduralMemory):
        await tier.save("a", "x", tags=["ops", "50%"])
        await tier.save("b", "x", tags=["ops.prod"])
        await tier.save("c", "x", tags=["Ops"])
        await tier.save("ops", "x")
        assert [procedure.key for procedure in await tier.best(tag="ops")] == ["a"]
        assert [procedure.key for procedure in await tier.best(tag="50%")] == ["a"]
        assert await tier.best(tag="%") == []
        assert await tier.best(tag="ops", prefix="b") == []
        await tier.save("a", "x", tags=["new"])
        assert await tier.best(tag="ops") == []
        await tier.retire("a")
        assert await tier.best(tag="new") == []
        assert [procedure.key for procedure in await tier.all(tag="new", retired=True)] == ["a"]


class TestSearch:
    async def test_search_matches_body_description_key_and_tag(self, tier: ProceduralMemory):
        await tier.save("zeppelin.launch", "1. fill with helium", description="Raise the airship", tags=["aviation"])
        await tier.save("bake", "knead, rest, bake", description="Sourdough")
        for query in ("zeppelin", "helium", "airship", "aviation"):
            assert keys_hit(await tier.search(query))[0] == "zeppelin.launch", query

    async def test_search_matches_by_embedding(self, tier: ProceduralMemory):
        await tier.save("k1", "production version")
        await tier.save("k2", "cello instrument")
        hits = await tier.search("deploy push pipeline", 1, min_relevance=0.0)
        assert keys_hit(hits) == ["k1"]
        assert hits[0].tier == "procedural"

    async def test_search_finds_current_versions_only(self, tier: ProceduralMemory):
        await tier.save("deploy", "push by helicopter")
        second = await tier.save("deploy", "push by bicycle")
        assert await tier.search("helicopter") == []
        assert [hit.item.id for hit in await tier.search("push bicycle")] == [second.id]

    async def test_search_finds_new_description_and_not_the_old_one(self, tier: ProceduralMemory):
        await tier.save("deploy", "push", description="by helicopter")
        await tier.save("deploy", "push", description="by bicycle")
        assert await tier.search("helicopter") == []
        assert keys_hit(await tier.search("bicycle")) == ["deploy"]

    async def test_search_orders_ties_by_success_rate(self, tier: ProceduralMemory):
        for key in ("a", "at", "it"):  # stop words, so that the keys do not affect the score
            await tier.save(key, "push the pipeline")
        await record_outcomes(tier, "at", "+" * 10)
        await record_outcomes(tier, "a", "-" * 10)
        assert keys_hit(await tier.search("push pipeline", min_relevance=0.0)) == ["at", "it", "a"]

    async def test_retired_procedure_does_not_use_up_the_limit(self, tier: ProceduralMemory):
        await tier.save("out", "push pipeline")
        await tier.retire("out")
        await tier.save("in", "push pipeline")
        await tier.save("in", "look at the weather first, ask the office, then push the pipeline")
        assert keys_hit(await tier.search("push pipeline", 1, min_relevance=0.0)) == ["in"]

    async def test_search_without_relevant_procedure_returns_nothing(self, tier: ProceduralMemory):
        await tier.save("deploy", "push the pipeline")
        assert await tier.search("favourite colour of a car") == []


class GatedEmbedder(AsyncEmbedder):
    """An embedder that waits until `let` is set."""

    def __init__(self) -> None:
        super().__init__("gated")
        self.asked = asyncio.Event()
        self.let = asyncio.Event()

    async def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:  # type: ignore[override]
        self.asked.set()
        await self.let.wait()
        return await super().embed_batch(texts)


async def test_save_during_model_switch_uses_the_new_model(clock: ManualClock):
    settings, gate = Settings(), GatedEmbedder()
    stores = await open_stores("memory://", settings, clock)
    old, new = await open_embedder(gate, settings), await open_embedder(HashEmbedder("new"), settings)
    records = stores.records("procedural")
    search = HybridSearch(records, old)
    tier = ProceduralMemory(records, old, search, scope=Scope(), settings=settings, clock=clock)
    await records.bind_model(Model("gated", old.dim, old.fingerprint))

    saving = asyncio.create_task(tier.save("deploy", "push the pipeline"))
    await gate.asked.wait()
    async with old.switch_lock:
        await records.activate_model(Model("new", new.dim, new.fingerprint))
        old.switch_to(new)
    gate.let.set()
    await saving
    assert await records.model() == Model("new", new.dim, new.fingerprint)
    hits = await tier.search("deploy: push the pipeline")
    assert keys_hit(hits) == ["deploy"]
    assert hits[0].why.cosine == pytest.approx(1.0, abs=0.01)
    for embedding in (old, new):
        embedding.close()
    await stores.close()
