"""Stored task states: unchanged pages are not rewritten, and every version is complete."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import BadInput
from recollect.stores.sqlite import SqliteStore, tasks
from recollect.stores.writes import Save
from recollect.testing.factories import TASKS

PAGE = 8192
LONG = "x" * 100_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "store.db")
    yield opened
    await opened.close()


async def save_states(store: SqliteStore, *given: str) -> None:
    for state in given:
        await store.write(Save(space=TASKS, task="t", state=state))


async def count_written_pages(store: SqliteStore, state: str) -> int:
    """Save a state and return the number of pages that it writes to the WAL."""

    def restart_wal(connection: apsw.Connection) -> None:
        store._writer._connection.execute("commit")
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        connection.execute("begin immediate")

    await store._writer.submit(restart_wal, durable=False)
    await save_states(store, state)
    return store.path.with_name(store.path.name + "-wal").stat().st_size // PAGE


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8")), st.integers(0, 200_000))
def test_padded_state_round_trips(end: str, size: int):
    state = "é" * (size // 2) + end
    text, checksum = tasks.pad_state(state), tasks.hash_state(state)
    assert tasks.decode_state(text.encode(), checksum) == (state, True)
    assert len(text.encode()) <= len(state.encode()) * 9 / 8
    if state:
        assert tasks.decode_state(text.encode()[1:], checksum)[1] is False


async def test_appending_to_a_long_state_rewrites_few_pages(store: SqliteStore):
    # Mutants: no padding; the new version is inserted and the oldest deleted. Both write more than 24 pages.
    await save_states(store, *(f'{{"text":"{LONG}","n":[{"1," * n}0]}}' for n in range(5)))
    assert await count_written_pages(store, f'{{"text":"{LONG}","n":[{"1," * 5}0]}}') < 8


async def test_every_version_is_stored_whole(store: SqliteStore):
    given = [f'{{"text":"{LONG}","n":{n}}}' for n in range(9)]
    await save_states(store, *given)
    assert [(one.version, one.state, one.intact) for one in await store.checkpoints(TASKS, "t")] == [
        (9, given[8], True),
        (8, given[7], True),
        (7, given[6], True),
    ]
    other = apsw.Connection(str(store.path))
    other.execute("update checkpoints set state = replace(state, 'xxx', 'xyx') where version = 9")
    other.close()
    assert [one.intact for one in await store.checkpoints(TASKS, "t")] == [False, True, True]
    assert await store.check() == ["version 9 of task 't' does not fit its checksum"]


async def test_state_can_grow_and_shrink(store: SqliteStore):
    given = [f'"{"é" * size}"' for size in (10, 100_000, 10, 8000, 3999, 4000, 4001, 60_000, 0, 1)]
    for place, state in enumerate(given):
        await save_states(store, state)
        kept = [one.state for one in await store.checkpoints(TASKS, "t")]
        assert kept == given[max(place - 2, 0) : place + 1][::-1]
        assert await store.check() == []


async def test_given_checksum_is_stored(store: SqliteStore):
    right = hashlib.sha256(b"[1]").hexdigest()
    await store.write(Save(space=TASKS, task="t", state="[1]", sha256=right))
    await store.write(Save(space=TASKS, task="t", state="[2]", sha256=right))
    assert [one.intact for one in await store.checkpoints(TASKS, "t")] == [False, True]
    for bad in ("", right[1:], right.upper(), "z" * 64):
        with pytest.raises(BadInput, match="64 hex digits"):
            await store.write(Save(space=TASKS, task="t", state="[3]", sha256=bad))


async def test_event_loop_that_ends_early_does_not_stop_the_writer(store: SqliteStore):
    # Mutant: no `suppress` around the wake-up of the event loop, so that the writer thread ends.
    def run_in_own_loop() -> None:
        async def leave() -> None:
            waiting = asyncio.ensure_future(save_states(store, "[1]"))
            await asyncio.sleep(0)
            waiting.cancel()

        asyncio.run(leave())

    for _ in range(20):
        await asyncio.to_thread(run_in_own_loop)
    await save_states(store, "[2]")
    found = await store.checkpoint(TASKS, "t")
    assert found is not None
    assert (found.version, found.state) == (21, "[2]")
