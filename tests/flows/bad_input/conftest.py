"""A memory with three facts, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from recollect import AgentMemory
from tests.embedders import HashEmbedder


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["memory", "sqlite"])
async def furnished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AgentMemory]:
    store = "memory://" if request.param == "memory" else tmp_path_factory.mktemp("bad") / "agent.db"
    async with AgentMemory.open(store, user="ada", embedder=HashEmbedder()) as memory:
        await memory.semantic.add_many(
            [
                {"content": "The cello is in the attic.", "metadata": {"room": {"floor": 3}}, "key": "cello"},
                {"content": "Bread is baked on Tuesdays.", "session": "s", "speaker": "Ada (the baker)"},
                {"content": 'She said "NOT AND OR" and left: col:umn*', "session": "s", "speaker": "user"},
            ]
        )
        yield memory
