"""Procedures in use are found by key, tag, words and meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from recollect.inference.connect import connect_embedder
from recollect.recall.recall import Recall
from recollect.settings import Settings
from recollect.stores.connect import connect
from recollect.stores.ops import Model
from recollect.testing import ManualClock
from recollect.tiers.procedural import ProceduralMemory
from recollect.values import Scope
from tests.embedders import AsyncEmbedder, HashEmbedder
from tests.flows.procedural.reading import keys_hit, tried


class TestLookup:
    async def test_a_prefix_is_the_beginning_of_a_key_and_no_pattern(self, tier: ProceduralMemory):
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
            assert [one.key for one in await tier.best(prefix=prefix, n=10)] == keys
        assert len(await tier.keys("")) == len(await tier.keys()) == 8

    async def test_a_tag_is_one_of_the_tags_word_for_word(self, tier: ProceduralMemory):
        await tier.save("a", "x", tags=["ops", "50%"])
        await tier.save("b", "x", tags=["ops.prod"])
        await tier.save("c", "x", tags=["Ops"])
        await tier.save("ops", "x")
        assert [one.key for one in await tier.best(tag="ops")] == ["a"]
        assert [one.key for one in await tier.best(tag="50%")] == ["a"]
        assert await tier.best(tag="%") == []
        assert await tier.best(tag="ops", prefix="b") == []
        await tier.save("a", "x", tags=["new"])
        assert await tier.best(tag="ops") == []
        await tier.retire("a")
        assert await tier.best(tag="new") == []
        assert [one.key for one in await tier.all(tag="new", retired=True)] == ["a"]


class TestSearch:
    async def test_by_body_description_key_and_tag(self, tier: ProceduralMemory):
        await tier.save("zeppelin.launch", "1. fill with helium", description="Raise the airship", tags=["aviation"])
        await tier.save("bake", "knead, rest, bake", description="Sourdough")
        for query in ("zeppelin", "helium", "airship", "aviation"):
            assert keys_hit(await tier.search(query))[0] == "zeppelin.launch", query

    async def test_by_meaning(self, tier: ProceduralMemory):
        await tier.save("k1", "production version")
        await tier.save("k2", "cello instrument")
        hits = await tier.search("deploy push pipeline", 1, min_relevance=0.0)
        assert keys_hit(hits) == ["k1"]
        assert hits[0].tier == "procedural"

    async def test_only_current_versions_are_found(self, tier: ProceduralMemory):
        await tier.save("deploy", "push by helicopter")
        second = await tier.save("deploy", "push by bicycle")
        assert await tier.search("helicopter") == []
        assert [hit.item.id for hit in await tier.search("push bicycle")] == [second.id]

    async def test_new_words_about_it_are_found_and_old_ones_not(self, tier: ProceduralMemory):
        await tier.save("deploy", "push", description="by helicopter")
        await tier.save("deploy", "push", description="by bicycle")
        assert await tier.search("helicopter") == []
        assert keys_hit(await tier.search("bicycle")) == ["deploy"]

    async def test_between_equals_the_proven_one_comes_first(self, tier: ProceduralMemory):
        for key in ("a", "at", "it"):  # words that no search counts, so that nothing else tells these apart
            await tier.save(key, "push the pipeline")
        await tried(tier, "at", "+" * 10)
        await tried(tier, "a", "-" * 10)
        assert keys_hit(await tier.search("push pipeline", min_relevance=0.0)) == ["at", "it", "a"]

    async def test_what_is_out_of_use_takes_no_place_from_what_is_in_use(self, tier: ProceduralMemory):
        await tier.save("out", "push pipeline")
        await tier.retire("out")
        await tier.save("in", "push pipeline")
        await tier.save("in", "look at the weather first, ask the office, then push the pipeline")
        assert keys_hit(await tier.search("push pipeline", 1, min_relevance=0.0)) == ["in"]

    async def test_nothing_relevant_finds_nothing(self, tier: ProceduralMemory):
        await tier.save("deploy", "push the pipeline")
        assert await tier.search("favourite colour of a car") == []


class Gated(AsyncEmbedder):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__("gated")
        self.asked = asyncio.Event()
        self.let = asyncio.Event()

    async def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:  # type: ignore[override]
        self.asked.set()
        await self.let.wait()
        return await super().embed_batch(texts)


async def test_a_save_during_a_change_of_model_is_made_under_the_new_one(clock: ManualClock):
    settings, gate = Settings(), Gated()
    stores = await connect("memory://", settings, clock)
    old, new = await connect_embedder(gate, settings), await connect_embedder(HashEmbedder("new"), settings)
    records = stores.records("procedural")
    search = Recall(records, old, settings).search
    tier = ProceduralMemory(records, old, search, scope=Scope(), settings=settings, clock=clock)
    await records.adopt(Model("gated", old.dim, old.fingerprint))

    saving = asyncio.create_task(tier.save("deploy", "push the pipeline"))
    await gate.asked.wait()
    async with old.changing:
        await records.switch(Model("new", new.dim, new.fingerprint))
        old.become(new)
    gate.let.set()
    await saving
    assert await records.model() == Model("new", new.dim, new.fingerprint)
    hits = await tier.search("deploy: push the pipeline")
    assert keys_hit(hits) == ["deploy"]
    assert hits[0].why.cosine == pytest.approx(1.0, abs=0.01)
    for one in (old, new):
        one.close()
    await stores.close()
