"""Migration of a SQLite file of an older schema: backup, refusals, crashes, and what an erasure does to the backup."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from recollect import AgentMemory, Settings
from recollect.errors import SchemaTooOld, StoreCorrupt, StoreUnavailable
from recollect.portability import restore_store
from recollect.stores.filters import Where
from recollect.stores.sqlite import EncryptionKey, SqliteStore, change_key, connection
from recollect.stores.sqlite.connection import APPLICATION_ID, connect_with_key
from recollect.stores.sqlite.migrations import load_migrations
from recollect.testing.factories import find_matching, list_ids, make_put
from recollect.types import Scope
from tests.embedders import HashEmbedder

KEY_TEXT = "0123456789abcdef" * 4
KEYS = {"plain": None, "encrypted": EncryptionKey(KEY_TEXT)}
FACTS = Scope().space("semantic")
NEWEST = load_migrations()[-1][0]
BACKUP = f"store.db.before-schema-{NEWEST}"

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


@pytest.fixture(params=KEYS)
def key(request: pytest.FixtureRequest) -> EncryptionKey | None:
    return KEYS[request.param]


@pytest.fixture
def path(tmp_path: Path, key: EncryptionKey | None) -> Path:
    """A closed store of the first schema, in the mode in which a release closes it."""
    return create_old_store(tmp_path / "store.db", key)


def create_old_store(path: Path, key: EncryptionKey | None) -> Path:
    old = connect_with_key(path, key)
    old.pragma("page_size", 8192)
    old.pragma("journal_mode", "wal")
    old.execute(dict(load_migrations())[1])
    old.execute(FIRST_SCHEMA_ROWS)
    old.pragma("application_id", APPLICATION_ID)
    old.pragma("user_version", 1)
    old.close()
    return path


def read_disk(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def read_old_rows(path: Path, key: EncryptionKey | None) -> tuple[int, list[str]]:
    """Return the schema and the contents of a file that no release may have open."""
    old = connect_with_key(path, key)
    rows = [str(content) for (content,) in old.execute("select content from records")]
    schema = int(old.pragma("user_version"))
    old.close()
    return schema, rows


async def test_first_schema_is_migrated_and_keeps_its_data(path: Path, key: EncryptionKey | None):
    store = SqliteStore.open(path, key=key)
    [old] = await store.find(Where(FACTS))
    assert (old.id, old.content, old.metadata, old.importance, old.key) == ("old", "The cello.", {"a": 1}, 0.25, "k")
    assert (old.access_count, old.version, old.derived_from) == (3, 2, ("x",))
    assert (old.pinned, old.decayed_at, old.learned_at) == (False, None, None)
    assert [entry.content for entry in await store.read(Scope().space("conversation"))] == ["said"]
    assert list_ids(await find_matching(store, Where(FACTS), "cello")) == ["old"]
    await store.write(make_put("new", scope=Scope(), pinned=True))
    assert [item.pinned for item in await store.get(FACTS, "new", "old")] == [True, False]
    assert await store.check() == []
    await store.close()

    again = SqliteStore.open(path, key=key)
    assert list_ids(await again.get(FACTS, "old", "new")) == ["old", "new"]
    await again.close()


async def test_migration_writes_a_private_backup_that_opens(path: Path, key: EncryptionKey | None):
    """Mutants: no backup; a backup that other users can read."""
    mask = os.umask(0)
    store = SqliteStore.open(path, key=key)
    os.umask(mask)
    await store.write(make_put("new"))
    await store.close()
    backup = path.with_name(BACKUP)
    assert sorted(read_disk(path)) == ["store.db", BACKUP]
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert (b"cello" in backup.read_bytes()) == (key is None)
    assert read_old_rows(backup, key) == (1, ["The cello."])
    again = SqliteStore.open(backup, key=key)
    assert list_ids(await again.find(Where(FACTS))) == ["old"]
    await again.close()


async def test_new_and_current_stores_get_no_backup(tmp_path: Path, key: EncryptionKey | None):
    for _ in range(2):
        await SqliteStore.open(tmp_path / "store.db", key=key, migrates=False).close()
    assert sorted(read_disk(tmp_path / "store.db")) == ["store.db"]


def test_older_schema_is_described_and_unchanged_without_migration(path: Path, key: EncryptionKey | None):
    before = read_disk(path)
    with pytest.raises(SchemaTooOld, match=rf"schema 1, .* needs {NEWEST}; .*takes about 1 s and [\d.]+ KiB"):
        SqliteStore.open(path, key=key, migrates=False)
    assert read_disk(path) == before


async def test_backup_of_an_earlier_attempt_is_replaced(path: Path, key: EncryptionKey | None):
    """Mutant: keep a complete backup; it lacks what an older release has written since, or has what it erased."""
    backup = path.with_name(BACKUP)
    backup.write_bytes(b"of an earlier attempt")
    backup.with_name(backup.name + ".partial").write_bytes(b"of a killed process")
    await SqliteStore.open(path, key=key).close()
    assert sorted(read_disk(path)) == ["store.db", BACKUP]
    assert read_old_rows(backup, key) == (1, ["The cello."])


def test_damaged_store_is_not_migrated(path: Path, key: EncryptionKey | None):
    """Mutant: no `quick_check` of the copy."""
    old = connect_with_key(path, key)
    page = old.execute("select rootpage from sqlite_schema where name = 'records_id'").get
    old.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * 8192 + 8 : page * 8192] = bytes(8184)
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt):
        SqliteStore.open(path, key=key)
    assert [name for name in read_disk(path) if "before-schema" in name] == []
    if key is None:
        assert path.read_bytes()[100:] == data[100:]


# Open elsewhere

HOLD = """
import sys
from pathlib import Path
from recollect.stores.sqlite import EncryptionKey
from recollect.stores.sqlite.connection import open_connection

connection = open_connection(Path(sys.argv[1]), writes=True, key=EncryptionKey(sys.argv[2]) if sys.argv[2] else None)
print("open", flush=True)
sys.stdin.readline()
connection.execute("insert into meta values ('late', 'yes')")
connection.close()
"""
OPEN = """
import asyncio, sys
from pathlib import Path
import apsw
from recollect.stores.sqlite import EncryptionKey, SqliteStore

def wait(cursor, sql, bindings):
    if sql.startswith(sys.argv[3]):
        print("waiting", flush=True)
        sys.stdin.readline()
    return True

if sys.argv[3]:
    apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", wait))
store = SqliteStore.open(Path(sys.argv[1]), key=EncryptionKey(sys.argv[2]) if sys.argv[2] else None)
print("migrated", flush=True)
asyncio.run(store.close())
"""


def start(code: str, path: Path, key: EncryptionKey | None, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, str(path), KEY_TEXT if key else "", *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def test_file_open_elsewhere_is_refused_and_unchanged(path: Path, key: EncryptionKey | None):
    """Mutant: `lock_exclusively` takes no lock."""
    holder = start(HOLD, path, key)
    assert read_line(holder) == "open"
    before = read_disk(path)["store.db"]
    with pytest.raises(StoreUnavailable, match="open elsewhere, so it was not migrated; stop every program"):
        SqliteStore.open(path, key=key)
    assert read_disk(path)["store.db"] == before
    assert BACKUP not in read_disk(path)
    assert holder.communicate("go on\n") == ("", "")
    await SqliteStore.open(path, key=key).close()
    assert read_old_rows(path.with_name(BACKUP), key)[0] == 1
    backup = connect_with_key(path.with_name(BACKUP), key)
    assert backup.execute("select value from meta where name = 'late'").get == "yes"
    backup.close()


@pytest.mark.parametrize("statement", ["pragma quick_check", "create table erasures"])
async def test_open_during_a_migration_waits_and_then_raises(
    path: Path, key: EncryptionKey | None, statement: str, monkeypatch: pytest.MonkeyPatch
):
    migrating = start(OPEN, path, key, statement)
    assert read_line(migrating) == "waiting"
    with monkeypatch.context() as patch:
        patch.setattr(connection.create_busy_handler, "__defaults__", (0.2,))
        with pytest.raises(StoreUnavailable, match=r"locked by another program .* wait if it migrates"):
            SqliteStore.open(path, key=key)
    assert migrating.communicate("go on\n") == ("migrated\n", "")
    store = SqliteStore.open(path, key=key)
    assert list_ids(await store.find(Where(FACTS))) == ["old"]
    await store.close()


async def test_processes_that_start_at_once_migrate_once(path: Path, key: EncryptionKey | None):
    """Mutant: keep the file open while waiting for the lock."""
    processes = [start(OPEN, path, key, "") for _ in range(6)]
    assert [process.communicate() for process in processes] == [("migrated\n", "")] * 6
    assert sorted(read_disk(path)) == ["store.db", BACKUP]
    assert read_old_rows(path.with_name(BACKUP), key) == (1, ["The cello."])


# Crashes and full disks

KILL_AT_EACH_STATEMENT = """
import os, shutil, signal, sys
from pathlib import Path
import apsw
from recollect.stores.sqlite import EncryptionKey, SqliteStore

path, key = Path(sys.argv[1]), EncryptionKey(sys.argv[2]) if sys.argv[2] else None
for number in range(1, 1000):
    copy = path.parent / str(number) / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    child = os.fork()
    if child == 0:
        statements = 0

        def kill(cursor, sql, bindings):
            global statements
            statements += 1
            if statements == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return True

        apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", kill))
        SqliteStore.open(copy, key=key)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(number)
"""


async def test_migration_killed_at_each_statement_starts_over(path: Path, key: EncryptionKey | None):
    """Mutants: commit after each migration; no unlink of the partial copy."""
    worker = start(KILL_AT_EACH_STATEMENT, path, key)
    output, errors = worker.communicate()
    assert errors == ""
    assert int(output) > 30
    schemas = set()
    for number in range(1, int(output)):
        killed = path.parent / str(number) / path.name
        backup = killed.with_name(BACKUP)
        if backup.exists():
            assert read_old_rows(backup, key) == (1, ["The cello."])
        store = SqliteStore.open(killed, key=key)
        assert list_ids(await store.find(Where(FACTS))) == ["old"]
        assert await store.check() == []
        await store.close()
        assert sorted(read_disk(killed)) == ["store.db", BACKUP], f"killed at statement {number}"
        schemas.add(read_old_rows(backup, key)[0])
    assert schemas == {1}


OPEN_ON_A_FULL_DISK = """
import os, resource, sys
from pathlib import Path
from recollect.errors import StoreFull
from recollect.stores.sqlite import EncryptionKey, SqliteStore

path = Path(sys.argv[1])
if sys.argv[3] == "file size":
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size - 8192,) * 2)
try:
    SqliteStore.open(path, key=EncryptionKey(sys.argv[2]) if sys.argv[2] else None)
except StoreFull as error:
    print(error)
print(sorted(os.listdir(path.parent)))
sys.stdout.flush()
if sys.argv[4]:
    Path(sys.argv[4]).write_bytes(path.read_bytes())
"""


def open_on_a_full_disk(
    path: Path, key: EncryptionKey | None, way: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Open the store in a process, and return what it printed and the file as it left it."""
    run, arguments = [sys.executable, "-c", OPEN_ON_A_FULL_DISK], [KEY_TEXT if key else "", way]
    if way == "file size":
        return subprocess.run([*run, str(path), *arguments, ""], capture_output=True, text=True), path
    small, after = path.parent / "small", path.parent / "after.db"
    small.mkdir()
    mount = f"mount -t tmpfs -o size={path.stat().st_size + 100_000} none {small} && cp {path} {small}"
    command = shlex.join([*run, str(small / path.name), *arguments, str(after)])
    apart = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    done = subprocess.run([*apart, "sh", "-c", f"{mount} && {command}"], capture_output=True, text=True)
    return done, after


@pytest.mark.parametrize("way", ["tmpfs", "file size"])
async def test_migration_on_a_full_disk_raises_and_changes_nothing(path: Path, key: EncryptionKey | None, way: str):
    """Mutants: no check of the free space; leave the partial copy."""
    done, after = open_on_a_full_disk(path, key, way)
    assert (done.returncode, done.stderr) == (0, "")
    message, files = done.stdout.splitlines()
    assert "free some space" in message
    assert message.startswith("the migration of" if way == "tmpfs" else "there is no room left")
    assert BACKUP in message
    assert files == "['store.db']"
    assert read_old_rows(after, key) == (1, ["The cello."])
    await SqliteStore.open(path, key=key).close()


async def test_migration_without_a_place_for_the_backup_raises_and_changes_nothing(
    path: Path, key: EncryptionKey | None
):
    """Mutant: let the `OSError` through."""
    backup = path.with_name(BACKUP)
    backup.mkdir()
    with pytest.raises(StoreUnavailable, match=r"was not migrated: the backup .* \(Is a directory\)"):
        SqliteStore.open(path, key=key)
    backup.rmdir()
    assert sorted(read_disk(path)) == ["store.db"]
    assert read_old_rows(path, key) == (1, ["The cello."])


# Erasure, keys and restoring

PLAIN = Settings(llm="")


@pytest.mark.promise("E1")
async def test_erasure_deletes_the_backup_of_a_migration(tmp_path: Path):
    """Mutant: `purge_deleted_bytes` does not delete it."""
    path = create_old_store(tmp_path / "store.db", None)
    other = path.with_name(path.name + ".before-schema-2.mine")
    other.write_bytes(b"a file of the user")
    async with AgentMemory.open(path, user="default", embedder=HashEmbedder(), settings=PLAIN) as memory:
        assert path.with_name(BACKUP).exists()
        receipt = await memory.erase(user="default")
        assert (receipt.status, receipt.scan.waits) == ("complete", ())
        assert [name for name, data in read_disk(path).items() if b"cello" in data] == []
    assert sorted(read_disk(path)) == ["store.db", other.name, "store.db.erasures.jsonl"]


@pytest.mark.promise("E1")
async def test_erasure_waits_for_a_backup_that_cannot_be_deleted(tmp_path: Path):
    path = create_old_store(tmp_path / "store.db", None)
    async with AgentMemory.open(path, user="default", embedder=HashEmbedder(), settings=PLAIN) as memory:
        backup = path.with_name(BACKUP)
        backup.unlink()
        backup.mkdir()  # as root, permissions would not prevent the deletion
        receipt = await memory.erase(user="default")
        assert receipt.status == "pending_physical"
        [reason] = receipt.scan.waits
        assert reason.startswith(f"the deletion of {backup}")
        backup.rmdir()
        await memory.lifecycle.run_once()
        assert (await memory.verify_erasure(receipt)).holds


@pytest.mark.promise("E4")
async def test_change_of_the_key_deletes_and_overwrites_the_backup(tmp_path: Path):
    """Mutants: keep the backup, which the old key or no key opens; only unlink it."""
    path = create_old_store(tmp_path / "store.db", None)
    await SqliteStore.open(path).close()
    os.link(path.with_name(BACKUP), tmp_path / "blocks")
    assert change_key(path, None, KEYS["encrypted"])
    assert sorted(read_disk(path)) == ["blocks", "store.db"]
    assert not any((tmp_path / "blocks").read_bytes())


@pytest.mark.promise("E3")
async def test_restore_of_an_older_backup_leaves_no_other_copy(tmp_path: Path):
    """Mutant: delete only the partial file; the backup of its migration has what was erased."""
    backup = create_old_store(tmp_path / "backup.db", None)
    (tmp_path / "new").mkdir()
    await restore_store(backup, tmp_path / "new" / "store.db", settings=PLAIN)
    assert sorted(read_disk(tmp_path / "new" / "store.db")) == ["store.db"]
    assert read_old_rows(backup, None) == (1, ["The cello."])
