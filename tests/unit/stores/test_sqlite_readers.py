"""Reader threads: each query sees the newest data, also after a failed query."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import apsw
import pytest

from recollect.errors import StoreClosed
from recollect.stores.sqlite import SqliteStore
from recollect.testing.factories import SPACE, list_ids, make_put


async def test_failed_query_releases_its_snapshot(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db", readers=1)
    await store.write(*(make_put(f"i{n}") for n in range(5)))

    def fails(connection: apsw.Connection) -> None:
        rows = connection.execute("select id from records")
        next(rows)
        raise KeyError("half-way")

    with pytest.raises(KeyError) as kept:  # the exception keeps its frame and the open statement alive
        await store._readers.submit(fails)
    await store.write(make_put("late"))
    assert list_ids(await store.get(SPACE, "late")) == ["late"]
    assert kept.value.args == ("half-way",)
    await store.close()


async def test_slow_query_does_not_block_others(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(make_put("a"))
    started, go_on = threading.Event(), threading.Event()

    def block(_: apsw.Connection) -> bool:
        started.set()
        return go_on.wait(30)

    slow = [asyncio.create_task(store._readers.submit(block)) for _ in range(3)]
    await asyncio.to_thread(started.wait, 10)
    try:
        async with asyncio.timeout(10):
            assert list_ids(await store.get(SPACE, "a")) == ["a"]
        assert not any(task.done() for task in slow)
    finally:
        go_on.set()
    assert await asyncio.gather(*slow) == [True] * 3
    await store.close()


async def test_every_query_is_answered_once(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    answered: list[int] = []
    pauses = threading.Event()

    def query(number: int, _: apsw.Connection) -> int:
        pauses.wait(0.008 if number % 20 == 0 else 0)  # longer than a query waits for a reader
        answered.append(number)
        return number

    pending = [store._readers.submit(partial(query, number)) for number in range(200)]
    assert await asyncio.gather(*pending) == list(range(200))
    assert sorted(answered) == list(range(200))
    await store.close()


async def test_close_answers_pending_queries(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(make_put("a"))
    pending = [asyncio.create_task(store.get(SPACE, "a")) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert [list_ids(found) for found in await asyncio.gather(*pending)] == [["a"]] * 50
    with pytest.raises(StoreClosed):
        await store.get(SPACE, "a")
