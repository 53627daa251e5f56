"""One of many processes on a shared file: it writes, deletes, and looks for what the others were told is safe."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recollect.errors import RecollectError
from recollect.stores.ops import Append, Delete, Entry, Touch
from recollect.stores.sqlite import SqliteStore
from recollect.stores.where import Where
from tests.crash import mutants
from tests.crash.history import LOG, SPACE, START, put, row_of


class Told:
    """What a process was told is safe: one line each, in a file that is not the store's, for all to read."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *words: str) -> None:
        # One write call: it is with the kernel before the next line of this program can be killed.
        os.write(self._file, (" ".join(words) + "\n").encode())

    @staticmethod
    def read(path: Path) -> Iterator[list[str]]:
        if path.exists():
            lines = path.read_text().split("\n")[:-1]
            yield from (line.split(" ") for line in lines)


async def work(path: Path, me: int, many: int, seconds: float) -> None:
    """Write, delete and read among many others, and look at each turn for what another has just written."""
    report: dict[str, Any] = {"writes": 0, "reads": 0, "stale": [], "errors": [], "slowest": 0.0}
    store = SqliteStore.open(path, readers=2)
    told = Told(path.with_name(f"told{me}"))
    deadline = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < deadline:
        turn += 1
        began = time.perf_counter()
        try:
            await _write(store, told, me, turn)
            report["writes"] += 1
            stale = await _look(store, path.with_name(f"told{(me + turn) % many}"))
            report["reads"] += 3
            report["stale"] += stale
        except RecollectError as error:
            report["errors"].append(f"{type(error).__name__}: {error}")
        report["slowest"] = max(report["slowest"], time.perf_counter() - began)
    await store.close()
    sys.stdout.write(json.dumps(report) + "\n")


async def _write(store: SqliteStore, told: Told, me: int, turn: int) -> None:
    name = f"{me}x{turn}"
    entry = Append(space=LOG, entry=Entry(id=name, kind="note", content=name, at=START))
    await store.write(put(name, f"said by {name}"), entry, Touch(SPACE, (name,), START))
    told.note("put", name)
    if turn % 25 == 0:
        old = f"{me}x{turn - 20}"
        told.note("deleting", old)
        await store.write(Delete(SPACE, old))
        told.note("deleted", old)


async def _look(store: SqliteStore, told: Path) -> list[str]:
    """What the other was told is safe has to be found by the very next query, whichever way it is asked."""
    names = [line[1] for line in Told.read(told) if line[0] == "put"]
    if not names:
        return []
    name = names[-1]
    near = await store.nearest(Where(SPACE), row_of(name), limit=1)
    match = await store.matching(Where(SPACE), (f"w{name}",), limit=1)
    kept = await store.get(SPACE, name)
    missing = []
    if [one.brief.id for one in near] != [name]:
        missing.append(f"nearest {name}")
    if [one.brief.id for one in match.found] != [name]:
        missing.append(f"matching {name}")
    if [one.id for one in kept] != [name]:
        missing.append(f"get {name}")
    return missing


if __name__ == "__main__":
    mutants.apply()
    store_path, number, of, lasting = sys.argv[1:]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    asyncio.run(work(Path(store_path), int(number), int(of), float(lasting)))
