"""Cached spaces, shared by readers with different snapshots of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recollect.stores.filters import Where
from recollect.stores.sqlite import SqliteStore
from recollect.stores.sqlite.connection import open_connection
from recollect.stores.sqlite.search_cache import SpaceCache, SpaceState, SqliteVectorMatrix
from recollect.stores.writes import Delete
from recollect.testing.factories import SPACE, find_nearest, make_put, make_vector

QUERY = make_vector(1, 0, 0, 0)


@pytest.mark.parametrize("deleted", [False, True])
async def test_each_reader_sees_its_own_snapshot(tmp_path: Path, deleted: bool):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(*(make_put(f"i{n}", [1, n, 0, 0]) for n in range(5)))
    early = open_connection(store.path, writes=False)
    early.execute("begin")
    before = SpaceState.read(early, SPACE)
    await store.write(*(make_put(f"i{n}", [1, n, 0, 0]) for n in range(5, 8)))
    if deleted:
        await store.write(Delete(SPACE, "i0"))
    late = open_connection(store.path, writes=False)
    late.execute("begin")
    after = SpaceState.read(late, SPACE)
    assert before is not None
    assert after is not None

    cache: SpaceCache[SqliteVectorMatrix] = SpaceCache(1 << 20, SqliteVectorMatrix)
    for _ in range(2):  # alternating: each reader finds the copy of the other
        assert len(cache.read_fresh(late, after, lambda copy: copy.scan(QUERY)).ids) == (7 if deleted else 8)
        assert len(cache.read_fresh(early, before, lambda copy: copy.scan(QUERY)).ids) == 5
    early.close()
    late.close()
    await store.close()


async def test_view_is_taken_under_the_lock(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(make_put("a", [1, 0, 0, 0]))
    connection = open_connection(store.path, writes=False)
    state = SpaceState.read(connection, SPACE)
    assert state is not None
    assert SpaceCache(1 << 20, SqliteVectorMatrix).read_fresh(connection, state, lambda copy: copy.lock.locked())
    connection.close()
    await store.close()


async def test_space_larger_than_the_cache_is_searched_but_not_cached(tmp_path: Path):
    small = SqliteStore.open(tmp_path / "store.db", cache_bytes=512)
    await small.write(*(make_put(f"i{n}", [1, n, n * n, 1]) for n in range(200)))
    await small.write(Delete(SPACE, "i7"))
    large = SqliteStore.open(tmp_path / "store.db")
    query = np.array([0.2, 0.5, 0.1, 0.9], np.float32)
    for where in (Where(SPACE), Where(SPACE, ids=frozenset({"i1", "i3", "i7", "i150"}))):
        assert await find_nearest(small, where, query, limit=5) == await find_nearest(large, where, query, limit=5)
    assert small._vector_cache._total_bytes == 0
    assert large._vector_cache._total_bytes > 512
    await small.close()
    await large.close()
