"""D4: many processes write one file, and none is told that it is locked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from recollect.stores.sqlite import SqliteStore
from recollect.stores.where import Where
from tests.crash.history import LOG, SPACE, row_of
from tests.crash.processes import line_of, start, tell
from tests.crash.table import Table
from tests.crash.worker import Told

PROCESSES = 8
SECONDS = float(os.environ.get("CRASH_SECONDS", "5"))
MUTANT_SECONDS = 1.0


def reports_of(path: Path, seconds: float, mutant: str = "") -> list[dict[str, Any]]:
    """Let eight processes work on one file for a while; what each has to report."""
    processes = [start("worker", path, me, PROCESSES, seconds, mutant=mutant) for me in range(PROCESSES)]
    assert [line_of(process) for process in processes] == ["ready"] * PROCESSES
    for process in processes:
        tell(process)
    ends = [process.communicate() for process in processes]
    assert [error for _, error in ends] == [""] * PROCESSES
    return [json.loads(said) for said, _ in ends]


@pytest.mark.timeout(300 + 3 * SECONDS)
async def test_many_processes_share_one_file(tmp_path: Path, table: Table, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "store.db"
    reports = reports_of(path, SECONDS)

    kept: set[str] = set()
    gone: set[str] = set()
    unsure: set[str] = set()
    for me in range(PROCESSES):
        for what, name in Told.read(tmp_path / f"told{me}"):
            {"put": kept, "deleting": unsure, "deleted": gone}[what].add(name)
    store = SqliteStore.open(path)
    found = {item.id for item in await store.find(Where(SPACE), limit=10**6)}
    logged = {entry.id for entry in await store.read(LOG, limit=10**6)}
    near = {one.brief.id for one in await store.nearest(Where(SPACE), row_of("any"), limit=10**6)}
    match = {one.brief.id for one in (await store.matching(Where(SPACE), ("said",), limit=10**6)).found}
    faults = await store.check()
    await store.close()

    lost = (kept - unsure) - found
    errors = [error for report in reports for error in report["errors"]]
    stale = [name for report in reports for name in report["stale"]]
    totals = {name: sum(report[name] for report in reports) for name in ("writes", "reads")}
    done = f"{PROCESSES} processes on one file for {SECONDS:.0f} s: {totals['writes']} batches, {totals['reads']} reads"
    table.held("D4", done, len(errors) + len(stale) + len(lost) + len(gone & found) + len(faults))
    with capsys.disabled():
        slowest = max(report["slowest"] for report in reports)
        sys.stdout.write(f"\n  {done}, {len(gone)} deleted, slowest turn {slowest:.2f} s\n")
    assert errors == []
    assert stale == []
    assert lost == set()
    assert gone & found == set()
    assert kept <= logged
    assert near == match == found
    assert faults == []
    assert all(report["writes"] > 0 for report in reports), "a process that never wrote shows nothing"


def test_a_transaction_that_starts_as_a_reader_is_seen(tmp_path: Path, table: Table):
    reports = reports_of(tmp_path / "store.db", MUTANT_SECONDS, mutant="plain_begin")
    locked = [error for report in reports for error in report["errors"] if "locked" in error]
    tries = len(locked) + sum(report["writes"] for report in reports)
    table.seen("D4", f"plain BEGIN and a read, {tries} batches", len(locked))
    assert locked
