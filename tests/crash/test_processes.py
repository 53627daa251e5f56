"""D4: many processes write to one file, and none gets a lock error."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from recollect.stores.filters import Where
from recollect.stores.sqlite import SqliteStore
from recollect.testing.factories import find_matching, find_nearest
from tests.crash.file_worker import AckFile
from tests.crash.process_launcher import read_line, send_line, start
from tests.crash.result_table import Table
from tests.crash.turn_history import LOG, SPACE, make_row

PROCESSES = 8
SECONDS = float(os.environ.get("CRASH_SECONDS", "5"))
MUTANT_SECONDS = 1.0


def run_workers(path: Path, seconds: float, mutant: str = "") -> list[dict[str, Any]]:
    """Run eight processes on one file for `seconds` and return their reports."""
    processes = [start("file_worker", path, number, PROCESSES, seconds, mutant=mutant) for number in range(PROCESSES)]
    assert [read_line(process) for process in processes] == ["ready"] * PROCESSES
    for process in processes:
        send_line(process)
    ends = [process.communicate() for process in processes]
    assert [error for _, error in ends] == [""] * PROCESSES
    return [json.loads(output) for output, _ in ends]


@pytest.mark.promise("D4")
@pytest.mark.timeout(300 + 3 * SECONDS)
async def test_concurrent_processes_write_one_file_without_lock_errors(
    tmp_path: Path, table: Table, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "store.db"
    reports = run_workers(path, SECONDS)

    kept: set[str] = set()
    deleted: set[str] = set()
    unsure: set[str] = set()
    for number in range(PROCESSES):
        for what, name in AckFile.read(tmp_path / f"acks{number}"):
            {"put": kept, "deleting": unsure, "deleted": deleted}[what].add(name)
    store = SqliteStore.open(path)
    found = {item.id for item in await store.find(Where(SPACE), limit=10**6)}
    logged = {entry.id for entry in await store.read(LOG, limit=10**6)}
    near = {hit.brief.id for hit in await find_nearest(store, Where(SPACE), make_row("any"), limit=10**6)}
    match = {hit.brief.id for hit in await find_matching(store, Where(SPACE), "said", limit=10**6)}
    faults = await store.check()
    await store.close()

    lost = (kept - unsure) - found
    errors = [error for report in reports for error in report["errors"]]
    stale = [name for report in reports for name in report["stale"]]
    totals = {name: sum(report[name] for report in reports) for name in ("writes", "reads")}
    done = f"{PROCESSES} processes on one file for {SECONDS:.0f} s: {totals['writes']} batches, {totals['reads']} reads"
    table.add_result("D4", done, len(errors) + len(stale) + len(lost) + len(deleted & found) + len(faults))
    with capsys.disabled():
        slowest = max(report["slowest"] for report in reports)
        sys.stdout.write(f"\n  {done}, {len(deleted)} deleted, slowest turn {slowest:.2f} s\n")
    assert errors == []
    assert stale == []
    assert lost == set()
    assert deleted & found == set()
    assert kept <= logged
    assert near == match == found
    assert faults == []
    assert all(report["writes"] > 0 for report in reports), "a process wrote nothing"


@pytest.mark.mutant("D4")
def test_deferred_begin_is_detected(tmp_path: Path, table: Table):
    reports = run_workers(tmp_path / "store.db", MUTANT_SECONDS, mutant="deferred_begin")
    locked = [error for report in reports for error in report["errors"] if "locked" in error]
    tries = len(locked) + sum(report["writes"] for report in reports)
    table.add_mutant("D4", f"plain BEGIN and a read, {tries} batches", len(locked))
    assert locked
