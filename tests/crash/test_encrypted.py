"""E4: erasure in an encrypted store, checked in the decrypted pages, and kills during a change of the key."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from recollect.stores.sqlite import EncryptionKey, SqliteStore, change_key
from recollect.stores.sqlite.connection import is_encrypted_with, open_connection, read_main_file, read_wal_pages
from recollect.testing.factories import make_append
from tests.crash import canaries, mutants, turn_history
from tests.crash.acknowledgments import Ledger
from tests.crash.canaries import EACH, count_left, make_scope
from tests.crash.forkserver import ForkServer
from tests.crash.process_launcher import read_line, send_line, start
from tests.crash.rekey_worker import KEYS
from tests.crash.result_table import Table
from tests.crash.test_erasure import CanariesByKind, run

KILLS = int(os.environ.get("CRASH_REKEYS", "24"))
MUTANT_KILLS = 15
TURNS = 60
TEXT = "c0de" * 16
KEY = EncryptionKey(TEXT)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CanariesByKind]:
    """Create an encrypted store with the canaries of two users; each test copies it."""
    path = tmp_path_factory.mktemp("encrypted") / "filled.db"
    planted = asyncio.run(canaries.fill(path, "ada", "bob", key=KEY))
    return path, planted["ada"]


@pytest.fixture
def copied(filled: tuple[Path, CanariesByKind], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECOLLECT_ENCRYPTION_KEY", TEXT)
    return Path(shutil.copyfile(filled[0], tmp_path / "agent.db"))


def count_in_pages(path: Path, planted: CanariesByKind) -> int:
    """Return how many canaries are in the decrypted pages."""
    connection = open_connection(path, writes=False, key=KEY)
    connection.execute("select count(*) from meta").fetchall()
    data = b"\0".join([*read_main_file(connection), *read_wal_pages(connection)])
    connection.close()
    return sum(canary.is_in(data) for some in planted.values() for canary in some)


@pytest.mark.promise("E4")
def test_erase_leaves_no_canary_in_decrypted_pages(filled: tuple[Path, CanariesByKind], copied: Path, table: Table):
    _, ada = filled
    every = EACH * len(ada)
    assert (count_left(copied, ada), count_in_pages(copied, ada)) == (0, every), "only readable with the key"
    reader = start("erase_worker", "read", copied, "idle")
    assert json.loads(read_line(reader)) == {"found": 5}
    read_line(reader)
    receipt = run("erase", copied)["receipt"]
    send_line(reader)
    report = json.loads(read_line(reader))
    found = count_in_pages(copied, ada)
    reader.communicate()
    table.add_result("E4", f"{every} canaries erased from an encrypted store, searched in the decrypted pages", found)
    assert (receipt["status"], found) == ("complete", 0)
    assert report == {"found": 0, "others": 5, "cached": 1}
    assert run("resume", copied)["holds"] == [True]


@pytest.mark.mutant("E4")
@pytest.mark.parametrize("mutant", ["insecure_term_delete", "keep_wal", "keep_page_gaps"])
def test_erase_mutant_leaves_canaries_in_decrypted_pages(
    filled: tuple[Path, CanariesByKind], copied: Path, table: Table, mutant: str
):
    reader = SqliteStore.open(copied, readers=1, key=KEY)  # keeps the log, which the last closing process deletes
    text = filled[1]["conversation entries"][0].text
    asyncio.run(reader.write(make_append("again", space=make_scope("ada").space("conversation"), content=text)))
    receipt = run("erase", copied, mutant=mutant)["receipt"]
    found = count_in_pages(copied, filled[1])
    asyncio.run(reader.close())
    table.add_mutant("E4", " ".join((mutants.MUTANTS[mutant].__doc__ or mutant).split()), found)
    assert found > 0
    # The scan of the erasure has found it too, because it reads the decrypted pages. With `keep_page_gaps` the moved
    # row may be a short one, which the scan does not search for.
    assert mutant == "keep_page_gaps" or receipt["status"] == "pending_physical"


async def find_rekey_faults(
    folder: Path, ledger: Ledger, rng: random.Random, kills: int, mutant: str = ""
) -> list[str]:
    """Kill a process that changes the key, at random moments, and return the faults of the store after each."""
    fork_server = ForkServer(ledger.writing, mutant=mutant)
    path, faults = folder / "store.db", []
    await _write(path)
    kept = path.read_bytes()
    for number in range(kills):
        child = fork_server.start_child("rekey_worker", path, ledger.writing)
        ledger.wait(30)
        if number % 2:
            await asyncio.sleep(rng.uniform(0, 0.12))
        else:
            _wait_for_new_header(path)
        fork_server.kill(child)
        ledger.read()
        found = await _find_faults(path, ledger.lines[-1])
        faults += found
        if found:
            path.write_bytes(kept)
    fork_server.close()
    return faults


def _wait_for_new_header(path: Path) -> None:
    """Wait until the first bytes of the file change, which is the riskiest moment for a kill."""
    before, deadline = _read_header(path), time.monotonic() + 10
    while _read_header(path) == before and time.monotonic() < deadline:
        pass


def _read_header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)


async def _write(path: Path) -> None:
    store = SqliteStore.open(path, readers=1)
    for turn in range(1, TURNS + 1):
        await store.write(*turn_history.make_batch(turn))
    await store.close()


async def _find_faults(path: Path, allowed: list[str]) -> list[str]:
    names = [name for name in allowed if is_encrypted_with(path, KEYS[name])]
    if not names:
        return [f"neither {' nor '.join(allowed)} opens the store"]
    try:
        store = SqliteStore.open(path, readers=1, key=KEYS[names[0]])
    except Exception as error:  # noqa: BLE001 - any error means that the store cannot be opened
        return [repr(error)]
    try:
        found = [*await store.check(), *await turn_history.find_faults(store, TURNS, TURNS)]
    except Exception as error:  # noqa: BLE001
        found = [repr(error)]
    await store.close()
    # A journal without a header was never active: the file had not been changed when the process was killed.
    extra = sorted(file.name for file in path.parent.iterdir() if file != path and file.read_bytes()[:8].strip(b"\0"))
    return [*found, *(f"{name} was left" for name in extra)]


@pytest.mark.promise("E4")
async def test_kill_during_rekey_leaves_store_with_old_or_new_key(
    tmp_path: Path, ledger: Ledger, rng: random.Random, table: Table
):
    faults = await find_rekey_faults(tmp_path, ledger, rng, KILLS)
    table.add_result("E4", f"{KILLS} kills -9 while a store was encrypted, given another key or decrypted", len(faults))
    assert faults == []


@pytest.mark.mutant("E4")
async def test_rekey_in_place_is_detected(tmp_path: Path, ledger: Ledger, rng: random.Random, table: Table):
    faults = await find_rekey_faults(tmp_path, ledger, rng, MUTANT_KILLS, "rekey_in_place")
    table.add_mutant("E4", " ".join((mutants.MUTANTS["rekey_in_place"].__doc__ or "").split()), len(faults))
    assert faults


def test_encrypting_plain_store_leaves_no_canary_on_disk(filled: tuple[Path, CanariesByKind], tmp_path: Path):
    path = Path(shutil.copyfile(filled[0], tmp_path / "agent.db"))
    assert change_key(path, KEY, None)
    assert count_left(path, filled[1]) == EACH * len(filled[1])
    assert change_key(path, None, KEY)
    assert count_left(path, filled[1]) == 0
