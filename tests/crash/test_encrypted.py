"""Encryption and what may happen to it: an erasure whose proof looks behind it, and a kill while the key is changed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from recollect.stores.sqlite import Key, SqliteStore, change_key
from recollect.stores.sqlite.connection import open_connection
from recollect.stores.sqlite.file import is_as
from recollect.stores.sqlite.pages import read_file, read_log
from tests.crash import canaries, history, mutants
from tests.crash.canaries import EACH, left
from tests.crash.ledger import Ledger
from tests.crash.nursery import Nursery
from tests.crash.processes import line_of, start, tell
from tests.crash.rekeyer import KEYS
from tests.crash.table import Table
from tests.crash.test_erasure import Told, run

KILLS = int(os.environ.get("CRASH_REKEYS", "24"))
MUTANT_KILLS = 15
TURNS = 60
TEXT = "c0de" * 16
KEY = Key(TEXT)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told]:
    """An encrypted store with the canaries of two users, once for all; each test works on a copy."""
    path = tmp_path_factory.mktemp("encrypted") / "filled.db"
    told = asyncio.run(canaries.fill(path, "ada", "bob", key=KEY))
    return path, told["ada"]


@pytest.fixture
def copied(filled: tuple[Path, Told], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECOLLECT_ENCRYPTION_KEY", TEXT)
    return Path(shutil.copyfile(filled[0], tmp_path / "agent.db"))


def behind(path: Path, told: Told) -> int:
    """How many canaries the pages give away to one who has the key."""
    connection = open_connection(path, writes=False, key=KEY)
    connection.execute("select count(*) from meta").fetchall()
    data = b"\0".join([*read_file(connection), *read_log(connection)])
    connection.close()
    return sum(canary.left_in(data) for some in told.values() for canary in some)


def test_nothing_of_what_was_erased_is_left_behind_the_encryption(
    filled: tuple[Path, Told], copied: Path, table: Table
):
    _, ada = filled
    every = EACH * len(ada)
    assert (left(copied, ada), behind(copied, ada)) == (0, every), "encrypted, and there for who has the key"
    onlooker = start("eraser", "look on", copied, "idle")
    assert json.loads(line_of(onlooker)) == {"found": 5}
    line_of(onlooker)
    receipt = run("erase", copied)["receipt"]
    tell(onlooker)
    seen = json.loads(line_of(onlooker))
    found = behind(copied, ada)
    onlooker.communicate()
    table.held("E4", f"{every} canaries erased from an encrypted store, looked for behind the encryption", found)
    assert (receipt["status"], found) == ("complete", 0)
    assert seen == {"found": 0, "others": 5, "cached": 1}
    assert run("again", copied)["holds"] == [True]


@pytest.mark.parametrize("mutant", ["words_left", "log_left", "gaps_left"])
def test_mutants_leave_canaries_behind_the_encryption(
    filled: tuple[Path, Told], copied: Path, table: Table, mutant: str
):
    reader = SqliteStore.open(copied, readers=1, key=KEY)  # or the log would go when the last process closes it
    receipt = run("erase", copied, mutant=mutant)["receipt"]
    found = behind(copied, filled[1])
    asyncio.run(reader.close())
    table.seen("E4", " ".join((mutants.MUTANTS[mutant].__doc__ or mutant).split()), found)
    assert found > 0
    # And the product's own look has seen it too, which one at the bytes on disk could not have. A row that was moved
    # may be one of its short ones, which it does not look for.
    assert mutant == "gaps_left" or receipt["status"] == "pending_physical"


async def killed(folder: Path, ledger: Ledger, chance: random.Random, kills: int, mutant: str = "") -> list[str]:
    """What is wrong with the stores after kills at random moments of a change of key."""
    nursery = Nursery(ledger.writing, mutant=mutant)
    path, faults = folder / "store.db", []
    await _write(path)
    kept = path.read_bytes()
    for number in range(kills):
        child = nursery.child("rekeyer", path, ledger.writing)
        ledger.wait(30)
        if number % 2:
            await asyncio.sleep(chance.uniform(0, 0.12))
        else:
            _wait_for_another_start(path)
        nursery.kill(child)
        ledger.read()
        found = await _faults(path, ledger.lines[-1])
        faults += found
        if found:
            path.write_bytes(kept)
    nursery.end()
    return faults


def _wait_for_another_start(path: Path) -> None:
    """Until the file begins otherwise than before: the moment in which it changes is the best one to die."""
    before, deadline = _start(path), time.monotonic() + 10
    while _start(path) == before and time.monotonic() < deadline:
        pass


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)


async def _write(path: Path) -> None:
    store = SqliteStore.open(path, readers=1)
    for turn in range(1, TURNS + 1):
        await store.write(*history.batch(turn))
    await store.close()


async def _faults(path: Path, allowed: list[str]) -> list[str]:
    names = [name for name in allowed if is_as(path, KEYS[name])]
    if not names:
        return [f"neither {' nor '.join(allowed)} fits"]
    try:
        store = SqliteStore.open(path, readers=1, key=KEYS[names[0]])
    except Exception as error:  # noqa: BLE001 - whatever it is, the store cannot be opened
        return [repr(error)]
    try:
        found = [*await store.check(), *await history.faults(store, TURNS, TURNS)]
    except Exception as error:  # noqa: BLE001
        found = [repr(error)]
    await store.close()
    # A journal without its mark was never in force: nothing had been changed when the process was killed.
    beside = sorted(one.name for one in path.parent.iterdir() if one != path and one.read_bytes()[:8].strip(b"\0"))
    return [*found, *(f"{name} was left" for name in beside)]


async def test_killed_while_its_key_is_changed_a_store_opens_with_the_old_one_or_the_new(
    tmp_path: Path, ledger: Ledger, chance: random.Random, table: Table
):
    faults = await killed(tmp_path, ledger, chance, KILLS)
    table.held("E4", f"{KILLS} kills -9 while a store was encrypted, given another key or decrypted", len(faults))
    assert faults == []


async def test_a_key_that_is_changed_in_place_is_seen(
    tmp_path: Path, ledger: Ledger, chance: random.Random, table: Table
):
    faults = await killed(tmp_path, ledger, chance, MUTANT_KILLS, "rekeyed_in_place")
    table.seen("E4", " ".join((mutants.MUTANTS["rekeyed_in_place"].__doc__ or "").split()), len(faults))
    assert faults


def test_a_store_that_was_encrypted_leaves_no_canary_on_disk(filled: tuple[Path, Told], tmp_path: Path):
    path = Path(shutil.copyfile(filled[0], tmp_path / "agent.db"))
    assert change_key(path, KEY, None)
    assert left(path, filled[1]) == EACH * len(filled[1])
    assert change_key(path, None, KEY)
    assert left(path, filled[1]) == 0
