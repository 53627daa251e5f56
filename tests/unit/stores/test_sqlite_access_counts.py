"""Access counts of the SQLite store, which are buffered and written together."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from recollect.stores.search import EvidenceQuery
from recollect.stores.sqlite import SqliteStore, search
from recollect.stores.writes import Touch
from recollect.testing.factories import EVERYTHING, MODEL, SPACE, START, make_put, make_turn, make_vector

ASK = EvidenceQuery(EVERYTHING, make_vector(1, 0, 0, 0), (), 10, 0, MODEL)
LATER = START + timedelta(hours=1)


async def read_counts(store: SqliteStore) -> dict[str, tuple[int, object]]:
    """Return the access counts as a search sees them, without flushing."""
    items = await store.gather(ASK, lambda found, lookup: lookup.items(["a", "b"]))
    return {id: (item.access_count, item.last_accessed) for id, item in items.items()}


async def test_search_sees_unflushed_accesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "_ACCESS_FLUSH_SECONDS", 3600)
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(make_put("a", [1, 0, 0, 0]), make_put("b", [1, 0, 0, 0]))
    store.touch(Touch(SPACE, ("a", "b"), LATER))
    store.touch(Touch(SPACE, ("a",), START))
    store.touch(Touch(SPACE, ("gone",), START))
    assert await read_counts(store) == {"a": (2, LATER), "b": (1, LATER)}
    other = SqliteStore.open(tmp_path / "store.db")
    assert await read_counts(other) == {"a": (0, None), "b": (0, None)}
    [item] = await store.get(SPACE, "a")  # flushes the buffer first
    assert (item.access_count, item.last_accessed, item.version) == (2, LATER, 1)
    assert await read_counts(store) == await read_counts(other) == {"a": (2, LATER), "b": (1, LATER)}
    await other.close()
    await store.close()


async def test_close_writes_buffered_accesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "_ACCESS_FLUSH_SECONDS", 3600)
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(make_put("a", [1, 0, 0, 0]))
    store.touch(Touch(SPACE, ("a",), LATER))
    await store.close()
    await store.close()
    store = SqliteStore.open(tmp_path / "store.db")
    assert (await read_counts(store))["a"] == (1, LATER)
    await store.close()


async def test_buffered_accesses_are_flushed_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "_ACCESS_FLUSH_SECONDS", 0)
    store = SqliteStore.open(tmp_path / "store.db")
    other = SqliteStore.open(tmp_path / "store.db")
    await store.write(make_put("a", [1, 0, 0, 0]))
    store.touch(Touch(SPACE, ("a",), LATER))
    async with asyncio.timeout(10):
        while (await read_counts(other))["a"] != (1, LATER):
            pass
    await other.close()
    await store.close()


async def test_changed_speaker_is_visible_to_the_next_search(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(make_turn("a", "s", 0, "Ada", vector=[1, 0, 0, 0]))
    assert await store.gather(ASK, lambda found, lookup: found.speakers) == {"Ada"}
    await store.write(make_turn("a", "s", 0, "Bo"))
    assert await store.gather(ASK, lambda found, lookup: found.speakers) == {"Bo"}
    await store.close()
