"""Deleted data leaves no bytes in the files of a SQLite store."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import apsw
import numpy as np
import pytest

from recollect.stores.codec import normalize_vectors, pack_vectors
from recollect.stores.sqlite import SqliteStore
from recollect.stores.writes import Clear, Delete, DropTask, Journal, Model, Put, Save
from recollect.testing.factories import EVERYTHING, LOG, SPACE, TASKS, find_nearest, list_ids, make_append, make_item
from recollect.types import Turn

MODEL = Model("wide", 64, "f")
CANARIES = 100


def make_canary(n: int) -> str:
    return f"canary{n:03}q{(n * 7919) % 1000:03}"


def find_traces(path: Path, wanted: dict[str, bytes]) -> set[str]:
    """Return the names of the byte strings that a file of the store contains."""
    files = [file for file in path.parent.iterdir() if file.name.startswith(path.name)]
    raw = b"".join(file.read_bytes() for file in files)
    return {name for name, needle in wanted.items() if needle in raw}


def truncate_wal(path: Path) -> None:
    """Write the WAL back into the main file and truncate it."""
    connection = apsw.Connection(str(path))
    busy, _, _ = connection.execute("pragma wal_checkpoint(truncate)").get
    assert busy == 0
    connection.close()
    assert os.path.getsize(f"{path}-wal") == 0


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_deleted_or_replaced_item_leaves_no_bytes(tmp_path: Path, how: str):
    # Mutant: without FTS5's secure-delete the terms of some canaries stay in old segments of the index.
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    chance = np.random.default_rng(1)
    rows = chance.normal(size=(5 * CANARIES, MODEL.dim)).astype(np.float32)
    wanted: dict[str, bytes] = {}
    for n in range(5 * CANARIES):
        is_canary = n % 5 == 0
        word = make_canary(n // 5) if is_canary else f"plain{n}"
        put = Put(
            item=make_item(
                f"i{n}",
                f"the {word} said it would keep {word.upper()} for itself " * (1 + n % 20),
                metadata={"note": f"meta{word}"},
                key=f"key{word}",
                turn=Turn(f"session{word}", n),
                source=f"source{word}",
            ),
            vectors=rows[n][None],
            terms=("the", word, "said", f"{word}x", *(f"w{(n * k) % 97}" for k in range(1, 20))),
            model=MODEL,
        )
        await store.write(put)
        if is_canary:
            wanted[f"text {word}"] = word.upper().encode()
            wanted[f"term {word}"] = word.encode()
            wanted[f"vector {word}"] = pack_vectors(normalize_vectors(rows[n])).tobytes()
    assert len(await find_nearest(store, EVERYTHING, rows[0], limit=1000)) == 5 * CANARIES
    truncate_wal(path)
    # Every text and vector is found before the deletion. The index stores terms with prefix compression,
    # so that some terms are not found in full.
    assert {name for name in wanted if not name.startswith("term")} <= find_traces(path, wanted)
    for n in range(CANARIES):
        if how == "deleted":
            await store.write(Delete(SPACE, f"i{5 * n}"))
        else:
            blank = Put(
                item=make_item(f"i{5 * n}", "blank"), vectors=np.ones((1, 64), np.float32), terms=(), model=MODEL
            )
            await store.write(blank)
    truncate_wal(path)
    assert find_traces(path, wanted) == set()
    left = list_ids(await find_nearest(store, EVERYTHING, rows[1], limit=1000))
    assert len(left) == (4 if how == "deleted" else 5) * CANARIES
    assert await store.check() == []
    await store.close()


async def test_deleted_log_or_task_leaves_no_bytes(tmp_path: Path):
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    wanted: dict[str, bytes] = {}
    for n in range(CANARIES):
        word = make_canary(n)
        wanted[word] = word.encode()
        await store.write(make_append(f"e{n}", content=f"it said {word}", metadata={"note": word}))
        lease = await store.claim(TASKS, f"t{n}", "w", timedelta(minutes=1))
        note = Journal(
            space=TASKS, task=f"t{n}", step="s", status="completed", fence=lease.fence, attempts=1,
            idempotency_key="k", result=f'"{word}"',
        )  # fmt: skip
        await store.write(note, Save(space=TASKS, task=f"t{n}", state=f'{{"x": "{word}"}}', fence=lease.fence))
    truncate_wal(path)
    assert find_traces(path, wanted) == set(wanted)
    await store.write(Clear(LOG), *(DropTask(TASKS, f"t{n}") for n in range(CANARIES)))
    truncate_wal(path)
    assert find_traces(path, wanted) == set()
    await store.close()
