"""Readers of the file: each question is answered as of now, whatever became of the one before."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import apsw
import pytest

from recollect.errors import StoreClosed
from recollect.stores.sqlite import SqliteStore
from recollect.testing.samples import SPACE, ids, put


async def test_a_question_that_failed_half_way_leaves_nobody_in_the_past(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db", readers=1)
    await store.write(*(put(f"i{n}") for n in range(5)))

    def fails(connection: apsw.Connection) -> None:
        rows = connection.execute("select id from records")
        next(rows)
        raise KeyError("half-way")

    with pytest.raises(KeyError) as kept:  # and with the exception its frame, and with that the open statement
        await store._readers.ask(fails)
    await store.write(put("late"))
    assert ids(await store.get(SPACE, "late")) == ["late"]
    assert kept.value.args == ("half-way",)
    await store.close()


async def test_a_slow_question_holds_up_nobody(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(put("a"))
    begun, go_on = threading.Event(), threading.Event()

    def slowly(_: apsw.Connection) -> bool:
        begun.set()
        return go_on.wait(30)

    slow = [asyncio.create_task(store._readers.ask(slowly)) for _ in range(3)]
    await asyncio.to_thread(begun.wait, 10)
    try:
        async with asyncio.timeout(10):
            assert ids(await store.get(SPACE, "a")) == ["a"]
        assert not any(task.done() for task in slow)
    finally:
        go_on.set()
    assert await asyncio.gather(*slow) == [True] * 3
    await store.close()


async def test_every_question_is_answered_once_whoever_takes_it(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    answered: list[int] = []
    pauses = threading.Event()

    def question(number: int, _: apsw.Connection) -> int:
        pauses.wait(0.008 if number % 20 == 0 else 0)  # longer than a question waits for its turn
        answered.append(number)
        return number

    asked = [store._readers.ask(partial(question, number)) for number in range(200)]
    assert await asyncio.gather(*asked) == list(range(200))
    assert sorted(answered) == list(range(200))
    await store.close()


async def test_what_was_asked_before_the_end_is_answered(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(put("a"))
    asked = [asyncio.create_task(store.get(SPACE, "a")) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert [ids(found) for found in await asyncio.gather(*asked)] == [["a"]] * 50
    with pytest.raises(StoreClosed):
        await store.get(SPACE, "a")
