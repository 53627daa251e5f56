"""Deleted bytes in unused areas of a SQLite file: index pages, moved rows, and file locks."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import string
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from recollect.clock import system_clock
from recollect.erasure import Eraser, ErasureSubject
from recollect.erasure.ledger import enter_erasure
from recollect.errors import NotEncrypted
from recollect.stores.erasure import ByteScan, ErasureReceipt, ErasureSelection
from recollect.stores.sqlite import EncryptionKey, SqliteStore, erasure
from recollect.stores.sqlite.connection import open_connection, read_main_file, read_wal_pages
from recollect.stores.sqlite.erasure import empty_wal, parse_terms, purge_deleted_bytes, read_indexed_terms
from recollect.stores.writes import Clear
from recollect.testing.factories import ADA, BOB, SPACE, make_append, make_put
from recollect.testing.whole_store import make_erasure

KEY = EncryptionKey("feed" * 16)
OPEN_AND_CLOSE = (
    "import sys, apsw; c = apsw.Connection(sys.argv[1]); c.execute('select * from meta').fetchall(); c.close()"
)


def read_all_terms(connection: apsw.Connection) -> set[str]:
    """Return all indexed terms, read from every page."""
    pages = connection.execute("select id, block from words_data where id > ?", (1 << 37,))
    return {term[1:].decode() for _, block in pages for term in parse_terms(block)}


async def test_terms_of_a_space_are_read_from_the_index_pages(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    chance = random.Random(3)
    for n in range(60):
        terms = " ".join("".join(chance.choices(string.ascii_lowercase, k=6)) for _ in range(40))
        scope = (ADA, BOB)[n % 2]
        await store.write(make_put(f"i{n}", [1, n, 0, 0], terms, scope=scope))
    connection = apsw.Connection(str(store.path))
    words = read_all_terms(connection)
    spaces = [row[0] for row in connection.execute("select id from spaces")]
    for space in spaces:
        assert {*read_indexed_terms(connection, space)} == {word for word in words if word.startswith(f"{space:x}_")}
    assert sum(len({*read_indexed_terms(connection, space)}) for space in spaces) == len(words) > 2000
    connection.close()
    await store.close()


DOOMED = ADA.space("episodic")
KEPT = BOB.space("episodic")


async def open_with_moved_rows(directory: Path, key: EncryptionKey | None = None) -> SqliteStore:
    """Delete entries of a store whose pages have been split, so that their bytes remain in unused areas."""
    store = SqliteStore.open(directory / "store.db", key=key)
    for n in range(300):
        await store.write(
            *(make_append(f"{n}", content=f"of {s.user}: {n} " * (n % 40), space=s) for s in (DOOMED, KEPT))
        )
    await store.write(Clear(DOOMED))
    return store


def count_deleted_bytes(store: SqliteStore, key: EncryptionKey | None = None) -> int:
    """Count the occurrences of deleted text in the pages of the file and its log."""
    connection = open_connection(store.path, writes=False, key=key)
    connection.execute("select count(*) from meta").fetchall()
    data = b"".join([*read_main_file(connection), *read_wal_pages(connection)])
    connection.close()
    return data.count(f"of {DOOMED.user}: ".encode())


@pytest.mark.parametrize("key", [None, KEY])
async def test_purge_removes_moved_rows(tmp_path: Path, key: EncryptionKey | None):
    # Mutant: the file is not rewritten.
    store = await open_with_moved_rows(tmp_path, key)
    other = open_connection(store.path, writes=True, key=key)
    assert empty_wal(store.path, key)
    assert count_deleted_bytes(store, key) > 0
    other.execute("select count(content) from entries").fetchall()  # it caches pages with the deleted bytes
    assert purge_deleted_bytes(store.path, key).waits == ()
    other.execute("insert into meta values ('other', 'later')")
    other.close()
    assert (count_deleted_bytes(store, key), await store.check()) == (0, [])
    assert len(await store.read(KEPT)) == 300
    assert set(os.listdir(tmp_path)) <= {f"store.db{suffix}" for suffix in ("", "-wal", "-shm", "-ballast")}
    await store.close()


PURGE = (
    "import sys; from pathlib import Path; from recollect.stores.sqlite.erasure import purge_deleted_bytes; "
    "print('start', flush=True); purge_deleted_bytes(Path(sys.argv[1]))"
)


def purge_and_kill(path: Path, delay: float) -> None:
    with subprocess.Popen([sys.executable, "-c", PURGE, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.kill()


async def test_purge_killed_at_any_time_loses_nothing(tmp_path: Path):
    store = await open_with_moved_rows(tmp_path)
    await store.close()
    for delay in range(8):
        await asyncio.to_thread(purge_and_kill, store.path, delay / 500)
    store = SqliteStore.open(store.path)
    assert (len(await store.read(KEPT)), await store.check()) == (300, [])
    assert (purge_deleted_bytes(store.path).waits, count_deleted_bytes(store)) == ((), 0)
    await store.close()


@pytest.mark.parametrize("key", [None, KEY])
async def test_writes_during_purge_wait_and_are_kept(tmp_path: Path, key: EncryptionKey | None):
    store = await open_with_moved_rows(tmp_path, key)
    other = SqliteStore.open(store.path, key=key)
    writes = [s.write(make_append(f"new {n}", space=KEPT)) for n in range(100) for s in (store, other)]
    purging = asyncio.to_thread(purge_deleted_bytes, store.path, key)
    purge, _ = await asyncio.gather(purging, asyncio.gather(*writes))
    assert (purge.waits, len(await store.read(KEPT)), await other.check()) == ((), 400, [])
    await other.close()
    assert (purge_deleted_bytes(store.path, key).waits, count_deleted_bytes(store, key)) == ((), 0)
    await store.close()


@pytest.mark.parametrize("obstacle", ["reader", "full disk"])
async def test_erasure_is_pending_until_the_file_can_be_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
):
    # Mutants: the log is not truncated; a full disk counts as done.
    monkeypatch.setattr(erasure, "_BUSY_TIMEOUT_MS", 50)
    store = SqliteStore.open(tmp_path / "store.db")
    for n in range(300):
        await store.write(make_append(f"{n}", content=f"of {DOOMED.user}: {n} " * 9, space=DOOMED))
        await store.write(make_append(f"{n}", content="kept " * 100, space=KEPT))
    assert empty_wal(store.path)
    reader = apsw.Connection(str(store.path))
    eraser = Eraser([store], system_clock)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if obstacle == "reader":
            reader.execute("begin; select * from meta")
        else:  # the deletion fits into the log, a copy of the file does not
            resource.setrlimit(resource.RLIMIT_FSIZE, (store.path.stat().st_size - 8192, limits[1]))
        pending = await eraser.erase(ErasureSubject(DOOMED.tenant, user=DOOMED.user))
        assert await store.read(DOOMED) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    reader.close()
    assert (pending.status, len(pending.scan.waits)) == ("pending_physical", 1)
    assert {"reader": "open transaction", "full disk": "free some space"}[obstacle] in pending.scan.waits[0]
    assert [receipt.status for receipt in await eraser.resume()] == ["complete"]
    assert (count_deleted_bytes(store), await store.check(), len(await store.read(KEPT))) == (0, [], 300)
    await store.close()


def count_rewrites(store: SqliteStore) -> int:
    """Return a number that grows by one with each VACUUM, because no test here changes the schema."""
    connection = apsw.Connection(str(store.path))
    version = int(connection.pragma("schema_version"))
    connection.close()
    return version


async def open_with_entries(directory: Path, *, limit: int) -> SqliteStore:
    store = SqliteStore.open(directory / "store.db", vacuum_limit_bytes=limit)
    for n in range(300):
        await store.write(
            *(make_append(f"{n}", content=f"of {s.user}: {n} " * (n % 40), space=s) for s in (DOOMED, KEPT))
        )
    return store


async def test_file_above_the_limit_is_rewritten_by_resume_only(tmp_path: Path):
    # Mutants: the limit is ignored; `resume` obeys it; the reason is not reported.
    store = await open_with_entries(tmp_path, limit=100_000)
    eraser, rewrites = Eraser([store], system_clock), count_rewrites(store)
    pending = await eraser.erase(ErasureSubject(DOOMED.tenant, user=DOOMED.user))
    assert (pending.status, await store.read(DOOMED), count_rewrites(store)) == ("pending_physical", [], rewrites)
    [reason] = pending.scan.waits
    assert "vacuum_limit_mb is 0;" in reason
    assert f"recollect finish-erasures --store {store.path}" in reason
    assert count_deleted_bytes(store) > 0
    [done] = await eraser.resume()
    assert (done.id, done.status, count_rewrites(store)) == (pending.id, "complete", rewrites + 1)
    assert (count_deleted_bytes(store), await store.check(), len(await store.read(KEPT))) == (0, [], 300)
    await store.close()


async def test_catch_up_deletes_and_leaves_a_file_above_the_limit(tmp_path: Path):
    # Mutant: `catch_up` ignores the limit, so that the opening of a large store takes as long as the rewrite.
    store = await open_with_entries(tmp_path, limit=100_000)
    eraser, rewrites = Eraser([store], system_clock), count_rewrites(store)
    await enter_erasure([store], "e1", ErasureSubject(DOOMED.tenant, user=DOOMED.user), system_clock())
    [pending] = await eraser.catch_up()
    assert (pending.id, pending.status, await store.read(DOOMED)) == ("e1", "pending_physical", [])
    assert count_rewrites(store) == rewrites
    await store.close()


async def test_file_below_the_limit_is_rewritten_by_erase(tmp_path: Path):
    # Mutant: the size is compared the other way round.
    store = await open_with_entries(tmp_path, limit=100_000_000)
    receipt = await Eraser([store], system_clock).erase(ErasureSubject(DOOMED.tenant, user=DOOMED.user))
    assert (receipt.status, count_deleted_bytes(store)) == ("complete", 0)
    await store.close()


async def test_one_rewrite_completes_all_pending_erasures(tmp_path: Path):
    # Mutant: the file is rewritten for each erasure.
    store = await open_with_entries(tmp_path, limit=0)
    eraser, rewrites = Eraser([store], system_clock), count_rewrites(store)
    for space in (DOOMED, KEPT):
        assert not (await eraser.erase(ErasureSubject(space.tenant, user=space.user))).complete
    done = await eraser.resume()
    assert ([receipt.status for receipt in done], count_rewrites(store)) == (["complete"] * 2, rewrites + 1)
    assert [receipt.scan.writers_waited > 0 for receipt in done] == [True, False]
    await store.close()


async def test_file_is_rewritten_again_if_the_scan_finds_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Mutant: a rewrite counts as complete whatever the scan finds.
    store = await open_with_entries(tmp_path, limit=0)
    eraser, rewrites = Eraser([store], system_clock), count_rewrites(store)
    await eraser.erase(ErasureSubject(DOOMED.tenant, user=DOOMED.user))
    with monkeypatch.context() as patch:
        patch.setattr(erasure, "scan_file", lambda *_: ByteScan(found=1))
        assert [receipt.status for receipt in await eraser.resume()] == ["pending_physical"]
    assert [receipt.status for receipt in await eraser.resume()] == ["complete"]
    assert count_rewrites(store) == rewrites + 2
    await store.close()


async def test_receipt_states_how_long_writers_waited(tmp_path: Path):
    # Mutants: the time is not measured; it is lost in the JSON form.
    store = await open_with_entries(tmp_path, limit=100_000_000)
    began = time.monotonic()
    receipt = await Eraser([store], system_clock).erase(ErasureSubject(DOOMED.tenant, user=DOOMED.user))
    assert 0 < receipt.scan.writers_waited < time.monotonic() - began
    assert f"writers    waited {receipt.scan.writers_waited:.3f} s" in str(receipt)
    decoded = ErasureReceipt.from_json(receipt.as_json())
    assert (decoded, decoded.digest) == (receipt, receipt.sha256)
    assert decoded.scan.merge(ByteScan(writers_waited=1.0)).writers_waited == receipt.scan.writers_waited + 1.0
    await store.close()


async def test_reading_the_file_keeps_its_locks(tmp_path: Path):
    """A process that opens and closes the file directly loses its POSIX locks, and another may delete the WAL."""
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(make_put("a", [1, 0, 0, 0]))
    reader_connection = open_connection(store.path, writes=False)
    assert sum(map(len, read_main_file(reader_connection))) == store.path.stat().st_size
    reader_connection.close()
    with pytest.raises(NotEncrypted):  # the first bytes show that the file is not encrypted
        SqliteStore.open(store.path, key=KEY)
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", OPEN_AND_CLOSE, str(store.path)], check=True)
    assert (tmp_path / "store.db-wal").exists()
    await store.close()


async def test_id_of_a_wiped_space_is_not_reused(tmp_path: Path):
    """Caches of other processes use the id of the space as key."""
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(make_put("a", [1, 0, 0, 0]))
    await store.add_erasure(make_erasure())
    await store.wipe("e1", ErasureSelection((SPACE,)))
    await store.write(make_put("b", [1, 0, 0, 0], scope=BOB))
    connection = apsw.Connection(str(store.path))
    assert connection.execute("select id from spaces").fetchall() == [(2,)]
    connection.close()
    await store.close()
