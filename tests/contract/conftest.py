"""Every backend, empty and open, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from recollect.stores.in_memory import InMemoryStore
from recollect.stores.sqlite import SqliteStore
from recollect.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["in_memory", "sqlite"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[InMemoryStore | SqliteStore]:
    opened = (
        InMemoryStore(clock=clock)
        if request.param == "in_memory"
        else SqliteStore.open(tmp_path / "store.db", readers=2, clock=clock)
    )
    yield opened
    await opened.close()


@pytest.fixture
async def reopen(store: SqliteStore, clock: ManualClock) -> AsyncIterator[Callable[[], Awaitable[SqliteStore]]]:
    opened = [store]

    async def again() -> SqliteStore:
        await opened[-1].close()
        opened.append(SqliteStore.open(store.path, readers=2, clock=clock))
        return opened[-1]

    yield again
    await opened[-1].close()
