"""D2: writes acknowledged as durable survive a power loss, whichever unsynced sectors reached the disk."""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from recollect.errors import StoreError
from recollect.stores.sqlite import SqliteStore
from tests.crash import turn_history
from tests.crash.acknowledgments import Ledger
from tests.crash.disk_model import SECTOR, Disk
from tests.crash.power_replay import Outage, iterate_outages, judge_outages, rebuild, record_run
from tests.crash.result_table import Table

TURNS = 72
DRAWS = int(os.environ.get("CRASH_DRAWS", "1"))
FEWEST = 3500
GOES_ON_EVERY = 20


async def find_faults_after(outage: Outage, folder: Path) -> list[str]:
    """Open the store after the outage and return the broken promises."""
    acknowledged = max((int(turn) for _, turn in outage.notes), default=0)
    try:
        store = SqliteStore.open(rebuild(outage.files, folder), readers=1)
    except StoreError as error:
        return [f"the store cannot be opened: {error}"]
    try:
        found = await turn_history.find_faults(store, turn_history.durable_before(acknowledged), acknowledged + 1)
        if not found and outage.moment % GOES_ON_EVERY == 0:
            found = await _find_faults_after_next_turn(store)
    finally:
        await store.close()
    return found


async def _find_faults_after_next_turn(store: SqliteStore) -> list[str]:
    """Write the next turn to a recovered store and return the faults."""
    turn = (turn_history.find_turn(await turn_history.load_snapshot(store)) or 0) + 1
    await store.write(*turn_history.make_batch(turn))
    return await turn_history.find_faults(store, turn, turn)


@pytest.mark.promise("D2")
@pytest.mark.timeout(300 + 60 * DRAWS)
async def test_durable_write_survives_power_loss(
    tmp_path: Path, memory_dir: Path, ledger: Ledger, rng: random.Random, table: Table
):
    recorded_events = record_run(
        tmp_path, ("history_writer", "some", tmp_path / "store" / "store.db", ledger.writing, TURNS), ledger
    )
    many, found = await judge_outages(iterate_outages(recorded_events, rng, DRAWS), find_faults_after, memory_dir)
    table.add_result("D2", f"{many} possible disks after a power loss, {TURNS} turns under strace", len(found))
    assert found == []
    assert many >= FEWEST


@pytest.mark.mutant("D2")
async def test_commit_without_sync_is_detected(
    tmp_path: Path, memory_dir: Path, ledger: Ledger, rng: random.Random, table: Table
):
    recorded_events = record_run(
        tmp_path,
        ("history_writer", "some", tmp_path / "store" / "store.db", ledger.writing, 20),
        ledger,
        "synchronous_normal",
    )
    many, found = await judge_outages(
        islice(iterate_outages(recorded_events, rng, 1), 0, None, 4), find_faults_after, memory_dir
    )
    table.add_mutant("D2", f"synchronous=NORMAL, {many} disks", len(found))
    assert len(found) > 10
    assert all("acknowledged" in fault for fault in found), Counter(fault.partition(": ")[2] for fault in found)


async def test_store_with_torn_first_page_is_created_again(tmp_path: Path, memory_dir: Path, ledger: Ledger):
    recorded_events = record_run(
        tmp_path, ("history_writer", "some", tmp_path / "store" / "store.db", ledger.writing, 1), ledger
    )
    disk, found, many = Disk(), [], 0
    for moment, event in enumerate(recorded_events):
        disk.apply(event)
        files = disk.with_all()
        # The first page is being written, and its first sector is still missing.
        if files.get("store.db") and files.get("store.db-journal"):
            many += 1
            files["store.db"] = bytes(SECTOR) + files["store.db"][SECTOR:]
            found += await find_faults_after(Outage(moment, "torn", files, []), memory_dir / "torn")
    assert found == []
    assert many > 0
