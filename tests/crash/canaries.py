"""Canaries: a hundred rows of each tier, each with a text, a rare word and a vector, to search for after an erasure."""

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

from recollect.durable.state_codec import StateEncoder
from recollect.stores.base import Records
from recollect.stores.codec import pack_vectors
from recollect.stores.sqlite import EncryptionKey, SqliteStore
from recollect.stores.writes import Append, Entry, Journal, Model, Put, Save, Write
from recollect.tiers.procedural import Procedure, procedure_to_item, procedure_version_id
from recollect.types import MemoryItem, Scope, Tier, Turn
from tests.crash.store_locations import LogAndTasks

EACH = 100
DIM = 64
MODEL = Model("hash", DIM, "hash")
AT = datetime(2026, 3, 1, tzinfo=UTC)
LOGS: tuple[Tier, ...] = ("working", "conversation", "episodic")
# A records store may hold items of any tier, for example an indexed turn of a conversation.
RECORDS: tuple[Tier, ...] = ("semantic", "procedural", "lifecycle", "conversation")


@dataclass(frozen=True, slots=True)
class Canary:
    """The searchable content of one row."""

    text: str
    word: str
    vector: bytes = b""

    def is_in(self, data: bytes) -> bool:
        # The full-text index stores a term without the prefix that it shares with the previous term.
        if self.text.encode() in data or self.word[4:].encode() in data:
            return True
        return bool(self.vector) and (self.vector in data or base64.b64encode(self.vector) in data)


def make_scope(user: str) -> Scope:
    return Scope("acme", user, "helper", f"session-of-{user}")


def generate_words(user: str) -> Iterator[str]:
    rng = random.Random(user)
    while True:
        # No stemmer removes this ending.
        yield "".join(rng.choices(string.ascii_lowercase, k=14)) + "xq"


async def fill(path: Path, *users: str, key: EncryptionKey | None = None) -> dict[str, dict[str, list[Canary]]]:
    """Write the canaries of some users to every tier of a SQLite file."""
    store = SqliteStore.open(path, readers=1, key=key)
    canaries = await fill_stores(store, store, *users)
    await store.close()
    return canaries


async def fill_stores(
    records: Records, logs: LogAndTasks, *users: str, each: int = EACH, at_once: int = 1, long: bool = False
) -> dict[str, dict[str, list[Canary]]]:
    """Write the canaries of some users to every tier, interleaved, and return them by user and kind.

    With `long`, some are too long for one row and do not compress.
    """
    canaries: dict[str, dict[str, list[Canary]]] = {user: defaultdict(list) for user in users}
    words = {user: generate_words(user) for user in users}
    rngs = {user: np.random.default_rng(list(user.encode())) for user in users}
    waiting: list[Write] = []
    for n in range(each):
        for user in users:
            user_canaries, word = canaries[user], words[user]
            log_writes: list[Write] = []
            for tier in LOGS:
                user_canaries[f"{tier} entries"].append(_entry(tier, user, n, next(word), log_writes))
            for tier in RECORDS:
                user_canaries[f"{tier} items"].append(_item(tier, user, n, next(word), rngs[user], waiting))
            if cast(object, records) is logs:  # one store: interleave the records, too
                log_writes += waiting
                waiting.clear()
            await logs.write(*log_writes)
            user_canaries["tasks"].append(await _task(logs, user, n, next(word), long=long and n % 10 == 1))
        if (n + 1) % at_once == 0:
            await records.write(*waiting)
            waiting.clear()
    return canaries


def count_left(path: Path, canaries: dict[str, list[Canary]]) -> int:
    """Return how many canaries are still in any byte of the store's files."""
    return count_left_in(sorted(path.parent.glob(path.name + "*")), canaries)


def count_left_in(files: Iterable[Path], canaries: dict[str, list[Canary]]) -> int:
    data = b"\0".join(file.read_bytes() for file in files if file.is_file())
    return sum(canary.is_in(data) for some in canaries.values() for canary in some)


class CanaryScanner:
    """A scanner that searches files for all canaries in one pass."""

    def __init__(self, canaries: dict[str, list[Canary]]) -> None:
        every = [canary for some in canaries.values() for canary in some]
        self._words = {canary.word[4:].encode(): canary for canary in every}
        self._vectors = {canary.vector[:8]: canary for canary in every if canary.vector}
        self._begins = np.zeros(1 << 16, bool)
        self._begins[[int.from_bytes(begin[:2], "little") for begin in self._vectors]] = True

    def scan(self, files: Iterable[Path]) -> dict[Path, set[str]]:
        """Return the files that contain canaries, with the words found in each."""
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
    writes.append(Append(space=make_scope(user).space(tier), entry=entry))
    return Canary(text, word)


def _item(tier: Tier, user: str, n: int, word: str, rng: np.random.Generator, writes: list[Write]) -> Canary:
    text, scope = _text(tier, n, word), make_scope(user)
    row = rng.normal(size=(1, DIM)).astype(np.float32)
    row /= np.linalg.norm(row)
    if tier == "procedural":
        key = f"do_{word}"
        procedure = Procedure(
            id=procedure_version_id(scope.space(tier), key, 1),
            key=key,
            version=1,
            body=text,
            description=word,
            tags=(),
            source="user",
            trust=1.0,
            created_at=AT,
        )
        item = procedure_to_item(procedure, scope)
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
    return Canary(text, word, pack_vectors(row).tobytes())


async def _task(store: LogAndTasks, user: str, n: int, word: str, *, long: bool) -> Canary:
    scope, text = make_scope(user), _text("task", n, word)
    if long:
        text += "".join(random.Random(word).choices(string.ascii_letters, k=6000))
    state = StateEncoder(1 << 20, (scope.user, scope.session)).encode({"told": text, "completed": [], "results": {}})
    space, task = scope.space("checkpoints"), f"{user}-{word}"
    await store.write(Save(space=space, task=task, state=state.text))
    if n % 10 == 0:  # some tasks have a lease holder
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
