"""Opening a file: what is refused, what it says, and that nothing is harmed by the attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from recollect.errors import SchemaTooNew, StoreCorrupt, StoreUnavailable
from recollect.stores.sqlite import SqliteStore
from recollect.stores.sqlite.connection import APPLICATION_ID
from recollect.stores.sqlite.migrations import migrations
from recollect.stores.where import Where
from recollect.testing.samples import ids, put
from recollect.values import Scope


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "store.db"
    await SqliteStore.open(path).close()
    with apsw.Connection(str(path)) as connection:
        connection.pragma("user_version", 999)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match="upgrade"):
        SqliteStore.open(path)
    assert path.read_bytes() == before


async def test_a_file_of_the_first_schema_is_brought_up_to_date_and_keeps_everything(tmp_path: Path):
    path = tmp_path / "store.db"
    connection = apsw.Connection(str(path))
    connection.execute(dict(migrations())[1])
    connection.execute(FIRST_SCHEMA_ROWS)
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.close()

    store = SqliteStore.open(path)
    space = Scope().space("semantic")
    [old] = await store.find(Where(space))
    assert (old.id, old.content, old.metadata, old.importance, old.key) == ("old", "The cello.", {"a": 1}, 0.25, "k")
    assert (old.access_count, old.version, old.derived_from) == (3, 2, ("x",))
    assert (old.pinned, old.decayed_at, old.learned_at) == (False, None, None)
    assert [entry.content for entry in await store.read(Scope().space("conversation"))] == ["said"]
    assert ids((await store.matching(Where(space), ["cello"])).found) == ["old"]
    await store.write(put("new", scope=Scope(), pinned=True))
    assert [item.pinned for item in await store.get(space, "new", "old")] == [True, False]
    assert await store.check() == []
    await store.close()

    again = SqliteStore.open(path)
    assert ids(await again.get(space, "old", "new")) == ["old", "new"]
    await again.close()


FIRST_SCHEMA_ROWS = """
insert into spaces (id, tenant, tier, user, agent, session, next_seq, items, words)
values (1, 'default', 'semantic', 'default', '', '', 1, 1, 1),
       (2, 'default', 'conversation', 'default', 'default', '', 1, 0, 0);
insert into records (
    place, space, id, version, content, metadata, importance, access_count, created_at, source, trust, key,
    derived_from, by_user, by_agent, terms, length, passages
)
values ((1 << 28) | 1, 1, 'old', 2, 'The cello.', '{"a":1}', 0.25, 3, 1767225600000000, 'user', 1.0, 'k',
        '["x"]', 'default', 'default', 'cello', 1, 1);
insert into entries (place, space, id, kind, content, metadata, importance, at)
values ((2 << 28) | 1, 2, 'e', 'user', 'said', '{}', 0.5, 1767225600000000);
insert into words (rowid, terms) values ((1 << 28) | 1, '1_cello');
"""


@pytest.mark.parametrize("content", [b"just some notes\n" * 1000, b"SQLite format 3\x00" + b"\xff" * 5000, b"x"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="name another file"):
        SqliteStore.open(path)
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "bookmarks.db"
    connection = apsw.Connection(str(path))
    connection.execute("create table bookmarks (url); insert into bookmarks values ('x')")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        SqliteStore.open(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["bookmarks.db"]


async def test_an_empty_file_becomes_a_store(tmp_path: Path):
    path = tmp_path / "store.db"
    path.touch()
    store = SqliteStore.open(path)
    await store.write(put("a"))
    await store.close()


def test_a_missing_directory_is_named(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match="nowhere does not exist; create it"):
        SqliteStore.open(tmp_path / "nowhere" / "store.db")


def test_a_directory_is_no_file(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match="name a file"):
        SqliteStore.open(tmp_path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path):
    # Permissions do not stop root; the kernel's own directory stops everybody.
    closed = Path("/proc") if os.geteuid() == 0 else tmp_path
    closed.chmod(0o500) if closed == tmp_path else None
    with pytest.raises(StoreUnavailable, match="writable"):
        SqliteStore.open(closed / "store.db")


# Two that open a new file within the same few microseconds are rare, so it is tried often.
ROUNDS = 40

OPEN_AND_WRITE = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from recollect.stores.ops import Put
from recollect.stores.sqlite import SqliteStore
from recollect.values import MemoryItem, Scope

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


async def test_processes_that_create_the_store_at_once_all_succeed(tmp_path: Path):
    names = [f"p{n}" for n in range(4)]
    starters = [_start(OPEN_AND_WRITE, name) for name in names]
    said = [_line(starter) for starter in starters]
    for attempt in range(ROUNDS):
        path = tmp_path / f"store{attempt}.db"
        for starter in starters:
            assert starter.stdin is not None
            starter.stdin.write(f"{path}\n")
            starter.stdin.flush()
        said += [_line(starter) for starter in starters]
        store = SqliteStore.open(path)
        assert sorted(ids(await store.find(Where(Scope().space("semantic"))))) == names
        await store.close()
    assert [starter.communicate()[1] for starter in starters] == [""] * len(names)
    assert said == ["ready\n"] * len(names) + ["done\n"] * ROUNDS * len(names)


def _start(*code: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", *code], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
