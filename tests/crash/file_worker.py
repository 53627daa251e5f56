"""One of many processes on a shared file: it writes, deletes, and reads what the others have just written."""

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
from recollect.stores.filters import Where
from recollect.stores.sqlite import SqliteStore
from recollect.stores.writes import Append, Delete, Entry, Touch
from recollect.testing.factories import find_matching, find_nearest
from tests.crash import mutants
from tests.crash.turn_history import LOG, SPACE, START, make_put, make_row


class AckFile:
    """The acknowledged writes of a process, one line each, in a file that all processes read."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *words: str) -> None:
        # One system call: a kill after it cannot lose the line.
        os.write(self._file, (" ".join(words) + "\n").encode())

    @staticmethod
    def read(path: Path) -> Iterator[list[str]]:
        if path.exists():
            lines = path.read_text().split("\n")[:-1]
            yield from (line.split(" ") for line in lines)


async def work(path: Path, me: int, many: int, seconds: float) -> None:
    """Write and delete for `seconds`, and after each write read the newest write of another process."""
    report: dict[str, Any] = {"writes": 0, "reads": 0, "stale": [], "errors": [], "slowest": 0.0}
    store = SqliteStore.open(path, readers=2)
    acks = AckFile(path.with_name(f"acks{me}"))
    deadline = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < deadline:
        turn += 1
        began = time.perf_counter()
        try:
            await _write(store, acks, me, turn)
            report["writes"] += 1
            stale = await _look(store, path.with_name(f"acks{(me + turn) % many}"))
            report["reads"] += 3
            report["stale"] += stale
        except RecollectError as error:
            report["errors"].append(f"{type(error).__name__}: {error}")
        report["slowest"] = max(report["slowest"], time.perf_counter() - began)
    await store.close()
    sys.stdout.write(json.dumps(report) + "\n")


async def _write(store: SqliteStore, acks: AckFile, me: int, turn: int) -> None:
    name = f"{me}x{turn}"
    entry = Append(space=LOG, entry=Entry(id=name, kind="note", content=name, at=START))
    await store.write(make_put(name, f"said by {name}"), entry, Touch(SPACE, (name,), START))
    acks.note("put", name)
    if turn % 25 == 0:
        old = f"{me}x{turn - 20}"
        acks.note("deleting", old)
        await store.write(Delete(SPACE, old))
        acks.note("deleted", old)


async def _look(store: SqliteStore, acks: Path) -> list[str]:
    """Return the queries that do not find the newest acknowledged write of another process."""
    names = [line[1] for line in AckFile.read(acks) if line[0] == "put"]
    if not names:
        return []
    name = names[-1]
    near = await find_nearest(store, Where(SPACE), make_row(name), limit=1)
    match = await find_matching(store, Where(SPACE), f"w{name}", limit=1)
    kept = await store.get(SPACE, name)
    missing = []
    if [hit.brief.id for hit in near] != [name]:
        missing.append(f"nearest {name}")
    if [hit.brief.id for hit in match] != [name]:
        missing.append(f"matching {name}")
    if [hit.id for hit in kept] != [name]:
        missing.append(f"get {name}")
    # A slow reader is overtaken: the writer deletes its item after twenty more.
    return [] if ["deleting", name] in AckFile.read(acks) else missing


if __name__ == "__main__":
    mutants.apply()
    store_path, number, of, lasting = sys.argv[1:]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    asyncio.run(work(Path(store_path), int(number), int(of), float(lasting)))
