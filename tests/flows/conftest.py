"""Fixtures that open memories on the embedded stores, with a manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from recollect import AgentMemory
from recollect.models.minilm import MiniLM
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder

Opener = Callable[..., Awaitable[AgentMemory]]


@pytest.fixture(scope="session")
def minilm() -> MiniLM:
    """Load the real embedding model once for all tests, on one thread."""
    return MiniLM(threads=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# Flows run in memory, because the contract and congruence tests prove that the stores give the same answers. These also
# run on a SQLite file, because they depend on its transactions, threads or files.
ON_BOTH_STORES = (
    *("durable/", "erase/", "export/", "consolidate/test_at_once", "lifecycle/test_expiry", "lifecycle/test_daemon"),
    *("test_semantic", "test_episodic", "test_record_turn", "test_recall_over_tiers", "test_supersede", "test_turns"),
    *("test_turn_removal", "test_task_restore", "agent/test_resume", "procedural/test_versions"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the stores of the tests that take a `place`."""
    chosen = any("place" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "place" in metafunc.fixturenames and not chosen:
        module = str(Path(metafunc.module.__file__ or "").relative_to(Path(__file__).parent).as_posix())
        stores = ["memory", "sqlite"] if module.startswith(ON_BOTH_STORES) else ["memory"]
        metafunc.parametrize("place", stores, indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else str(tmp_path / "agent.db")


@pytest_asyncio.fixture
async def opener(place: str, clock: ManualClock) -> AsyncIterator[Opener]:
    """Return a function that opens memories on one store; close them after the test."""
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
    """Open a memory with the hash embedder, which matches shared terms."""
    return await opener(user="ada")


@pytest_asyncio.fixture
async def real(opener: Opener, minilm: MiniLM) -> AgentMemory:
    """Open a memory with the default local embedding model."""
    return await opener(user="ada", embedder=minilm)


async def indexed(memory: AgentMemory) -> None:
    """Wait until every recorded turn is indexed."""
    await memory._engine.turn_index.catch_up(memory.scope)
