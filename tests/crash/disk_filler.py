"""A process that writes until there is no room left, then reads, deletes, and opens the store again."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from recollect.errors import StoreError
from recollect.stores.sqlite import SqliteStore
from recollect.stores.writes import Delete
from tests.crash import mutants, turn_history
from tests.crash.acknowledgments import note

_PAGES = 100
_FILE_BYTES = 1_500_000
_DELETED = 10
_MOST_TURNS = 5000


async def fill(way: str, path: Path, notes: int) -> None:
    if way == "file size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    store = SqliteStore.open(path, readers=1)
    if way == "pages":
        await store._writer.submit(lambda connection: connection.pragma("max_page_count", _PAGES), durable=False)
    turn = await _until_full(store, notes)
    # Repeated: a rejected write must not leave partial state that affects the next one.
    for _ in range(3):
        await _expect_full(store, turn + 1, notes)
    for fault in await turn_history.find_faults(store, turn, turn):
        note(notes, "fault", fault)
    names = [name for name, _ in turn_history.expect_after(turn).items][:_DELETED]
    await _delete(store, names[:-1], notes)
    await store.close()

    store = SqliteStore.open(path, readers=1)
    await _delete(store, names[-1:], notes)
    left = {
        item.id
        for item in await store.get(turn_history.SPACE, *(name for name, _ in turn_history.expect_after(turn).items))
    }
    if left != {name for name, _ in turn_history.expect_after(turn).items} - set(names):
        note(notes, "fault", f"{len(left)} items remain after the deletions")
    for fault in await store.check():
        note(notes, "fault", fault)
    await store.close()
    note(notes, "end", turn)


async def _until_full(store: SqliteStore, notes: int) -> int:
    for turn in range(1, _MOST_TURNS):
        try:
            await store.write(*turn_history.make_batch(turn))
        except StoreError as error:
            note(notes, "refused", type(error).__name__)
            return turn - 1
    raise AssertionError("the disk was never full")


async def _expect_full(store: SqliteStore, turn: int, notes: int) -> None:
    try:
        await store.write(*turn_history.make_batch(turn))
    except StoreError as error:
        note(notes, "refused", type(error).__name__)
    else:
        note(notes, "fault", "a write to the full disk succeeded")


async def _delete(store: SqliteStore, names: list[str], notes: int) -> None:
    for name in names:
        try:
            await store.write(Delete(turn_history.SPACE, name))
        except StoreError as error:
            note(notes, "fault", f"not deleted: {type(error).__name__}")
        else:
            note(notes, "deleted", name)


if __name__ == "__main__":
    mutants.apply()
    asyncio.run(fill(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
