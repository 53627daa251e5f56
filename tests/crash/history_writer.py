"""A process that writes the turns of the history and notes each acknowledged turn."""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path

from recollect.stores.sqlite import SqliteStore
from tests.crash import mutants, turn_history
from tests.crash.acknowledgments import note

# Few, so that a short run has many checkpoints of the write-ahead log: restarting the log is the riskiest moment.
PAGES_BETWEEN_CHECKPOINTS = 60
_TURNS_AN_OPENING = 20


async def write_on(path: Path, notes: int, done: int) -> None:
    """Write turns until this process is killed."""
    store = SqliteStore.open(path, readers=1)
    for turn in count(done + 1):
        await store.write(*turn_history.make_batch(turn))
        note(notes, "ack", turn)


async def write_some(path: Path, notes: int, turns: int) -> None:
    """Write `turns` turns with many checkpoints of the write-ahead log, and reopen the store every 20 turns."""
    for first in range(1, turns + 1, _TURNS_AN_OPENING):
        store = SqliteStore.open(path, readers=1)
        await checkpoint_often(store)
        for turn in range(first, min(first + _TURNS_AN_OPENING, turns + 1)):
            await store.write(*turn_history.make_batch(turn))
            note(notes, "ack", turn)
        await store.close()


async def checkpoint_often(store: SqliteStore) -> None:
    await store._writer.submit(
        lambda connection: connection.wal_autocheckpoint(PAGES_BETWEEN_CHECKPOINTS), durable=False
    )


def main(arguments: list[str]) -> None:
    mutants.apply()
    match arguments:
        case ["on", path, notes, done]:
            asyncio.run(write_on(Path(path), int(notes), int(done)))
        case ["some", path, notes, turns]:
            asyncio.run(write_some(Path(path), int(notes), int(turns)))


if __name__ == "__main__":
    main(sys.argv[1:])
