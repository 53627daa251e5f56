"""Opening a SQLite file: creation, refusals and their messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from recollect.errors import SchemaTooNew, StoreCorrupt, StoreUnavailable
from recollect.stores.filters import Where
from recollect.stores.sqlite import SqliteStore
from recollect.testing.factories import list_ids, make_put
from recollect.types import Scope


async def test_newer_schema_is_refused_and_unchanged(tmp_path: Path):
    path = tmp_path / "store.db"
    await SqliteStore.open(path).close()
    with apsw.Connection(str(path)) as connection:
        connection.pragma("user_version", 999)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match="upgrade"):
        SqliteStore.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"just some notes\n" * 1000, b"SQLite format 3\x00" + b"\xff" * 5000, b"x"])
def test_file_that_is_not_a_database_is_refused_and_unchanged(tmp_path: Path, content: bytes):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="name another file"):
        SqliteStore.open(path)
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_database_of_another_program_is_refused_and_unchanged(tmp_path: Path):
    path = tmp_path / "bookmarks.db"
    connection = apsw.Connection(str(path))
    connection.execute("create table bookmarks (url); insert into bookmarks values ('x')")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        SqliteStore.open(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["bookmarks.db"]


async def test_empty_file_becomes_a_store(tmp_path: Path):
    path = tmp_path / "store.db"
    path.touch()
    store = SqliteStore.open(path)
    await store.write(make_put("a"))
    await store.close()


def test_missing_directory_is_named(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match="nowhere does not exist; create it"):
        SqliteStore.open(tmp_path / "nowhere" / "store.db")


def test_open_of_a_directory_raises(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match="name a file"):
        SqliteStore.open(tmp_path)


def test_read_only_directory_is_named(tmp_path: Path):
    # Permissions do not stop root; /proc is read-only for root too.
    closed = Path("/proc") if os.geteuid() == 0 else tmp_path
    closed.chmod(0o500) if closed == tmp_path else None
    with pytest.raises(StoreUnavailable, match="writable"):
        SqliteStore.open(closed / "store.db")


# The race window is a few microseconds, so the test repeats it.
ROUNDS = 40

OPEN_AND_WRITE = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from recollect.stores.writes import Put
from recollect.stores.sqlite import SqliteStore
from recollect.types import MemoryItem, Scope

async def main(name):
    print("ready", flush=True)
    for line in sys.stdin:
        store = SqliteStore.open(Path(line.strip()))
        item = MemoryItem(id=name, content="x", scope=Scope(), created_at=datetime(2026, 1, 1, tzinfo=UTC))
        await store.write(Put(item=item))
        await store.close()
        print("done", flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def test_concurrent_creation_by_processes_succeeds(tmp_path: Path):
    names = [f"p{n}" for n in range(4)]
    starters = [_start(OPEN_AND_WRITE, name) for name in names]
    lines = [_line(starter) for starter in starters]
    for attempt in range(ROUNDS):
        path = tmp_path / f"store{attempt}.db"
        for starter in starters:
            assert starter.stdin is not None
            starter.stdin.write(f"{path}\n")
            starter.stdin.flush()
        lines += [_line(starter) for starter in starters]
        store = SqliteStore.open(path)
        assert sorted(list_ids(await store.find(Where(Scope().space("semantic"))))) == names
        await store.close()
    assert [starter.communicate()[1] for starter in starters] == [""] * len(names)
    assert lines == ["ready\n"] * len(names) + ["done\n"] * ROUNDS * len(names)


def _start(*code: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", *code], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
