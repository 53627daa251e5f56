"""A process that works on a shared store and writes down, outside of it, what was acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from recollect.errors import RecollectError
from recollect.stores.ops import Append, Delete, Entry, Model, Put, Save, Touch
from recollect.stores.sqlite import SqliteStore
from recollect.stores.where import Where
from recollect.values import MemoryItem, Scope

MODEL = Model("crash", 16, "f")
SCOPE = Scope(tenant="crash")
SPACE = SCOPE.space("semantic")
LOG = SCOPE.space("conversation")
TASKS = SCOPE.space("checkpoints")
START = datetime(2026, 1, 1, tzinfo=UTC)


def row_of(name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A vector that only this name has, the same in every process."""
    return np.random.default_rng(list(name.encode())).normal(size=MODEL.dim).astype(np.float32)


def put(name: str) -> Put:
    item = MemoryItem(id=name, content=f"said by {name}", scope=SCOPE, created_at=START)
    return Put(item=item, vectors=row_of(name)[None], terms=("said", name.replace("-", "x")), model=MODEL)


class Oracle:
    """What a process was told is safe: one line each, in a file that is not the store's."""

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


async def soak(path: Path, me: int, many: int, seconds: float) -> None:
    """Write, delete and read among many others, and look at each turn for what another has just written."""
    store = SqliteStore.open(path, readers=2)
    oracle = Oracle(path.with_name(f"oracle{me}"))
    report: dict[str, Any] = {"writes": 0, "reads": 0, "stale": [], "errors": [], "slowest": 0.0}
    deadline = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < deadline:
        turn += 1
        began = time.perf_counter()
        try:
            await _write(store, oracle, me, turn)
            report["writes"] += 1
            stale = await _look(store, path.with_name(f"oracle{(me + turn) % many}"))
            report["reads"] += 3
            report["stale"] += stale
        except RecollectError as error:
            report["errors"].append(f"{type(error).__name__}: {error}")
        report["slowest"] = max(report["slowest"], time.perf_counter() - began)
    await store.close()
    sys.stdout.write(json.dumps(report) + "\n")


async def _write(store: SqliteStore, oracle: Oracle, me: int, turn: int) -> None:
    name = f"{me}-{turn}"
    entry = Append(space=LOG, entry=Entry(id=name, kind="note", content=name, at=START))
    await store.write(put(name), entry, Touch(SPACE, (name,), START))
    oracle.note("put", name)
    if turn % 25 == 0:
        old = f"{me}-{turn - 20}"
        oracle.note("deleting", old)
        await store.write(Delete(SPACE, old))
        oracle.note("deleted", old)


async def _look(store: SqliteStore, oracle: Path) -> list[str]:
    """What the other was told is safe has to be found by the very next query, whichever way it is asked."""
    names = [line[1] for line in Oracle.read(oracle) if line[0] == "put"]
    if not names:
        return []
    name = names[-1]
    near = await store.nearest(Where(SPACE), row_of(name), limit=1)
    match = await store.matching(Where(SPACE), (name.replace("-", "x"),), limit=1)
    kept = await store.get(SPACE, name)
    missing = []
    if [one.brief.id for one in near] != [name]:
        missing.append(f"nearest {name}")
    if [one.brief.id for one in match.found] != [name]:
        missing.append(f"matching {name}")
    if [one.id for one in kept] != [name]:
        missing.append(f"get {name}")
    return missing


async def write_until_killed(path: Path) -> None:
    """Batches of an item, an entry and a checkpoint, which have to live or die together."""
    store = SqliteStore.open(path, readers=1)
    oracle = Oracle(path.with_name("oracle"))
    newest = await store.checkpoint(TASKS, "t")
    version = newest.version if newest else 0
    while True:
        version += 1
        name = f"v{version}"
        await store.write(
            put(name),
            Append(space=LOG, entry=Entry(id=name, kind="note", content=name, at=START)),
            Save(space=TASKS, task="t", state=json.dumps({"version": version, "fill": "x" * 3000}), expect=version - 1),
        )
        oracle.note("put", name)


def nursery(path: Path) -> None:
    """Start a child for every line that comes in: a fork costs less than loading everything again."""
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(write_until_killed(path))
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        os.waitpid(child, 0)
        sys.stdout.write("gone\n")
        sys.stdout.flush()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["soak", path, me, many, seconds]:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.readline()
            asyncio.run(soak(Path(path), int(me), int(many), float(seconds)))
        case ["nursery", path]:
            nursery(Path(path))
