"""A program that writes to Chroma until it is killed, again and again; each life begins by looking for damage."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from recollect.stores.chroma import ChromaStore
from recollect.stores.chroma.batch import Batch
from recollect.stores.chroma.engine import Engine
from recollect.stores.ops import Delete
from recollect.stores.where import Where
from recollect.testing.samples import BOB, EVERYTHING, SPACE, ids, put, vector

BOBS = BOB.space("semantic")


def main(arguments: list[str]) -> None:
    """URL LEDGER MUTANT LIFE…, where a life is the number of the step that it ends at, before (-) or after (+) it."""
    url, ledger, mutant, *lives = arguments
    if mutant:
        placed_first()
    for life in [*lives, "0"]:
        child = os.fork()
        if child == 0:
            asyncio.run(_live(url, Path(ledger), int(life)))
            os._exit(0)
        os.waitpid(child, 0)


def placed_first() -> None:
    """The mutant: a batch is put into its places without having been written down as a whole before."""
    added = Engine._added

    def without_journal(self: Engine, batch: Batch) -> bool:
        self.places.put([batch], batch.models)
        return added(self, batch)

    setattr(Engine, "_added", without_journal)  # noqa: B010


async def _live(url: str, ledger: Path, ends_at: int) -> None:
    written = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    done = os.fstat(written).st_size
    store = await ChromaStore.open(url, settle_after=4)
    for fault in await _faults(store, done):
        sys.stdout.write(f"after {done}: {fault}\n")
    sys.stdout.flush()
    if ends_at == 0:
        await store.close()
        return
    _end_at(store, ends_at)
    number = await _reached(store)
    os.ftruncate(written, number)
    while True:
        number += 1
        await store.write(
            put("count", [1, number, 0, 0], f"w{number}", content=str(number)),
            put("count", [1, number, 0, 0], f"w{number}", content=str(number), scope=BOB),
            put(f"i{number}", [0, 0, 1, number], "kept", content=str(number)),
            Delete(SPACE, f"i{number - 3}"),
        )
        os.write(written, b".")


def _end_at(store: ChromaStore, step: int) -> None:
    """Kill this process at one of the steps by which Chroma is changed."""
    collections = store._engine.collections
    left = abs(step)
    add, delete = collections.add, collections.delete

    def counted(change: Any) -> Any:
        def changed(*given: Any, **named: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0 and step < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            change(*given, **named)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        return changed

    setattr(collections, "add", counted(add))  # noqa: B010
    setattr(collections, "delete", counted(delete))  # noqa: B010


async def _reached(store: ChromaStore) -> int:
    found = await store.get(SPACE, "count")
    return int(found[0].content) if found else 0


async def _faults(store: ChromaStore, done: int) -> list[str]:
    number = await _reached(store)
    found = []
    if number not in (done, done + 1):
        found.append(f"{number} batches are there, of {done} that were acknowledged")
    his = await store.get(BOBS, "count")
    if (int(his[0].content) if his else 0) != number:
        found.append(f"half a batch: {number} in one space, {[one.content for one in his]} in the other")
    expected = {"count", *(f"i{n}" for n in range(max(1, number - 2), number + 1))} if number else set()
    if (there := {one.id for one in await store.find(EVERYTHING)}) != expected:
        found.append(f"{sorted(there)} are there, not {sorted(expected)}")
    if number:
        for where in (EVERYTHING, Where(BOBS)):
            matched = await store.matching(where, (f"w{number}",))
            nearest = await store.nearest(where, vector(1, number, 0, 0), limit=1)
            if ids(matched.found) != ["count"] or ids(nearest) != ["count"]:
                found.append(f"found by word: {ids(matched.found)}, by meaning: {ids(nearest)}")
    return found + await store.check()


if __name__ == "__main__":
    main(sys.argv[1:])
