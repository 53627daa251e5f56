"""Encrypted SQLite files: bytes on disk, wrong keys, and key changes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import apsw
import pytest

from recollect.errors import (
    BadSettings,
    KeyNeeded,
    NotEncrypted,
    NotFound,
    StoreCorrupt,
    StoreUnavailable,
    Unsupported,
    WrongKey,
)
from recollect.settings import Settings
from recollect.stores.filters import Where
from recollect.stores.sqlite import EncryptionKey, SqliteStore, backup, change_key, create_key_file, load_key
from recollect.stores.sqlite import connection as connections
from recollect.stores.sqlite.connection import is_encrypted_with
from recollect.testing.factories import EVERYTHING, SPACE, list_ids, make_put

TEXT = "feed" * 16
KEY, OTHER = EncryptionKey(TEXT), EncryptionKey("beef" * 16)
CANARY = b"heliotrope"


async def fill(path: Path, key: EncryptionKey | None = KEY) -> SqliteStore:
    store = SqliteStore.open(path, readers=1, key=key)
    for n in range(40):
        await store.write(make_put(f"i{n}", [1, n, 0, 0], f"heliotrope{n}", content=f"the heliotrope number {n} " * 20))
    return store


def read_disk(folder: Path) -> bytes:
    return b"\0".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


def copy_as_after_a_crash(folder: Path, to: Path) -> None:
    """Copy the store without its shared memory file, so that the WAL is not written back."""
    for file in folder.glob("store.db*"):
        if not file.name.endswith(("-shm", "-ballast")):
            (to / file.name).write_bytes(file.read_bytes())


async def test_encrypted_files_contain_no_plain_text(tmp_path: Path):
    store = await fill(tmp_path / "store.db")
    assert (store.path.stat().st_size, (tmp_path / "store.db-wal").stat().st_size) > (0, 0)
    assert store.encrypted
    await store.backup(str(tmp_path / "backup.db"))
    data = read_disk(tmp_path)
    assert CANARY not in data
    assert TEXT.encode() not in data
    assert bytes.fromhex(TEXT) not in data
    for name in ("store.db", "backup.db"):
        assert not (tmp_path / name).read_bytes().startswith(b"SQLite format 3")
    await store.close()
    assert CANARY not in read_disk(tmp_path)
    # The same text is found in a store without a key.
    plain = await fill(tmp_path / "plain.db", None)
    assert CANARY in read_disk(tmp_path)
    await plain.close()


async def test_backup_uses_the_key_of_its_store(tmp_path: Path):
    store = await fill(tmp_path / "store.db")
    await store.backup(str(tmp_path / "backup.db"))
    await store.close()
    copy = SqliteStore.open(tmp_path / "backup.db", key=KEY)
    assert (len(await copy.find(EVERYTHING)), await copy.check()) == (40, [])
    await copy.close()
    with pytest.raises(WrongKey):
        SqliteStore.open(tmp_path / "backup.db", key=OTHER)


@pytest.mark.parametrize("log_left", [False, True])
async def test_wrong_key_is_refused_and_files_are_unchanged(tmp_path: Path, log_left: bool):
    store = await fill(tmp_path / "store.db")
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    if not log_left:
        await store.close()
    copy_as_after_a_crash(tmp_path, crashed)
    if log_left:
        await store.close()
        assert (crashed / "store.db-wal").stat().st_size > 100_000
    before = {file.name: file.read_bytes() for file in crashed.iterdir()}
    for key, error, message in (
        (OTHER, WrongKey, "another key"),
        (EncryptionKey("a passphrase of another user"), WrongKey, "set the key it was encrypted with"),
        (None, KeyNeeded, "RECOLLECT_ENCRYPTION_KEY"),
    ):
        with pytest.raises(error, match=message) as caught:
            SqliteStore.open(crashed / "store.db", key=key)
        shown = "".join(traceback.format_exception(caught.value))
        assert "beef" not in shown
        assert "passphrase of" not in shown
    assert {file.name: file.read_bytes() for file in crashed.iterdir()} == before
    again = SqliteStore.open(crashed / "store.db", key=KEY)
    assert len(await again.find(EVERYTHING)) == 40
    await again.close()


async def test_key_for_an_unencrypted_file_is_refused(tmp_path: Path):
    store = await fill(tmp_path / "store.db", None)
    await store.close()
    before = read_disk(tmp_path)
    with pytest.raises(NotEncrypted, match=r"recollect key set --store .*store\.db"):
        SqliteStore.open(tmp_path / "store.db", key=KEY)
    assert read_disk(tmp_path) == before


def test_other_file_is_not_taken_for_an_encrypted_store(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"just some notes\n" * 1000)
    for key in (None, KEY):
        with pytest.raises(StoreCorrupt, match="name another file"):
            SqliteStore.open(path, key=key)


async def test_damaged_encrypted_pages_are_detected(tmp_path: Path):
    store = await fill(tmp_path / "store.db")
    await store.close()
    data = bytearray(store.path.read_bytes())
    for page in range(2, len(data) // 8192):
        data[page * 8192 + 4000] ^= 1
    store.path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        await SqliteStore.open(store.path, key=KEY).find(EVERYTHING)


MAKE = """
import asyncio, sys
from pathlib import Path
from recollect.stores.sqlite import EncryptionKey, SqliteStore
from recollect.testing.factories import make_put

async def main(name):
    for line in sys.stdin:
        store = SqliteStore.open(Path(line.strip()), key=EncryptionKey("feed" * 16))
        await store.write(make_put(name))
        await store.close()
        print("done", flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def test_concurrent_creation_of_an_encrypted_store_succeeds(tmp_path: Path):
    names = ["p0", "p1", "p2"]
    makers = [_start_maker(name) for name in names]
    for attempt in range(10):
        path = tmp_path / f"store{attempt}.db"
        for maker in makers:
            assert maker.stdin is not None
            maker.stdin.write(f"{path}\n")
            maker.stdin.flush()
        for maker in makers:
            assert maker.stdout is not None
            assert maker.stdout.readline() == "done\n"
        store = SqliteStore.open(path, key=KEY)
        assert sorted(list_ids(await store.find(Where(SPACE)))) == names
        await store.close()
    assert [maker.communicate()[1] for maker in makers] == [""] * len(names)


def _start_maker(name: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", MAKE, name], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


class TestChangeKey:
    """Encryption, a change of the key, and decryption of a store."""

    async def test_all_data_is_kept(self, tmp_path: Path):
        path = tmp_path / "store.db"
        await (await fill(path, None)).close()
        path.chmod(0o640)
        for old, new in ((None, KEY), (KEY, OTHER), (OTHER, None)):
            assert change_key(path, old, new)
            assert not change_key(path, old, new), "changed although the key is the same"
            assert [is_encrypted_with(path, key) for key in (None, KEY, OTHER)] == [
                key is new for key in (None, KEY, OTHER)
            ]
            assert (CANARY in read_disk(tmp_path)) == (new is None)
            assert os.listdir(tmp_path) == ["store.db"]
            assert path.stat().st_mode & 0o777 == 0o640
            store = SqliteStore.open(path, key=new)
            assert (len(await store.find(EVERYTHING)), await store.check()) == (40, [])
            await store.close()

    async def test_open_store_is_refused(self, tmp_path: Path):
        store = await fill(tmp_path / "store.db")
        with pytest.raises(StoreUnavailable, match="open elsewhere"):
            change_key(store.path, KEY, OTHER)
        await store.write(make_put("later"))
        await store.close()
        assert change_key(store.path, KEY, OTHER)

    async def test_waiting_opener_does_not_use_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        # Mutants: the old file is left unchanged; the opener does not check whether the file was replaced.
        path = tmp_path / "store.db"
        await (await fill(path)).close()
        put_in_place, prepare = backup._replace_file, connections._configure_connection
        is_open, opened = threading.Event(), list[object]()

        def open_it() -> None:
            try:
                opened.append(SqliteStore.open(path, key=KEY))
            except WrongKey as error:
                opened.append(error)

        waiting = threading.Thread(target=open_it)

        def signal_and_prepare(*given: object, **options: object) -> None:
            is_open.set()  # the file is open, and its first query waits for the lock
            prepare(*given, **options)  # type: ignore[arg-type]

        def replace_while_opening(*given: object, **options: object) -> None:
            monkeypatch.setattr(connections, "_configure_connection", signal_and_prepare)
            waiting.start()
            assert is_open.wait(30)
            put_in_place(*given, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(backup, "_replace_file", replace_while_opening)
        await asyncio.to_thread(change_key, path, KEY, OTHER)
        await asyncio.to_thread(waiting.join, 60)
        assert [type(one) for one in opened] == [WrongKey]
        store = SqliteStore.open(path, key=OTHER)
        assert (len(await store.find(EVERYTHING)), await store.check()) == (40, [])
        await store.close()

    async def test_missing_file_or_wrong_key_is_refused(self, tmp_path: Path):
        path = tmp_path / "store.db"
        with pytest.raises(NotFound):
            change_key(path, None, KEY)
        await (await fill(path)).close()
        with pytest.raises(WrongKey, match="key rotate"):
            change_key(path, None, OTHER)
        with pytest.raises(WrongKey):
            change_key(path, OTHER, None)
        assert is_encrypted_with(path, KEY)


class TestEncryptionKey:
    """Sources of the key; it is never shown."""

    def test_load_from_setting_function_or_file(self, tmp_path: Path):
        file = create_key_file(tmp_path / "key")
        assert file.stat().st_mode & 0o777 == 0o600
        text = file.read_text().strip()
        salt = EncryptionKey(text).create_salt()
        for settings in (
            Settings(encryption_key=text),
            Settings(encryption_key=lambda: f"{text}\n"),
            Settings(encryption_key_file=str(file)),
            Settings.load(environ={"RECOLLECT_ENCRYPTION_KEY": text}, directory=tmp_path),
            Settings.load(environ={"RECOLLECT_ENCRYPTION_KEY_FILE": str(file)}, directory=tmp_path),
        ):
            key = load_key(settings)
            assert key is not None
            assert key.is_key_for(salt)
            assert not key.is_key_for(OTHER.create_salt())
            for shown in (repr(settings), repr(key), str(key)):
                assert text not in shown
        assert load_key(Settings()) is None

    def test_invalid_key_is_refused_without_showing_it(self, tmp_path: Path):
        read_by_all, missing = tmp_path / "open", tmp_path / "missing"
        read_by_all.write_text(TEXT)
        read_by_all.chmod(0o644)
        for settings, message in (
            (Settings(encryption_key="too short"), "16 characters"),
            (Settings(encryption_key=TEXT, encryption_key_file="x"), "keep one"),
            (Settings(encryption_key=lambda: 5), "got int"),  # type: ignore[arg-type, return-value]
            (Settings(encryption_key_file=str(read_by_all)), "chmod 600"),
            (
                Settings(encryption_key_file=str(tmp_path)),
                "is not a file",
            ),  # without advice to change the mode of a directory
            (Settings(encryption_key_file=str(missing)), "cannot be read"),
        ):
            with pytest.raises(BadSettings, match=message) as caught:
                load_key(settings)
            assert TEXT not in str(caught.value)
            assert "too short" not in str(caught.value)
        with pytest.raises(BadSettings, match="name a new file"):
            create_key_file(read_by_all)

    def test_passphrase_derives_a_key_per_file(self):
        key = EncryptionKey("correct horse battery staple")
        first, second = key.create_salt(), key.create_salt()
        assert key.is_key_for(first)
        assert key.is_key_for(second)
        assert key.derive_pragma_key(first)[:68] != key.derive_pragma_key(second)[:68]

    def test_sqlite_without_encryption_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delattr(apsw, "mc_version")
        with pytest.raises(Unsupported, match="pip uninstall apsw"):
            SqliteStore.open(tmp_path / "store.db", key=KEY)
        assert os.listdir(tmp_path) == []
