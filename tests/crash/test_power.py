"""D2: what was acknowledged as durable survives a power cut, whatever the disk had not yet written."""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from recollect.errors import StoreError
from recollect.stores.sqlite import SqliteStore
from tests.crash import history
from tests.crash.disk import SECTOR, Disk
from tests.crash.ledger import Ledger
from tests.crash.replay import Outage, judged, outages, rebuild, recorded
from tests.crash.table import Table

TURNS = 72
DRAWS = int(os.environ.get("CRASH_DRAWS", "1"))
FEWEST = 3500
GOES_ON_EVERY = 20


async def faults_after(outage: Outage, folder: Path) -> list[str]:
    """Open what is left with the product, and look for what was promised."""
    told = max((int(turn) for _, turn in outage.told), default=0)
    try:
        store = SqliteStore.open(rebuild(outage.files, folder), readers=1)
    except StoreError as error:
        return [f"it cannot be opened: {error}"]
    try:
        found = await history.faults(store, history.durable_before(told), told + 1)
        if not found and outage.moment % GOES_ON_EVERY == 0:
            found = await _faults_of_going_on(store)
    finally:
        await store.close()
    return found


async def _faults_of_going_on(store: SqliteStore) -> list[str]:
    """A store that came back has to take what comes next."""
    turn = (history.turn_of(await history.seen(store)) or 0) + 1
    await store.write(*history.batch(turn))
    return await history.faults(store, turn, turn)


@pytest.mark.timeout(300 + 60 * DRAWS)
async def test_what_was_acknowledged_survives_a_power_cut(
    tmp_path: Path, quick: Path, ledger: Ledger, chance: random.Random, table: Table
):
    happened = recorded(tmp_path, ("scribe", "some", tmp_path / "store" / "store.db", ledger.writing, TURNS), ledger)
    many, found = await judged(outages(happened, chance, DRAWS), faults_after, quick)
    table.held("D2", f"{many} disks as a power cut could leave them, {TURNS} turns under strace", len(found))
    assert found == []
    assert many >= FEWEST


async def test_a_commit_that_does_not_wait_for_the_disk_is_seen(
    tmp_path: Path, quick: Path, ledger: Ledger, chance: random.Random, table: Table
):
    happened = recorded(
        tmp_path, ("scribe", "some", tmp_path / "store" / "store.db", ledger.writing, 20), ledger, "normal"
    )
    many, found = await judged(islice(outages(happened, chance, 1), 0, None, 4), faults_after, quick)
    table.seen("D2", f"synchronous=NORMAL, {many} disks", len(found))
    assert len(found) > 10
    assert all("acknowledged" in fault for fault in found), Counter(fault.partition(": ")[2] for fault in found)


async def test_a_store_whose_making_was_cut_short_is_made_again(tmp_path: Path, quick: Path, ledger: Ledger):
    happened = recorded(tmp_path, ("scribe", "some", tmp_path / "store" / "store.db", ledger.writing, 1), ledger)
    disk, found, many = Disk(), [], 0
    for moment, event in enumerate(happened):
        disk.apply(event)
        files = disk.with_all()
        # Its first page is being written, in which the first sector comes last.
        if files.get("store.db") and files.get("store.db-journal"):
            many += 1
            files["store.db"] = bytes(SECTOR) + files["store.db"][SECTOR:]
            found += await faults_after(Outage(moment, "torn", files, []), quick / "torn")
    assert found == []
    assert many > 0
