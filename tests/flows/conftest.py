"""Memories for the flows: on every embedded backend, with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from recollect import AgentMemory
from recollect.inference.minilm import MiniLM
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder

Opener = Callable[..., Awaitable[AgentMemory]]


@pytest.fixture(scope="session")
def minilm() -> MiniLM:
    """The real model, loaded once for all tests, on one thread."""
    return MiniLM(threads=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else str(tmp_path / "agent.db")


@pytest_asyncio.fixture
async def opener(place: str, clock: ManualClock) -> AsyncIterator[Opener]:
    """Opens memories on one backend and closes what was opened."""
    opened: list[AgentMemory] = []

    async def open_one(**options: Any) -> AgentMemory:
        options.setdefault("embedder", HashEmbedder())
        options.setdefault("clock", clock)
        memory = await AgentMemory.open(options.pop("store", place), **options)
        opened.append(memory)
        return memory

    yield open_one
    for memory in opened:
        await memory.close()


@pytest_asyncio.fixture
async def memory(opener: Opener) -> AgentMemory:
    """Quick, and found by shared words."""
    return await opener(user="ada")


@pytest_asyncio.fixture
async def real(opener: Opener, minilm: MiniLM) -> AgentMemory:
    """With the local model that users get."""
    return await opener(user="ada", embedder=minilm)


async def indexed(memory: AgentMemory) -> None:
    """Wait until all that was said can be found: in real life nobody does."""
    await memory._parts.said.catch_up(memory.scope)
