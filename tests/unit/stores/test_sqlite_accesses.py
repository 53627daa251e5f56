"""Accesses are written together, a moment later, and nobody can tell."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from recollect.stores.evidence import Ask
from recollect.stores.ops import Touch
from recollect.stores.sqlite import SqliteStore
from recollect.stores.sqlite import store as sqlite_store
from recollect.testing.samples import EVERYTHING, MODEL, SPACE, START, put, turn, vector

ASK = Ask(EVERYTHING, vector(1, 0, 0, 0), (), 10, 0, MODEL)
LATER = START + timedelta(hours=1)


async def counts(store: SqliteStore) -> dict[str, tuple[int, object]]:
    """As a search sees them, which waits for nothing."""
    items = await store.gather(ASK, lambda found, lookup: lookup.items(["a", "b"]))
    return {id: (item.access_count, item.last_accessed) for id, item in items.items()}


async def test_the_next_search_sees_an_access_that_is_not_written_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_store, "_COUNTED_WITHIN", 3600)
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(put("a", [1, 0, 0, 0]), put("b", [1, 0, 0, 0]))
    store.touch(Touch(SPACE, ("a", "b"), LATER))
    store.touch(Touch(SPACE, ("a",), START))
    store.touch(Touch(SPACE, ("gone",), START))
    assert await counts(store) == {"a": (2, LATER), "b": (1, LATER)}
    other = SqliteStore.open(tmp_path / "store.db")
    assert await counts(other) == {"a": (0, None), "b": (0, None)}
    [item] = await store.get(SPACE, "a")  # has them written first
    assert (item.access_count, item.last_accessed, item.version) == (2, LATER, 1)
    assert await counts(store) == await counts(other) == {"a": (2, LATER), "b": (1, LATER)}
    await other.close()
    await store.close()


async def test_what_was_counted_is_written_when_the_store_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_store, "_COUNTED_WITHIN", 3600)
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(put("a", [1, 0, 0, 0]))
    store.touch(Touch(SPACE, ("a",), LATER))
    await store.close()
    await store.close()
    store = SqliteStore.open(tmp_path / "store.db")
    assert (await counts(store))["a"] == (1, LATER)
    await store.close()


async def test_accesses_are_written_without_anybody_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_store, "_COUNTED_WITHIN", 0)
    store = SqliteStore.open(tmp_path / "store.db")
    other = SqliteStore.open(tmp_path / "store.db")
    await store.write(put("a", [1, 0, 0, 0]))
    store.touch(Touch(SPACE, ("a",), LATER))
    async with asyncio.timeout(10):
        while (await counts(other))["a"] != (1, LATER):
            pass
    await other.close()
    await store.close()


async def test_a_speaker_who_is_changed_alone_is_known_to_the_next_search(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(turn("a", "s", 0, "Ada", vector=[1, 0, 0, 0]))
    assert await store.speakers(SPACE) == {"Ada"}
    await store.write(turn("a", "s", 0, "Bo"))
    assert await store.speakers(SPACE) == {"Bo"}
    assert await store.gather(ASK, lambda found, lookup: found.speakers) == {"Bo"}
    await store.close()
