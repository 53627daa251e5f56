"""A program that repeatedly writes to Chroma until it is killed; each process first checks for lost data."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recollect.stores.chroma import ChromaStore
from recollect.stores.chroma.client import ChromaClient
from recollect.stores.writes import Delete
from recollect.testing.factories import EVERYTHING, SPACE, find_matching, find_nearest, list_ids, make_put, make_vector


def main(arguments: list[str]) -> None:
    """Run one process per LIFE, with the arguments URL LEDGER MUTANT LIFE….

    A life is the number of the write to Chroma at which the process is killed: before it (negative) or after it.
    """
    url, ledger, mutant, *lives = arguments
    if mutant:
        write_later()
    for life in [*lives, "0"]:
        child = os.fork()
        if child == 0:
            asyncio.run(_live(url, Path(ledger), int(life)))
            os._exit(0)
        os.waitpid(child, 0)


def write_later() -> None:
    """Become the mutant that acknowledges a write and passes it to Chroma after three more."""
    upsert, waiting = ChromaClient.upsert, list[tuple[Any, ...]]()

    def keep(self: ChromaClient, name: str, records: Any) -> None:
        if records:
            waiting.append((self, name, records))
        if len(waiting) > 3:
            upsert(*waiting.pop(0))

    setattr(ChromaClient, "upsert", keep)  # noqa: B010


async def _live(url: str, ledger: Path, ends_at: int) -> None:
    written = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    done = os.fstat(written).st_size
    store = await ChromaStore.open(url)
    for fault in await _find_faults(store, done):
        sys.stdout.write(f"after {done}: {fault}\n")
    sys.stdout.flush()
    if ends_at == 0:
        await store.close()
        return
    _end_at(ends_at)
    number = done
    while True:
        number += 1
        await store.write(
            make_put(f"i{number}", _point(number), f"w{number}", content=str(number)),
            make_put("count", [0, 0, 1, number], "counter", content=str(number)),
            Delete(SPACE, f"i{number - 3}"),
        )
        os.write(written, b".")


def _point(number: int) -> list[float]:
    """Return a vector that is far from those of the numbers before and after."""
    return [math.cos(number), math.sin(number), 0.0, 0.0]


def _end_at(step: int) -> None:
    """Kill this process before or after the given write to Chroma."""
    left = abs(step)

    def counted(change: Callable[..., None]) -> Callable[..., None]:
        def changed(*args: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0 and step < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            change(*args)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        return changed

    for name in ("upsert", "delete"):
        setattr(ChromaClient, name, counted(getattr(ChromaClient, name)))


async def _find_faults(store: ChromaStore, done: int) -> list[str]:
    """Return the acknowledged writes that are lost. Of the write that was killed, any part may be there."""
    found = {item.id: item.content for item in await store.find(EVERYTHING)}
    kept = {f"i{number}" for number in range(max(1, done - 1), done + 1)}
    deleted = {f"i{number}" for number in range(1, done - 2)}
    faults = [f"{id} is lost" for id in kept - found.keys()] + [f"{id} is back" for id in deleted & found.keys()]
    if done and int(found.get("count", 0)) not in (done, done + 1):
        faults.append(f"the counter is {found.get('count')}, {done} were acknowledged")
    if done:
        matched = await find_matching(store, EVERYTHING, f"w{done}")
        nearest = await find_nearest(store, EVERYTHING, make_vector(*_point(done)), limit=1)
        if list_ids(matched) != [f"i{done}"] or list_ids(nearest) != [f"i{done}"]:
            faults.append(f"found by term: {list_ids(matched)}, by vector: {list_ids(nearest)}")
    report = await store.check_integrity()
    return [*faults, *report.faults, *(["a vector is lost"] if report.missing_vectors else [])]


if __name__ == "__main__":
    main(sys.argv[1:])
