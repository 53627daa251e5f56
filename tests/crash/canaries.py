"""Canaries: a hundred of each tier, each with a text, a rare word and a vector, to be looked for after an erasure."""

from __future__ import annotations

import base64
import json
import random
import re
import string
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import numpy as np

from recollect.runtime.codec import Author, encode
from recollect.stores.base import Records
from recollect.stores.ops import Append, Entry, Journal, Model, Put, Save, Write
from recollect.stores.sqlite import Key, SqliteStore
from recollect.stores.vectors import packed
from recollect.tiers.procedure import Procedure, item_of, version_id
from recollect.values import MemoryItem, Scope, Tier, Turn
from tests.crash.places import LogAndTasks

EACH = 100
DIM = 64
MODEL = Model("hash", DIM, "hash")
AT = datetime(2026, 3, 1, tzinfo=UTC)
LOGS: tuple[Tier, ...] = ("working", "conversation", "episodic")
# Items of any tier may lie in a records store: a turn of a conversation that is indexed, say.
RECORDS: tuple[Tier, ...] = ("semantic", "procedural", "lifecycle", "conversation")


@dataclass(frozen=True, slots=True)
class Canary:
    """What one row gives away."""

    text: str
    word: str
    vector: bytes = b""

    def left_in(self, data: bytes) -> bool:
        # The index keeps of a word what differs from the one before it: mostly all but its first letters.
        if self.text.encode() in data or self.word[4:].encode() in data:
            return True
        return bool(self.vector) and (self.vector in data or base64.b64encode(self.vector) in data)


def scope_of(user: str) -> Scope:
    return Scope("acme", user, "helper", f"session-of-{user}")


def words_for(user: str) -> Iterator[str]:
    chance = random.Random(user)
    while True:
        # An ending that no stemmer takes off.
        yield "".join(chance.choices(string.ascii_lowercase, k=14)) + "xq"


async def fill(path: Path, *users: str, key: Key | None = None) -> dict[str, dict[str, list[Canary]]]:
    """Put the canaries of some users into every tier of a file."""
    store = SqliteStore.open(path, readers=1, key=key)
    told = await fill_stores(store, store, *users)
    await store.close()
    return told


async def fill_stores(
    records: Records, logs: LogAndTasks, *users: str, each: int = EACH, at_once: int = 1, long: bool = False
) -> dict[str, dict[str, list[Canary]]]:
    """Put the canaries of some users into every tier, by turns, so that their rows lie among each other's.

    With `long`, some do not fit into a row and do not get shorter by packing. What to look for, by user and kind.
    """
    told: dict[str, dict[str, list[Canary]]] = {user: defaultdict(list) for user in users}
    words = {user: words_for(user) for user in users}
    chances = {user: np.random.default_rng(list(user.encode())) for user in users}
    waiting: list[Write] = []
    for n in range(each):
        for user in users:
            mine, word = told[user], words[user]
            said: list[Write] = []
            for tier in LOGS:
                mine[f"{tier} entries"].append(_entry(tier, user, n, next(word), said))
            for tier in RECORDS:
                mine[f"{tier} items"].append(_item(tier, user, n, next(word), chances[user], waiting))
            if cast(object, records) is logs:  # and then they lie among each other's as well
                said += waiting
                waiting.clear()
            await logs.write(*said)
            mine["tasks"].append(await _task(logs, user, n, next(word), long=long and n % 10 == 1))
        if (n + 1) % at_once == 0:
            await records.write(*waiting)
            waiting.clear()
    return told


def left(path: Path, told: dict[str, list[Canary]]) -> int:
    """How many canaries any byte of any file of the store still gives away."""
    return left_in(sorted(path.parent.glob(path.name + "*")), told)


def left_in(files: Iterable[Path], told: dict[str, list[Canary]]) -> int:
    data = b"\0".join(file.read_bytes() for file in files if file.is_file())
    return sum(canary.left_in(data) for some in told.values() for canary in some)


class Sieve:
    """Finds any of many canaries in one reading of many files."""

    def __init__(self, told: dict[str, list[Canary]]) -> None:
        every = [canary for some in told.values() for canary in some]
        self._words = {canary.word[4:].encode(): canary for canary in every}
        self._vectors = {canary.vector[:8]: canary for canary in every if canary.vector}
        self._begins = np.zeros(1 << 16, bool)
        self._begins[[int.from_bytes(begin[:2], "little") for begin in self._vectors]] = True

    def found(self, files: Iterable[Path]) -> dict[Path, set[str]]:
        """Which files give any away, and the words of those."""
        seen = {file: self._found_in(file.read_bytes()) for file in files}
        return {file: words for file, words in seen.items() if words}

    def _found_in(self, data: bytes) -> set[str]:
        words = {canary.word for match in _ENDINGS.finditer(data) if (canary := self._words.get(_word(data, match)))}
        for offset in (0, 1):
            pairs = np.frombuffer(data, "<u2", max(len(data) - offset, 0) // 2, min(offset, len(data)))
            for place in (np.flatnonzero(self._begins[pairs]) * 2 + offset).tolist():
                canary = self._vectors.get(data[place : place + 8])
                if canary is not None and data.startswith(canary.vector, place):
                    words.add(canary.word)
        return words


_ENDINGS = re.compile(b"xq")


def _word(data: bytes, ending: re.Match[bytes]) -> bytes:
    return data[max(ending.end() - 12, 0) : ending.end()]


def _text(tier: str, n: int, word: str) -> str:
    return f"The {word} of {tier} number {n} sings at dawn, and nobody else knows."


def _entry(tier: Tier, user: str, n: int, word: str, writes: list[Write]) -> Canary:
    text = _text(tier, n, word)
    entry = Entry(id=f"{user}-{tier}-{word}", kind="user", content=text, at=AT, metadata={f"m_{word}": word})
    writes.append(Append(space=scope_of(user).space(tier), entry=entry))
    return Canary(text, word)


def _item(tier: Tier, user: str, n: int, word: str, chance: np.random.Generator, writes: list[Write]) -> Canary:
    text, scope = _text(tier, n, word), scope_of(user)
    row = chance.normal(size=(1, DIM)).astype(np.float32)
    row /= np.linalg.norm(row)
    if tier == "procedural":
        key = f"do_{word}"
        procedure = Procedure(
            id=version_id(scope.space(tier), key, 1),
            key=key,
            version=1,
            body=text,
            description=word,
            tags=(),
            source="user",
            trust=1.0,
            created_at=AT,
        )
        item = item_of(procedure, scope)
    else:
        item = MemoryItem(
            id=f"{user}-{tier}-{word}",
            content=text,
            scope=replace(scope, session=None) if tier == "conversation" else scope,
            created_at=AT,
            tier=tier,
            metadata={f"m_{word}": word},
            key=f"k.{n // 2}" if tier == "semantic" else None,
            superseded_by=f"later-{n}" if n % 2 else None,
            turn=Turn(scope.session or "", n, "user") if tier == "conversation" else None,
            derived_from=(f"entry-{word}",) if tier == "conversation" else (),
        )
    terms = (word, tier, "sings", "dawn", f"n{n}")
    writes.append(Put(item=item, vectors=row, terms=terms, model=MODEL))
    return Canary(text, word, packed(row).tobytes())


async def _task(store: LogAndTasks, user: str, n: int, word: str, *, long: bool) -> Canary:
    scope, text = scope_of(user), _text("task", n, word)
    if long:
        text += "".join(random.Random(word).choices(string.ascii_letters, k=6000))
    state = encode({"told": text, "completed": [], "results": {}}, by=Author.of(scope), largest=1 << 20)
    space, task = scope.space("checkpoints"), f"{user}-{word}"
    await store.write(Save(space=space, task=task, state=state))
    if n % 10 == 0:  # some are in somebody's hands
        lease = await store.claim(space, task, "worker", timedelta(hours=1))
        note = Journal(
            space=space,
            task=task,
            step="step_0",
            status="completed",
            fence=lease.fence,
            attempts=1,
            idempotency_key=word,
            result=json.dumps(text),
        )
        await store.write(note)
    return Canary(text, word)
