"""The SQLite store: group commits, caches, damage, backups, a full disk, and close."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import apsw
import numpy as np
import pytest

from recollect.errors import BadInput, Conflict, RecollectError, StoreClosed, StoreFull, StoreUnavailable
from recollect.stores.filters import Where
from recollect.stores.sqlite import SqliteStore, search_cache
from recollect.stores.writes import Delete, Model, Put, Save, Touch
from recollect.testing.factories import (
    EVERYTHING,
    LOG,
    SPACE,
    START,
    TASKS,
    find_matching,
    find_nearest,
    list_ids,
    make_append,
    make_item,
    make_put,
    make_vector,
)
from recollect.types import Scope

WIDE = Model("wide", 64, "f")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "store.db")
    yield opened
    await opened.close()


def make_wide_put(id: str, row: np.ndarray, **fields) -> Put:
    return Put(item=make_item(id, **fields), vectors=row[None], model=WIDE)


async def test_concurrent_writes_share_commits(store: SqliteStore):
    commits = 0

    def count() -> bool:
        nonlocal commits
        commits += 1
        return False

    await store._writer.submit(lambda connection: connection.set_commit_hook(count), durable=False)
    await asyncio.gather(*(store.write(make_put(f"i{n}")) for n in range(500)))
    assert len(await store.find(EVERYTHING, limit=1000)) == 500
    assert commits < 50


async def test_failed_batch_does_not_affect_its_commit_group(store: SqliteStore):
    def batch(n: int) -> tuple[Put, ...]:
        good = make_put(f"i{n}", [1, n, 0, 0], f"w{n}")
        return (good, replace(make_put(f"x{n}"), expect=5)) if n % 7 == 3 else (good,)

    results = await asyncio.gather(*(store.write(*batch(n)) for n in range(200)), return_exceptions=True)
    refused = {n for n in range(200) if n % 7 == 3}
    assert {n for n, result in enumerate(results) if isinstance(result, Conflict)} == refused
    assert all(result is None for n, result in enumerate(results) if n not in refused)
    kept = {f"i{n}" for n in range(200)} - {f"i{n}" for n in refused}
    assert set(list_ids(await store.find(EVERYTHING, limit=1000))) == kept
    assert {one.brief.id for one in await find_nearest(store, EVERYTHING, make_vector(0, 1, 0, 0), limit=1000)} == kept
    assert await store.check() == []


async def test_cancelled_write_is_atomic(store: SqliteStore):
    attempts = [asyncio.create_task(store.write(make_put(f"a{n}"), make_put(f"b{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    for attempt in attempts[::2]:
        attempt.cancel()
    await asyncio.gather(*attempts, return_exceptions=True)
    await store.write(make_put("after"))
    found = set(list_ids(await store.find(EVERYTHING, limit=1000)))
    assert {name[1:] for name in found if name[0] == "a" and name != "after"} == {
        name[1:] for name in found if name[0] == "b"
    }
    assert {f"a{n}" for n in range(1, 50, 2)} < found


async def test_vector_cache_stays_within_its_budget(tmp_path: Path):
    budget = 100_000
    chance = np.random.default_rng(3)
    store = SqliteStore.open(tmp_path / "store.db", cache_bytes=budget)
    scopes = [Scope(user=f"user{n}") for n in range(40)]
    rows = {scope: chance.normal(size=(50, 64)).astype(np.float32) for scope in scopes}
    for scope in scopes:
        await store.write(*(make_wide_put(f"i{n}", row, scope=scope) for n, row in enumerate(rows[scope])))
    for scope in [*scopes, *reversed(scopes)]:
        [found] = await find_nearest(store, Where(scope.space("semantic")), rows[scope][17], limit=1)
        assert found.brief.id == "i17"
        assert 0 < store._vector_cache._total_bytes <= budget
    giant = Scope(user="giant")
    many = chance.normal(size=(1500, 64)).astype(np.float32)
    await store.write(*(make_wide_put(f"i{n}", row, scope=giant) for n, row in enumerate(many)))
    [found] = await find_nearest(store, Where(giant.space("semantic")), many[1234], limit=1)
    assert found.brief.id == "i1234"
    assert store._vector_cache._total_bytes <= budget
    await store.close()


@pytest.mark.parametrize("is_filtered", [False, True])
@pytest.mark.parametrize(("compact_above", "bytes_each"), [(1000, 1.5), (10_000, 3.5)])
async def test_quantized_search_is_exact(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, is_filtered: bool, compact_above: int, bytes_each: float
):
    monkeypatch.setattr(search_cache, "_QUANTIZED_ABOVE_ROWS", 1000)
    monkeypatch.setattr(search_cache, "_FLOATS_DROPPED_ABOVE_ROWS", compact_above)
    chance = np.random.default_rng(5)
    rows = chance.normal(size=(4000, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    stored = rows.astype(np.float16).astype(np.float64)
    gone = set(range(0, 4000, 10))
    for start in range(0, 4000, 400):  # searched in between, so that the cache grows past the threshold step by step
        await store.write(
            *(make_wide_put(f"i{n:04}", rows[n], importance=(n % 4) / 4) for n in range(start, start + 400))
        )
        [found] = await find_nearest(store, EVERYTHING, rows[start], limit=1)
        assert found.brief.id == f"i{start:04}"
    await store.write(*(Delete(SPACE, f"i{n:04}") for n in gone))
    where = Where(SPACE, min_importance=0.5) if is_filtered else EVERYTHING
    expected_ids = np.array([n for n in range(4000) if n not in gone and (not is_filtered or n % 4 >= 2)])
    for query in chance.normal(size=(40, 64)).astype(np.float32):
        cosines = stored[expected_ids] @ (query / np.linalg.norm(query)).astype(np.float64)
        best = expected_ids[np.argsort(-cosines)[:10]]
        assert list_ids(await find_nearest(store, where, query, limit=10)) == [f"i{n:04}" for n in best]
    assert store._vector_cache._total_bytes < 4000 * 64 * bytes_each


@pytest.mark.parametrize("compact_above", [100, 10_000])
async def test_equal_vectors_are_ordered_by_id_in_a_quantized_space(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, compact_above: int
):
    monkeypatch.setattr(search_cache, "_QUANTIZED_ABOVE_ROWS", 100)
    monkeypatch.setattr(search_cache, "_FLOATS_DROPPED_ABOVE_ROWS", compact_above)
    names = [f"i{n:03}" for n in range(900)]
    await store.write(*(make_put(name, [3, 1, 2, 0]) for name in reversed(names)))
    assert list_ids(await find_nearest(store, EVERYTHING, make_vector(1, 1, 1, 0), limit=20)) == names[:20]


WRITE_FROM_OUTSIDE = """
import asyncio, sys
from pathlib import Path
import numpy as np
from datetime import UTC, datetime
from recollect.stores.writes import Delete, Model, Put
from recollect.stores.sqlite import SqliteStore
from recollect.types import MemoryItem, Scope

scope = Scope(tenant="acme", user="ada", agent="helper")

def put(name, row, terms):
    item = MemoryItem(id=name, content=name, scope=scope, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    vectors = np.array([row], np.float32)
    return Put(item=item, vectors=vectors, terms=tuple(terms.split()), model=Model("sample", 4, "5a3c"))

async def main():
    store = SqliteStore.open(Path(sys.argv[1]))
    for line in sys.stdin:
        match line.split():
            case ["put", name, x, y]:
                await store.write(put(name, [float(x), float(y), 0, 0], f"word {name}"))
            case ["delete", name]:
                await store.write(Delete(scope.space("semantic"), name))
        print("done", flush=True)
    await store.close()

asyncio.run(main())
"""


async def test_write_of_another_process_is_visible_to_the_next_search(store: SqliteStore):
    other = _start(WRITE_FROM_OUTSIDE, str(store.path))
    assert other.stdin is not None
    assert other.stdout is not None

    def send(line: str) -> None:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(line + "\n")
        other.stdin.flush()
        assert other.stdout.readline() == "done\n"

    await store.write(make_put("mine", [1, 0, 0, 0], "word mine"))
    for n in range(20):
        send(f"put i{n} {n} 10")
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(n, 10, 0, 0), limit=1)) == [f"i{n}"]
        assert list_ids(await find_matching(store, EVERYTHING, f"i{n}")) == [f"i{n}"]
        if n % 3 == 0:
            send(f"delete i{n}")
            assert f"i{n}" not in list_ids(await find_nearest(store, EVERYTHING, make_vector(n, 10, 0, 0), limit=99))
            assert await find_matching(store, EVERYTHING, f"i{n}") == []
        if n % 3 == 1:
            send(f"put mine {-n} 10")
            assert list_ids(await find_nearest(store, EVERYTHING, make_vector(-n, 10, 0, 0), limit=1)) == ["mine"]
    other.stdin.close()
    assert other.wait(20) == 0
    other.stdout.close()


async def test_search_of_an_older_snapshot_does_not_hide_a_newer_write(store: SqliteStore):
    """Readers with different snapshots share one cached copy; each must see its own snapshot."""
    await store.write(*(make_put(f"i{n}", [1, n, 0, 0]) for n in range(300)))
    stop = asyncio.Event()

    async def keep_asking() -> None:
        while not stop.is_set():
            await find_nearest(store, EVERYTHING, make_vector(1, 1, 0, 0))

    readers = [asyncio.create_task(keep_asking()) for _ in range(3)]
    for n in range(150):
        await store.write(make_put("moving", [0, 0, 1, n / 10]))
        [found] = await find_nearest(store, EVERYTHING, make_vector(0, 0, 1, n / 10), limit=1)
        assert (found.brief.id, round(found.score, 2)) == ("moving", 1.0)
    stop.set()
    await asyncio.gather(*readers)


async def test_damaged_checkpoint_is_marked_and_the_previous_is_intact(store: SqliteStore):
    await store.write(Save(space=TASKS, task="t", state="[1]"), Save(space=TASKS, task="t", state="[2]"))
    for damage in (
        "update checkpoints set state = '[7]' where version = 2",
        "update checkpoints set state = cast(x'ff00fe' as text) where version = 2",
    ):
        _execute_directly(store.path, damage)
        newest = await store.checkpoint(TASKS, "t")
        assert newest is not None
        assert (newest.version, newest.intact) == (2, False)
        before = await store.checkpoint(TASKS, "t", version=1)
        assert before is not None
        assert (before.state, before.intact) == ("[1]", True)
        assert [one.intact for one in await store.checkpoints(TASKS, "t")] == [False, True]
        assert await store.check() == ["version 2 of task 't' does not fit its checksum"]


async def test_check_reports_inconsistent_rows(store: SqliteStore):
    await store.write(make_put("a", [1, 0, 0, 0], "two words"))
    _execute_directly(store.path, "update spaces set items = 5; insert into vectors_b values (1, x'00')")
    assert await store.check() == [
        "acme/semantic/ada// counts 5 items with 2 words, and has 1 with 2",
        "1 vectors belong to no item",
    ]


async def test_check_reports_damaged_pages(tmp_path: Path):
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await store.write(*(make_put(f"i{n}", content="some words " * 50) for n in range(500)))
    await store.close()
    with path.open("r+b") as file:
        for page in range(20, 60):
            file.seek(page * 8192)
            file.write(b"\xa5" * 512)
    store = SqliteStore.open(path)
    assert await store.check() != []
    await store.close()


async def test_backup_during_writes_is_a_snapshot(store: SqliteStore, tmp_path: Path):
    await store.write(*(make_put(f"fill{n}", content="x" * 4000) for n in range(1500)))
    stop = asyncio.Event()
    written = 0

    async def keep_writing() -> None:
        nonlocal written
        while not stop.is_set():
            await store.write(
                make_put(f"a{written}", [1, 0, 0, 0], "left"), make_put(f"b{written}", [0, 1, 0, 0], "right")
            )
            written += 1

    writer = asyncio.create_task(keep_writing())
    before = written
    await store.backup(str(tmp_path / "copy.db"))
    during = written - before
    stop.set()
    await writer
    copy = SqliteStore.open(tmp_path / "copy.db")
    assert await copy.check() == []
    names = list_ids(await copy.find(EVERYTHING, limit=100_000))
    assert {name[1:] for name in names if name[0] == "a"} == {name[1:] for name in names if name[0] == "b"}
    assert sum(name.startswith("fill") for name in names) == 1500
    assert during > 0, "nothing was written during the backup: the test is void"
    await copy.close()
    with pytest.raises(BadInput, match="exists already"):
        await store.backup(str(tmp_path / "copy.db"))
    with pytest.raises(StoreUnavailable, match="create it"):
        await store.backup(str(tmp_path / "nowhere" / "copy.db"))


async def test_full_disk_raises_store_full_and_reads_work(store: SqliteStore):
    await store.write(make_put("a", [1, 0, 0, 0], "word", content="x" * 10_000))

    def allow(pages: int):
        return store._writer.submit(
            lambda connection: connection.pragma("max_page_count", connection.pragma("page_count") + pages),
            durable=False,
        )

    await allow(4)
    with pytest.raises(StoreFull, match="nothing was lost"):
        await store.write(make_put("small"), make_put("large", content="x" * 1_000_000))
    results = await asyncio.gather(
        *(store.write(make_put(f"i{n}", content="x" * 30_000)) for n in range(20)), return_exceptions=True
    )
    assert all(result is None or isinstance(result, StoreFull) for result in results)
    assert any(isinstance(result, StoreFull) for result in results)
    kept = {"a"} | {f"i{n}" for n, result in enumerate(results) if result is None}
    assert set(list_ids(await store.find(EVERYTHING))) == kept
    assert list_ids(await find_nearest(store, EVERYTHING, make_vector(1, 0, 0, 0))) == ["a"]
    await store.write(Delete(SPACE, "a"))  # deletes work on a full disk
    assert await store.check() == []
    await allow(10_000)
    await store.write(make_put("large", content="x" * 1_000_000))


async def test_failed_access_count_does_not_fail_the_read(store: SqliteStore):
    await store.write(make_put("a"))
    store._writer._connection.execute("pragma query_only = on")
    store.touch(Touch(SPACE, ("a",), START))
    assert [item.access_count for item in await store.get(SPACE, "a")] == [0]
    store._writer._connection.execute("pragma query_only = off")
    store.touch(Touch(SPACE, ("a",), START))
    assert [item.access_count for item in await store.get(SPACE, "a")] == [1]


async def test_close_commits_acknowledged_writes(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    writes = [asyncio.create_task(store.write(make_put(f"i{n}"))) for n in range(100)]
    await asyncio.sleep(0)
    await store.close()
    results = await asyncio.gather(*writes, return_exceptions=True)
    acknowledged = {f"i{n}" for n, result in enumerate(results) if result is None}
    assert all(result is None or isinstance(result, StoreClosed) for result in results)
    again = SqliteStore.open(tmp_path / "store.db")
    assert set(list_ids(await again.find(EVERYTHING, limit=1000))) == acknowledged
    await again.close()


async def test_closed_store_raises_store_closed(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    await store.close()
    for asked in (
        lambda: store.write(make_put("a")),
        lambda: store.find(EVERYTHING),
        lambda: find_nearest(store, EVERYTHING, make_vector(1, 0, 0, 0)),
        lambda: store.recent(LOG),
        lambda: store.task(TASKS, "t"),
        lambda: store.model(),
        lambda: store.check(),
        lambda: store.write(make_append("a")),
    ):
        with pytest.raises(StoreClosed, match="open it again"):
            await asked()
    assert os.listdir(tmp_path) == ["store.db"]


async def test_20_000_unusual_terms_raise_only_recollect_errors(store: SqliteStore):
    chance = np.random.default_rng(11)
    pieces = [
        "a",
        "AND",
        "OR",
        '"',
        "'",
        "*",
        "(",
        ")",
        ":",
        "^",
        "-",
        "NEAR",
        "\x00",
        "é",
        "漢",
        "👩‍👩‍👧",
        "\ud800",
        "{",
        "%",
        "_",
        "1",
    ]
    await store.write(*(make_put(f"i{n}", [1, n, 0, 0], f"a w{n}", metadata={"p": n}) for n in range(20)))
    for _ in range(200):
        many = ["".join(chance.choice(pieces, size=chance.integers(0, 6))) for _ in range(100)]
        try:
            await find_matching(store, replace(EVERYTHING, key=many[0] if chance.random() < 0.1 else None), *many)
        except RecollectError:
            continue
    assert list_ids(await find_nearest(store, EVERYTHING, make_vector(1, 0, 0, 0), limit=1)) == ["i0"]


def _start(*code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", *code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _execute_directly(path: Path, sql: str) -> None:
    """Change the file without the store."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5000)
    connection.execute(sql)
    connection.close()
