"""Copies of spaces in memory, shared by readers that stand at different moments of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recollect.stores.ops import Delete
from recollect.stores.sqlite import SqliteStore
from recollect.stores.sqlite.cache import Cache, State
from recollect.stores.sqlite.connection import open_connection
from recollect.stores.sqlite.matrix import Matrix
from recollect.stores.where import Where
from recollect.testing.samples import SPACE, put


@pytest.mark.parametrize("deleted", [False, True])
async def test_each_reader_sees_its_own_moment(tmp_path: Path, deleted: bool):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(*(put(f"i{n}", [1, n, 0, 0]) for n in range(5)))
    early = open_connection(store.path, writes=False)
    early.execute("begin")
    before = State.read(early, SPACE)
    await store.write(*(put(f"i{n}", [1, n, 0, 0]) for n in range(5, 8)))
    if deleted:
        await store.write(Delete(SPACE, "i0"))
    late = open_connection(store.path, writes=False)
    late.execute("begin")
    after = State.read(late, SPACE)
    assert before is not None
    assert after is not None

    cache: Cache[Matrix] = Cache(1 << 20, Matrix)
    for _ in range(2):  # in turn, each finding the copy as the other left it
        assert len(cache.fresh(late, after, Matrix.view).ids) == (7 if deleted else 8)
        assert len(cache.fresh(early, before, Matrix.view).ids) == 5
    early.close()
    late.close()
    await store.close()


async def test_a_view_is_taken_before_another_reader_may_change_the_copy(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(put("a", [1, 0, 0, 0]))
    connection = open_connection(store.path, writes=False)
    state = State.read(connection, SPACE)
    assert state is not None
    assert Cache(1 << 20, Matrix).fresh(connection, state, lambda copy: copy.lock.locked())
    connection.close()
    await store.close()


async def test_a_space_larger_than_the_cache_is_answered_the_same_and_not_kept(tmp_path: Path):
    small = SqliteStore.open(tmp_path / "store.db", cache_bytes=512)
    await small.write(*(put(f"i{n}", [1, n, n * n, 1]) for n in range(200)))
    await small.write(Delete(SPACE, "i7"))
    large = SqliteStore.open(tmp_path / "store.db")
    query = np.array([0.2, 0.5, 0.1, 0.9], np.float32)
    for where in (Where(SPACE), Where(SPACE, ids=frozenset({"i1", "i3", "i7", "i150"}))):
        assert await small.nearest(where, query, limit=5) == await large.nearest(where, query, limit=5)
    assert small._search.matrices.bytes == 0
    assert large._search.matrices.bytes > 512
    await small.close()
    await large.close()
