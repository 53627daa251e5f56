"""Cached terms give the same answers as the file, at the snapshot of each reader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from recollect.stores.sqlite import SqliteStore, search_cache
from recollect.stores.sqlite.connection import open_connection
from recollect.stores.sqlite.search_cache import SpaceCache, SpaceState, SqliteTermCache
from recollect.stores.writes import Delete
from recollect.testing.factories import EVERYTHING, SPACE, find_matching, list_ids, make_put


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "store.db")
    yield opened
    await opened.close()


@pytest.fixture(params=["all terms", "queried terms"], autouse=True)
def cache_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_cache, "_CACHE_ALL_TERMS_UP_TO", 4096 if request.param == "all terms" else 0)


def open_snapshot(store: SqliteStore) -> tuple[apsw.Connection, SpaceState]:
    connection = open_connection(store.path, writes=False)
    connection.execute("begin")
    state = SpaceState.read(connection, SPACE)
    assert state is not None
    return connection, state


def get_postings_of(
    cache: SpaceCache[SqliteTermCache], connection: apsw.Connection, state: SpaceState, *terms: str
) -> list[list[tuple[int, int]]]:
    postings, _ = cache.read_fresh(connection, state, lambda copy: copy.get_postings(connection, state, terms))
    return [list(zip(one.seqs.tolist(), one.counts.astype(int).tolist(), strict=True)) for one in postings]


async def test_added_terms_are_read_without_the_index(store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    await store.write(make_put("a", terms="apple fig apple"), make_put("b", terms="fig"))
    cache: SpaceCache[SqliteTermCache] = SpaceCache(1 << 20, SqliteTermCache)
    connection, state = open_snapshot(store)
    assert get_postings_of(cache, connection, state, "apple", "fig", "kiwi") == [[(1, 2)], [(1, 1), (2, 1)], []]
    connection.close()
    await store.write(make_put("c", terms="apple apple apple kiwi"), make_put("d"))
    monkeypatch.setattr("recollect.stores.sqlite.search_cache.find_postings", None)
    connection, state = open_snapshot(store)
    assert get_postings_of(cache, connection, state, "apple", "fig", "kiwi") == [
        [(1, 2), (3, 3)],
        [(1, 1), (2, 1)],
        [(3, 1)],
    ]
    _, lengths = cache.read_fresh(connection, state, lambda copy: copy.get_postings(connection, state, ()))
    assert lengths[1:5].tolist() == [3, 1, 4, 0]
    connection.close()


@pytest.mark.parametrize("deleted", [False, True])
async def test_each_reader_sees_the_terms_of_its_own_snapshot(store: SqliteStore, deleted: bool):
    await store.write(make_put("a", terms="apple"), make_put("b", terms="fig"))
    early, before = open_snapshot(store)
    await store.write(make_put("c", terms="apple"), make_put("d", terms="kiwi"))
    if deleted:
        await store.write(Delete(SPACE, "a"))
    late, after = open_snapshot(store)
    cache: SpaceCache[SqliteTermCache] = SpaceCache(1 << 20, SqliteTermCache)
    for _ in range(2):  # alternating: each reader finds the copy of the other
        assert get_postings_of(cache, late, after, "apple") == [[(3, 1)] if deleted else [(1, 1), (3, 1)]]
        assert get_postings_of(cache, early, before, "apple", "kiwi") == [[(1, 1)], []]
        assert get_postings_of(cache, late, after, "kiwi") == [[(4, 1)]]
    early.close()
    late.close()


async def test_cache_bounds_its_postings(store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search_cache, "_CACHE_ALL_TERMS_UP_TO", 0)
    monkeypatch.setattr(search_cache, "_MIN_CACHED_POSTINGS", 150)
    monkeypatch.setattr(search_cache, "_MAX_POSTINGS_PER_ITEM", 1)
    await store.write(*(make_put(f"i{n}", terms=f"common w{n}") for n in range(30)))
    connection, state = open_snapshot(store)
    copy = SqliteTermCache()
    copy.load_new_rows(connection, state)
    for n in range(30):
        [common, rare], _ = copy.get_postings(connection, state, ("common", f"w{n}"))
        assert (len(common.seqs), rare.seqs.tolist()) == (30, [n + 1])
        assert copy.bytes <= search_cache._POSTING_BYTES * 150 + copy._lengths.nbytes
    connection.close()


async def test_changed_term_is_read_again(store: SqliteStore):
    await store.write(make_put("a", terms="apple"), make_put("b", terms="apple"))
    assert list_ids(await find_matching(store, EVERYTHING, "apple")) == ["a", "b"]
    await store.write(make_put("a", terms="fig"))
    assert list_ids(await find_matching(store, EVERYTHING, "apple")) == ["b"]
    assert list_ids(await find_matching(store, EVERYTHING, "fig")) == ["a"]


async def test_term_score_rises_when_the_corpus_grows(store: SqliteStore):
    await store.write(make_put("a", terms="apple"), make_put("b", terms="fig"))
    [before] = await find_matching(store, EVERYTHING, "apple")
    await store.write(*(make_put(f"i{n}", terms="fig kiwi") for n in range(8)))
    [after] = await find_matching(store, EVERYTHING, "apple")
    assert after.score > before.score  # the term is rarer now, and its text shorter than the average


async def test_terms_of_a_small_space_are_read_without_the_index(store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search_cache, "_CACHE_ALL_TERMS_UP_TO", 8)
    await store.write(make_put("a", terms="apple fig apple"), make_put("b", terms="fig"))
    cache: SpaceCache[SqliteTermCache] = SpaceCache(1 << 20, SqliteTermCache)
    with monkeypatch.context() as no_index:
        no_index.setattr("recollect.stores.sqlite.search_cache.find_postings", None)
        connection, state = open_snapshot(store)
        assert get_postings_of(cache, connection, state, "apple", "kiwi", "fig") == [[(1, 2)], [], [(1, 1), (2, 1)]]
        connection.close()
    # The space grows past the limit: cached terms stay complete, and others are read from the index.
    await store.write(make_put("c", terms="apple kiwi plum plum plum"), make_put("d", terms="pear"))
    connection, state = open_snapshot(store)
    assert get_postings_of(cache, connection, state, "apple", "kiwi", "pear") == [[(1, 2), (3, 1)], [(3, 1)], [(4, 1)]]
    connection.close()
