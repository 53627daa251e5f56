"""Spaces too large to be read through: an index is built beside the work, and finds what reading through would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import numpy as np
import psycopg
import pytest

from recollect.stores.evidence import Ask
from recollect.stores.ops import Model, Put
from recollect.stores.postgres import PostgresStore, index
from recollect.stores.where import Where, parse_where
from recollect.testing import ManualClock
from recollect.testing.samples import START, ids, item
from recollect.values import Scope
from tests.servers.postgres import Server

ITEMS, DIM, ASKED, WANTED = 3000, 48, 30, 10
WIDE = Model("wide", DIM, "f")
CROWD = Scope(tenant="crowd", user="ada")
_USED = "select 1 from pg_stat_all_indexes where starts_with(indexrelname, 'near_') and idx_scan > 0"


@pytest.fixture(scope="session")
def index_url(postgres: Server) -> str:
    return postgres.create("index")


@pytest.fixture
async def store(index_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    monkeypatch.setattr(index, "LARGE", 1000)
    opened = await PostgresStore.open(index_url, clock=ManualClock())
    yield opened
    await opened.close()


def _like_texts(chance: np.random.Generator, count: int) -> np.ndarray:
    """Vectors in clusters, as those of texts are."""
    centres = np.random.default_rng(5).normal(size=(40, DIM))
    return (centres[chance.integers(0, 40, count)] + 0.9 * chance.normal(size=(count, DIM))).astype(np.float32)


async def test_a_large_space_is_searched_by_an_index_that_finds_the_same(
    store: PostgresStore, index_url: str, monkeypatch: pytest.MonkeyPatch
):
    chance = np.random.default_rng(11)
    over = START - timedelta(days=1)
    for begin in range(0, ITEMS, 500):
        vectors = _like_texts(chance, 500)
        await store.write(
            *(
                # Every fifth is over: the index has to go on past those.
                Put(
                    item=item(
                        f"i{begin + n}",
                        scope=CROWD,
                        valid_to=over if n % 5 == 0 else None,
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
    ask = Ask(where, _like_texts(chance, 1)[0], (), WANTED, 0, WIDE)
    assert await store.gather(ask, lambda found, _: len(found)) == WANTED
    building = store._building
    assert building is not None, "nobody builds an index"
    await building
    questions = _like_texts(chance, ASKED)
    by_index = [ids(await store.nearest(where, one, limit=WANTED)) for one in questions]
    assert await _used(index_url)
    monkeypatch.setattr(index, "LARGE", 1 << 40)
    exactly = [ids(await store.nearest(where, one, limit=WANTED)) for one in questions]
    found = sum(len(set(some) & set(all)) for some, all in zip(by_index, exactly, strict=True))
    assert found >= 0.99 * ASKED * WANTED
    # A filter that most do not meet is not left to the index, which would give up long before it had ten.
    narrow = Where(CROWD.space("semantic"), live_at=START, conditions=parse_where({"rare": True}))
    rarely = [ids(await store.nearest(narrow, one, limit=WANTED)) for one in questions]
    monkeypatch.setattr(index, "LARGE", 1000)
    assert [ids(await store.nearest(narrow, one, limit=WANTED)) for one in questions] == rarely
    assert {len(some) for some in rarely} == {WANTED}


async def _used(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watching:
        for _ in range(600):
            if await (await watching.execute(_USED)).fetchone():
                return True
            await asyncio.sleep(0.05)  # the server counts a moment later
    return False
