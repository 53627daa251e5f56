"""Vector index of large spaces: built in the background, with the results of an exact search."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import numpy as np
import psycopg
import pytest

from recollect.stores.filters import Where, parse_where
from recollect.stores.postgres import PostgresStore, search
from recollect.stores.search import EvidenceQuery
from recollect.stores.writes import Model, Put
from recollect.testing import ManualClock
from recollect.testing.factories import START, find_nearest, list_ids, make_item
from recollect.types import Scope
from tests.servers.postgres import Server

ITEMS, DIM, ASKED, WANTED = 3000, 48, 30, 10
WIDE = Model("wide", DIM, "f")
CROWD = Scope(tenant="crowd", user="ada")
_INDEX_SCANS = "select 1 from pg_stat_all_indexes where starts_with(indexrelname, 'near_') and idx_scan > 0"


@pytest.fixture(scope="session")
def index_url(postgres: Server) -> str:
    return postgres.create("index")


@pytest.fixture
async def store(index_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    monkeypatch.setattr(search, "HNSW_MIN_ITEMS", 1000)
    opened = await PostgresStore.open(index_url, clock=ManualClock())
    yield opened
    await opened.close()


def _make_clustered_vectors(chance: np.random.Generator, count: int) -> np.ndarray:
    """Return vectors in clusters, like those of texts."""
    centres = np.random.default_rng(5).normal(size=(40, DIM))
    return (centres[chance.integers(0, 40, count)] + 0.9 * chance.normal(size=(count, DIM))).astype(np.float32)


async def test_hnsw_index_of_a_large_space_finds_the_exact_results(
    store: PostgresStore, index_url: str, monkeypatch: pytest.MonkeyPatch
):
    chance = np.random.default_rng(11)
    ended = START - timedelta(days=1)
    for start in range(0, ITEMS, 500):
        vectors = _make_clustered_vectors(chance, 500)
        await store.write(
            *(
                # Every fifth item has ended: the index search has to skip those.
                Put(
                    item=make_item(
                        f"i{start + n}",
                        scope=CROWD,
                        valid_to=ended if n % 5 == 0 else None,
                        metadata={"rare": True} if n % 100 == 7 else {},
                    ),
                    vectors=vectors[n][None],
                    model=WIDE,
                    expect=0,
                )
                for n in range(500)
            )
        )
    where = Where(CROWD.space("semantic"), live_at=START)
    ask = EvidenceQuery(where, _make_clustered_vectors(chance, 1)[0], (), WANTED, 0, WIDE)
    assert await store.gather(ask, lambda found, _: len(found)) == WANTED
    building = store._index_task
    assert building is not None, "no index is being built"
    await building
    queries = _make_clustered_vectors(chance, ASKED)
    by_index = [list_ids(await find_nearest(store, where, query, limit=WANTED)) for query in queries]
    assert await _is_index_used(index_url)
    monkeypatch.setattr(search, "HNSW_MIN_ITEMS", 1 << 40)
    exact = [list_ids(await find_nearest(store, where, query, limit=WANTED)) for query in queries]
    found = sum(len(set(some) & set(all)) for some, all in zip(by_index, exact, strict=True))
    assert found >= 0.99 * ASKED * WANTED
    # A filter that few items match does not use the index, which would stop before it had found ten.
    narrow = Where(CROWD.space("semantic"), live_at=START, conditions=parse_where({"rare": True}))
    rare = [list_ids(await find_nearest(store, narrow, query, limit=WANTED)) for query in queries]
    monkeypatch.setattr(search, "HNSW_MIN_ITEMS", 1000)
    assert [list_ids(await find_nearest(store, narrow, query, limit=WANTED)) for query in queries] == rare
    assert {len(some) for some in rare} == {WANTED}


async def _is_index_used(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watching:
        for _ in range(600):
            if await (await watching.execute(_INDEX_SCANS)).fetchone():
                return True
            await asyncio.sleep(0.05)  # the server updates its statistics later
    return False
