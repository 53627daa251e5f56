"""Procedural memory on every embedded backend, with the search that users get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from recollect.clock import Clock
from recollect.inference.connect import connect_embedder
from recollect.recall.recall import Recall
from recollect.settings import Settings
from recollect.stores.connect import connect
from recollect.testing import ManualClock
from recollect.tiers.procedural import ProceduralMemory
from recollect.values import Scope
from tests.embedders import HashEmbedder
from tests.flows.procedural.reading import Opener


@pytest_asyncio.fixture
async def open_tier(place: str, clock: ManualClock) -> AsyncIterator[Opener]:
    """Opens the tier on one backend, for any scope, with the search that users get."""
    opened: list[Any] = []

    async def one(*, clock: Clock = clock, settings: Settings = Settings(), **scope: str) -> ProceduralMemory:
        shared = [both for both in opened if place == "memory://"]
        stores, embedding = shared[0] if shared else (await connect(place, settings, clock), None)
        if embedding is None:
            embedding = await connect_embedder(HashEmbedder(), settings)
            opened.append((stores, embedding))
        records = stores.records("procedural")
        search = Recall(records, embedding, settings).search
        return ProceduralMemory(records, embedding, search, scope=Scope(**scope), settings=settings, clock=clock)

    yield one
    for stores, embedding in opened:
        embedding.close()
        await stores.close()


@pytest_asyncio.fixture
async def tier(open_tier: Opener) -> ProceduralMemory:
    return await open_tier(agent="builder")
