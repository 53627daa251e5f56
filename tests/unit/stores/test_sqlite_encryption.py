"""An encrypted file: what lies on disk, who is refused, and what they are told."""

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
from recollect.stores.sqlite import Key, SqliteStore, change_key, key_of, new_key_file, rekeying
from recollect.stores.sqlite import connection as connections
from recollect.stores.sqlite.file import connected, is_as
from recollect.stores.sqlite.gaps import blank, unused
from recollect.stores.sqlite.migrations import migrations
from recollect.stores.sqlite.pages import read_file
from recollect.stores.sqlite.physical import emptied_log
from recollect.stores.where import Where
from recollect.testing.samples import ADA, BOB, EVERYTHING, SPACE, append, ids, put

TEXT = "feed" * 16
KEY, OTHER = Key(TEXT), Key("beef" * 16)
CANARY = b"heliotrope"


async def filled(path: Path, key: Key | None = KEY) -> SqliteStore:
    store = SqliteStore.open(path, readers=1, key=key)
    for n in range(40):
        await store.write(put(f"i{n}", [1, n, 0, 0], f"heliotrope{n}", content=f"the heliotrope number {n} " * 20))
    return store


def on_disk(folder: Path) -> bytes:
    return b"\0".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


def copied_as_after_a_crash(folder: Path, to: Path) -> None:
    """The log is not written back, and what is shared between processes is gone."""
    for file in folder.glob("store.db*"):
        if not file.name.endswith(("-shm", "-ballast")):
            (to / file.name).write_bytes(file.read_bytes())


async def test_no_byte_on_disk_gives_anything_away(tmp_path: Path):
    store = await filled(tmp_path / "store.db")
    assert (store.path.stat().st_size, (tmp_path / "store.db-wal").stat().st_size) > (0, 0)
    assert store.encrypted
    await store.backup(str(tmp_path / "backup.db"))
    held = on_disk(tmp_path)
    assert CANARY not in held
    assert TEXT.encode() not in held
    assert bytes.fromhex(TEXT) not in held
    for name in ("store.db", "backup.db"):
        assert not (tmp_path / name).read_bytes().startswith(b"SQLite format 3")
    await store.close()
    assert CANARY not in on_disk(tmp_path)
    # The same store without a key, or its absence would mean nothing.
    plain = await filled(tmp_path / "plain.db", None)
    assert CANARY in on_disk(tmp_path)
    await plain.close()


async def test_a_backup_has_the_key_of_its_store(tmp_path: Path):
    store = await filled(tmp_path / "store.db")
    await store.backup(str(tmp_path / "backup.db"))
    await store.close()
    copy = SqliteStore.open(tmp_path / "backup.db", key=KEY)
    assert (len(await copy.find(EVERYTHING)), await copy.check()) == (40, [])
    await copy.close()
    with pytest.raises(WrongKey):
        SqliteStore.open(tmp_path / "backup.db", key=OTHER)


@pytest.mark.parametrize("log_left", [False, True])
async def test_another_key_is_refused_and_nothing_is_touched(tmp_path: Path, log_left: bool):
    store = await filled(tmp_path / "store.db")
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    if not log_left:
        await store.close()
    copied_as_after_a_crash(tmp_path, crashed)
    if log_left:
        await store.close()
        assert (crashed / "store.db-wal").stat().st_size > 100_000
    before = {file.name: file.read_bytes() for file in crashed.iterdir()}
    for key, error, said in (
        (OTHER, WrongKey, "another key"),
        (Key("a passphrase of somebody"), WrongKey, "set the key it was encrypted with"),
        (None, KeyNeeded, "RECOLLECT_ENCRYPTION_KEY"),
    ):
        with pytest.raises(error, match=said) as caught:
            SqliteStore.open(crashed / "store.db", key=key)
        told = "".join(traceback.format_exception(caught.value))
        assert "beef" not in told
        assert "passphrase of" not in told
    assert {file.name: file.read_bytes() for file in crashed.iterdir()} == before
    again = SqliteStore.open(crashed / "store.db", key=KEY)
    assert len(await again.find(EVERYTHING)) == 40
    await again.close()


async def test_with_a_key_a_file_that_is_not_encrypted_is_refused(tmp_path: Path):
    store = await filled(tmp_path / "store.db", None)
    await store.close()
    before = on_disk(tmp_path)
    with pytest.raises(NotEncrypted, match=r"recollect key set --store .*store\.db"):
        SqliteStore.open(tmp_path / "store.db", key=KEY)
    assert on_disk(tmp_path) == before


def test_what_is_no_database_is_not_taken_for_an_encrypted_one(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"just some notes\n" * 1000)
    for key in (None, KEY):
        with pytest.raises(StoreCorrupt, match="name another file"):
            SqliteStore.open(path, key=key)


async def test_damage_behind_the_encryption_is_seen(tmp_path: Path):
    store = await filled(tmp_path / "store.db")
    await store.close()
    data = bytearray(store.path.read_bytes())
    for page in range(2, len(data) // 8192):
        data[page * 8192 + 4000] ^= 1
    store.path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        await SqliteStore.open(store.path, key=KEY).find(EVERYTHING)


async def test_an_encrypted_file_of_the_first_schema_is_brought_up_to_date(tmp_path: Path):
    connection = connected(tmp_path / "store.db", KEY)
    connection.execute(dict(migrations())[1])
    connection.pragma("application_id", connections.APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.close()
    store = SqliteStore.open(tmp_path / "store.db", key=KEY)
    await store.write(put("a"))
    assert (await store.check(), store.encrypted) == ([], True)
    await store.close()


async def test_a_row_that_was_moved_leaves_no_bytes_behind_the_encryption(tmp_path: Path):
    # Mutants: the copy is not blanked; it is not written back.
    store = SqliteStore.open(tmp_path / "store.db", key=KEY)
    for n in range(300):  # by turns, so that rows come between others and pages are divided
        await store.write(*(append(f"{n}", content=f"moved {n} " * 9, space=s.space("episodic")) for s in (ADA, BOB)))
    assert emptied_log(store.path, KEY)
    assert dirty(store.path) > 0
    assert blank(store.path, KEY)
    assert emptied_log(store.path, KEY)
    assert (dirty(store.path), await store.check()) == (0, [])
    assert len(await store.read(ADA.space("episodic"))) == 300
    assert not (tmp_path / "store.db-blanked").exists()
    await store.write(*(append(f"later {n}", space=ADA.space("episodic")) for n in range(50)))
    assert len(await store.read(ADA.space("episodic"))) == 350
    await store.close()


async def test_what_was_written_while_the_copy_was_blanked_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Mutant: the copy is written back without looking whether somebody wrote.
    from recollect.stores.sqlite import gaps

    store = SqliteStore.open(tmp_path / "store.db", key=KEY)
    other = SqliteStore.open(tmp_path / "store.db", key=KEY)
    for n in range(200):
        await store.write(*(append(f"{n}", content=f"moved {n} " * 9, space=s.space("episodic")) for s in (ADA, BOB)))
    assert emptied_log(store.path, KEY)
    blanked = gaps._blanked
    loop = asyncio.get_running_loop()

    def meanwhile(connection: apsw.Connection) -> None:
        asyncio.run_coroutine_threadsafe(other.write(put("meanwhile")), loop).result()
        blanked(connection)

    monkeypatch.setattr(gaps, "_blanked", meanwhile)
    assert not await asyncio.to_thread(blank, store.path, KEY)
    assert ids(await store.get(SPACE, "meanwhile")) == ["meanwhile"]
    await other.close()
    await store.close()


def dirty(path: Path) -> int:
    """How many unused parts of pages hold something."""
    connection = connected(path, KEY)
    data, size = b"".join(read_file(connection)), 8192
    connection.close()
    pages = (data[at : at + size] for at in range(0, len(data), size))
    return sum(
        bool(page[start:end].strip(b"\0")) for n, page in enumerate(pages) for start, end in unused(page, first=n == 0)
    )


MAKE = """
import asyncio, sys
from pathlib import Path
from recollect.stores.sqlite import Key, SqliteStore
from recollect.testing.samples import put

async def main(name):
    for line in sys.stdin:
        store = SqliteStore.open(Path(line.strip()), key=Key("feed" * 16))
        await store.write(put(name))
        await store.close()
        print("done", flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def test_processes_that_make_an_encrypted_store_at_once_all_succeed(tmp_path: Path):
    names = ["p0", "p1", "p2"]
    makers = [_maker(name) for name in names]
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
        assert sorted(ids(await store.find(Where(SPACE)))) == names
        await store.close()
    assert [maker.communicate()[1] for maker in makers] == [""] * len(names)


def _maker(name: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", MAKE, name], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


class TestChangingTheKey:
    """Encrypted, given another key, decrypted: everything is there each time, and only for who has the key."""

    async def test_there_and_back_again_everything_is_kept(self, tmp_path: Path):
        path = tmp_path / "store.db"
        await (await filled(path, None)).close()
        path.chmod(0o640)
        for old, new in ((None, KEY), (KEY, OTHER), (OTHER, None)):
            assert change_key(path, old, new)
            assert not change_key(path, old, new), "it is so already"
            assert [is_as(path, key) for key in (None, KEY, OTHER)] == [key is new for key in (None, KEY, OTHER)]
            assert (CANARY in on_disk(tmp_path)) == (new is None)
            assert os.listdir(tmp_path) == ["store.db"]
            assert path.stat().st_mode & 0o777 == 0o640
            store = SqliteStore.open(path, key=new)
            assert (len(await store.find(EVERYTHING)), await store.check()) == (40, [])
            await store.close()

    async def test_not_while_somebody_has_the_store_open(self, tmp_path: Path):
        store = await filled(tmp_path / "store.db")
        with pytest.raises(StoreUnavailable, match="open elsewhere"):
            change_key(store.path, KEY, OTHER)
        await store.write(put("later"))
        await store.close()
        assert change_key(store.path, KEY, OTHER)

    async def test_whoever_waited_meanwhile_does_not_go_on_with_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        # Mutants: the old file is left as it was, and nobody asks whether it has moved.
        path = tmp_path / "store.db"
        await (await filled(path)).close()
        put_in_place, prepare = rekeying._put_in_place, connections._prepare
        there, opened = threading.Event(), list[object]()

        def open_it() -> None:
            try:
                opened.append(SqliteStore.open(path, key=KEY))
            except WrongKey as error:
                opened.append(error)

        waiting = threading.Thread(target=open_it)

        def arrived(*given: object, **options: object) -> None:
            there.set()  # the file is open, and its first question waits for the lock
            prepare(*given, **options)  # type: ignore[arg-type]

        def while_somebody_waits(*given: object, **options: object) -> None:
            monkeypatch.setattr(connections, "_prepare", arrived)
            waiting.start()
            assert there.wait(30)
            put_in_place(*given, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(rekeying, "_put_in_place", while_somebody_waits)
        await asyncio.to_thread(change_key, path, KEY, OTHER)
        await asyncio.to_thread(waiting.join, 60)
        assert [type(one) for one in opened] == [WrongKey]
        store = SqliteStore.open(path, key=OTHER)
        assert (len(await store.find(EVERYTHING)), await store.check()) == (40, [])
        await store.close()

    async def test_what_cannot_be_meant_is_refused(self, tmp_path: Path):
        path = tmp_path / "store.db"
        with pytest.raises(NotFound):
            change_key(path, None, KEY)
        await (await filled(path)).close()
        with pytest.raises(WrongKey, match="key rotate"):
            change_key(path, None, OTHER)
        with pytest.raises(WrongKey):
            change_key(path, OTHER, None)
        assert is_as(path, KEY)


class TestTheKey:
    """Where it comes from, and that it is seen nowhere."""

    def test_from_a_setting_a_function_or_a_file(self, tmp_path: Path):
        file = new_key_file(tmp_path / "key")
        assert file.stat().st_mode & 0o777 == 0o600
        text = file.read_text().strip()
        salt = Key(text).fresh_salt()
        for settings in (
            Settings(encryption_key=text),
            Settings(encryption_key=lambda: f"{text}\n"),
            Settings(encryption_key_file=str(file)),
            Settings.load(environ={"RECOLLECT_ENCRYPTION_KEY": text}, directory=tmp_path),
            Settings.load(environ={"RECOLLECT_ENCRYPTION_KEY_FILE": str(file)}, directory=tmp_path),
        ):
            key = key_of(settings)
            assert key is not None
            assert key.fits(salt)
            assert not key.fits(OTHER.fresh_salt())
            for shown in (repr(settings), repr(key), str(key)):
                assert text not in shown
        assert key_of(Settings()) is None

    def test_what_is_no_key_is_refused_without_repeating_it(self, tmp_path: Path):
        read_by_all, missing = tmp_path / "open", tmp_path / "missing"
        read_by_all.write_text(TEXT)
        read_by_all.chmod(0o644)
        for settings, said in (
            (Settings(encryption_key="too short"), "16 characters"),
            (Settings(encryption_key=TEXT, encryption_key_file="x"), "keep one"),
            (Settings(encryption_key=lambda: 5), "gave a int"),  # type: ignore[arg-type, return-value]
            (Settings(encryption_key_file=str(read_by_all)), "chmod 600"),
            (Settings(encryption_key_file=str(tmp_path)), "is no file"),  # and no advice to change a directory's mode
            (Settings(encryption_key_file=str(missing)), "cannot be read"),
        ):
            with pytest.raises(BadSettings, match=said) as caught:
                key_of(settings)
            assert TEXT not in str(caught.value)
            assert "too short" not in str(caught.value)
        with pytest.raises(BadSettings, match="name a new file"):
            new_key_file(read_by_all)

    def test_of_a_passphrase_every_file_has_another_key(self):
        key = Key("correct horse battery staple")
        first, second = key.fresh_salt(), key.fresh_salt()
        assert key.fits(first)
        assert key.fits(second)
        assert key.told(first)[:68] != key.told(second)[:68]

    def test_an_sqlite_that_cannot_encrypt_is_told_apart(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delattr(apsw, "mc_version")
        with pytest.raises(Unsupported, match="pip uninstall apsw"):
            SqliteStore.open(tmp_path / "store.db", key=KEY)
        assert os.listdir(tmp_path) == []
