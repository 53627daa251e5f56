"""A deterministic history of numbered turns, with the expected content of the store after each."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np

from recollect.stores.filters import Where
from recollect.stores.sqlite import SqliteStore
from recollect.stores.writes import Append, Delete, Entry, Model, Put, Save, Write, is_durable
from recollect.types import MemoryItem, Scope

MODEL = Model("crash", 16, "f")
SCOPE = Scope(tenant="crash")
SPACE = SCOPE.space("semantic")
LOG = SCOPE.space("conversation")
TASKS = SCOPE.space("checkpoints")
START = datetime(2026, 1, 1, tzinfo=UTC)
TASK = "t"

_ALL = 10**6


@dataclass(frozen=True)
class Snapshot:
    """The content of a store. `saved` is the turn in the newest intact checkpoint."""

    items: tuple[tuple[str, str], ...] = ()
    entries: tuple[str, ...] = ()
    version: int = 0
    saved: int = 0


def make_row(name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a vector derived from the name, the same in every process."""
    return np.random.default_rng(list(name.encode())).normal(size=MODEL.dim).astype(np.float32)


def make_put(name: str, content: str) -> Put:
    item = MemoryItem(id=name, content=content, scope=SCOPE, created_at=START)
    return Put(item=item, vectors=make_row(name)[None], terms=("said", f"w{name}"), model=MODEL)


@cache
def make_text(turn: int) -> str:
    """Return a text without repetition: a checksum may miss a torn page among pages of equal bytes."""
    rng = random.Random(turn)
    return f"turn {turn}: " + " ".join(f"{rng.getrandbits(40):x}" for _ in range(rng.randint(5, 120)))


def is_fast(turn: int) -> bool:
    """Return whether the turn is an entry of the fast durability class: every fourth is."""
    return turn % 4 == 0


def make_batch(turn: int) -> list[Write]:
    """Return the writes of this turn, one atomic batch."""
    entry = Entry(id=f"e{turn}", kind="note", content=make_text(turn), at=START)
    if is_fast(turn):
        return [Append(space=LOG, entry=entry)]
    # One repeated byte: SQLite's checksum detects changes in such content least.
    state = json.dumps({"turn": turn, "fill": "x" * 2000})
    writes: list[Write] = [
        make_put(f"f{turn}", make_text(turn)),
        make_put("latest", f"latest is {turn}"),
        Append(space=LOG, entry=entry, durable=True),
        Save(space=TASKS, task=TASK, state=state, expect=_version(turn) - 1),
    ]
    if turn % 5 == 1:
        writes.append(Delete(SPACE, f"f{turn - 3}"))
    return writes


def durable_before(turn: int) -> int:
    """Return the last turn up to this one that must survive a power loss."""
    return next((number for number in range(turn, 0, -1) if any(map(is_durable, make_batch(number)))), 0)


@cache
def expect_after(turn: int) -> Snapshot:
    """Return the expected content of the store after the turn is committed."""
    if turn == 0:
        return Snapshot()
    before = expect_after(turn - 1)
    entries = (*before.entries, f"e{turn}")
    if is_fast(turn):
        return replace(before, entries=entries)
    items = dict(before.items) | {f"f{turn}": make_text(turn), "latest": f"latest is {turn}"}
    if turn % 5 == 1:
        items.pop(f"f{turn - 3}", None)
    return Snapshot(tuple(sorted(items.items())), entries, _version(turn), turn)


async def load_snapshot(store: SqliteStore) -> Snapshot:
    items = await store.find(Where(SPACE), limit=_ALL)
    entries = await store.read(LOG, limit=_ALL)
    task = await store.task(TASKS, TASK)
    intact = [number for number in await store.checkpoints(TASKS, TASK) if number.intact]
    assert all(entry.content == make_text(int(entry.id[1:])) for entry in entries), (
        "an entry has the content of another turn"
    )
    return Snapshot(
        tuple(sorted((item.id, item.content) for item in items)),
        tuple(entry.id for entry in entries),
        task.version if task else 0,
        json.loads(intact[0].state)["turn"] if intact else 0,
    )


def find_turn(what: Snapshot) -> int | None:
    """Return the turn after which a store has this content, or None if there is none."""
    turn = int(what.entries[-1][1:]) if what.entries else 0
    return turn if expect_after(turn) == what else None


async def find_faults(store: SqliteStore, least: int, most: int) -> list[str]:
    """Return the faults of a store that acknowledged `least` turns and was given `most`."""
    what = await load_snapshot(store)
    turn = find_turn(what)
    found = await store.check()
    if turn is None:
        return [*found, f"the content matches no turn of the history: {what}"]
    if turn < least:
        found.append(f"turn {least} was acknowledged, and the store has only {turn}")
    if turn > most:
        found.append(f"the store has turn {turn}, and only {most} were written")
    return found


def _version(turn: int) -> int:
    return turn - turn // 4
