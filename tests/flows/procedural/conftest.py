"""Procedural memory on every embedded backend, with the default search."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from recollect.clock import Clock
from recollect.models.factory import open_embedder
from recollect.retrieval.search import HybridSearch
from recollect.settings import Settings
from recollect.stores.factory import open_stores
from recollect.testing import ManualClock
from recollect.tiers.procedural import ProceduralMemory
from recollect.types import Scope
from tests.embedders import HashEmbedder
from tests.flows.procedural.reading import Opener


@pytest_asyncio.fixture
async def open_tier(place: str, clock: ManualClock) -> AsyncIterator[Opener]:
    """Return a function that opens the tier on one backend for any scope, with the default search."""
    opened: list[Any] = []

    async def open_one(*, clock: Clock = clock, settings: Settings = Settings(), **scope: str) -> ProceduralMemory:
        shared = [both for both in opened if place == "memory://"]
        stores, embedding = shared[0] if shared else (await open_stores(place, settings, clock), None)
        if embedding is None:
            embedding = await open_embedder(HashEmbedder(), settings)
            opened.append((stores, embedding))
        records = stores.records("procedural")
        search = HybridSearch(records, embedding)
        return ProceduralMemory(records, embedding, search, scope=Scope(**scope), settings=settings, clock=clock)

    yield open_one
    for stores, embedding in opened:
        embedding.close()
        await stores.close()


@pytest_asyncio.fixture
async def tier(open_tier: Opener) -> ProceduralMemory:
    return await open_tier(agent="builder")
