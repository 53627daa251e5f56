"""A history in numbered turns, of which everybody knows what the store has to hold after each."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np

from recollect.stores.ops import Append, Delete, Entry, Model, Put, Save, Write, is_durable
from recollect.stores.sqlite import SqliteStore
from recollect.stores.where import Where
from recollect.values import MemoryItem, Scope

MODEL = Model("crash", 16, "f")
SCOPE = Scope(tenant="crash")
SPACE = SCOPE.space("semantic")
LOG = SCOPE.space("conversation")
TASKS = SCOPE.space("checkpoints")
START = datetime(2026, 1, 1, tzinfo=UTC)
TASK = "t"

_ALL = 10**6


@dataclass(frozen=True)
class Seen:
    """All that a store holds of the history. `saved` is what the newest checkpoint that is intact says."""

    items: tuple[tuple[str, str], ...] = ()
    entries: tuple[str, ...] = ()
    version: int = 0
    saved: int = 0


def row_of(name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A vector that only this name has, the same in every process."""
    return np.random.default_rng(list(name.encode())).normal(size=MODEL.dim).astype(np.float32)


def put(name: str, content: str) -> Put:
    item = MemoryItem(id=name, content=content, scope=SCOPE, created_at=START)
    return Put(item=item, vectors=row_of(name)[None], terms=("said", f"w{name}"), model=MODEL)


@cache
def text_of(turn: int) -> str:
    """Words that repeat nowhere: pages full of the same bytes would hide a torn one from a checksum."""
    chance = random.Random(turn)
    return f"turn {turn}: " + " ".join(f"{chance.getrandbits(40):x}" for _ in range(chance.randint(5, 120)))


def is_fast(turn: int) -> bool:
    """Every fourth turn is an entry of the fast class."""
    return turn % 4 == 0


def batch(turn: int) -> list[Write]:
    """What this turn writes, as one batch: it has to live or die together."""
    entry = Entry(id=f"e{turn}", kind="note", content=text_of(turn), at=START)
    if is_fast(turn):
        return [Append(space=LOG, entry=entry)]
    # The fill is the same byte over and over, which is what SQLite's own checksum sees least of.
    state = json.dumps({"turn": turn, "fill": "x" * 2000})
    writes: list[Write] = [
        put(f"f{turn}", text_of(turn)),
        put("latest", f"latest is {turn}"),
        Append(space=LOG, entry=entry, durable=True),
        Save(space=TASKS, task=TASK, state=state, expect=_version(turn) - 1),
    ]
    if turn % 5 == 1:
        writes.append(Delete(SPACE, f"f{turn - 3}"))
    return writes


def durable_before(turn: int) -> int:
    """The last turn up to this one that was promised to survive a power cut."""
    return next((one for one in range(turn, 0, -1) if any(map(is_durable, batch(one)))), 0)


@cache
def after(turn: int) -> Seen:
    """What there is to see once the turn is committed."""
    if turn == 0:
        return Seen()
    before = after(turn - 1)
    entries = (*before.entries, f"e{turn}")
    if is_fast(turn):
        return replace(before, entries=entries)
    items = dict(before.items) | {f"f{turn}": text_of(turn), "latest": f"latest is {turn}"}
    if turn % 5 == 1:
        items.pop(f"f{turn - 3}", None)
    return Seen(tuple(sorted(items.items())), entries, _version(turn), turn)


async def seen(store: SqliteStore) -> Seen:
    items = await store.find(Where(SPACE), limit=_ALL)
    entries = await store.read(LOG, limit=_ALL)
    task = await store.task(TASKS, TASK)
    intact = [one for one in await store.checkpoints(TASKS, TASK) if one.intact]
    assert all(entry.content == text_of(int(entry.id[1:])) for entry in entries), "an entry has another's words"
    return Seen(
        tuple(sorted((item.id, item.content) for item in items)),
        tuple(entry.id for entry in entries),
        task.version if task else 0,
        json.loads(intact[0].state)["turn"] if intact else 0,
    )


def turn_of(what: Seen) -> int | None:
    """The turn after which a store looks like this; None when it looks like no moment of the history."""
    turn = int(what.entries[-1][1:]) if what.entries else 0
    return turn if after(turn) == what else None


async def faults(store: SqliteStore, least: int, most: int) -> list[str]:
    """What is wrong with a store that was told to keep `least` turns and was given `most`."""
    what = await seen(store)
    turn = turn_of(what)
    found = await store.check()
    if turn is None:
        return [*found, f"no moment of the history looks like {what}"]
    if turn < least:
        found.append(f"turn {least} was acknowledged, and only {turn} are there")
    if turn > most:
        found.append(f"turn {turn} is there, and only {most} were written")
    return found


def _version(turn: int) -> int:
    return turn - turn // 4
