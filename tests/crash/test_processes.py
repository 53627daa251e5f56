"""Several processes on one file, and processes that are killed: what was acknowledged is there."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recollect.stores.sqlite import SqliteStore
from recollect.stores.where import Where
from tests.crash import worker
from tests.crash.worker import LOG, SPACE, TASKS, Oracle, row_of

PROCESSES = 8
SECONDS = float(os.environ.get("RECOLLECT_SOAK_SECONDS", "5"))
KILLS = int(os.environ.get("RECOLLECT_KILLS", "20"))


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, worker.__file__, *(str(argument) for argument in arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def line_written(oracle: Path, before: int) -> bool:
    """Wait until another process has written down more than there was before."""
    patience = time.monotonic() + 30
    while time.monotonic() < patience:
        if sum(1 for _ in Oracle.read(oracle)) > before:
            return True
        time.sleep(0.005)
    return False


@pytest.mark.timeout(120 + 3 * SECONDS)
async def test_many_processes_share_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # Mutant: a plain `begin` in begin_immediate. A writer that began as a reader is refused as soon as it writes.
    path = tmp_path / "store.db"
    processes = [start("soak", path, me, PROCESSES, SECONDS) for me in range(PROCESSES)]
    assert [line_of(process) for process in processes] == ["ready\n"] * PROCESSES
    for process in processes:
        tell(process)
    ends = [process.communicate() for process in processes]
    assert [error for _, error in ends] == [""] * PROCESSES
    reports = [json.loads(said) for said, _ in ends]

    kept: set[str] = set()
    gone: set[str] = set()
    unsure: set[str] = set()
    for me in range(PROCESSES):
        for what, name in Oracle.read(tmp_path / f"oracle{me}"):
            {"put": kept, "deleting": unsure, "deleted": gone}[what].add(name)
    store = SqliteStore.open(path)
    found = {item.id for item in await store.find(Where(SPACE), limit=10**6)}
    logged = {entry.id for entry in await store.read(LOG, limit=10**6)}
    near = {one.brief.id for one in await store.nearest(Where(SPACE), row_of("any"), limit=10**6)}
    match = {one.brief.id for one in (await store.matching(Where(SPACE), ("said",), limit=10**6)).found}
    faults = await store.check()
    await store.close()

    lost = (kept - unsure) - found
    totals = {name: sum(report[name] for report in reports) for name in ("writes", "reads")}
    with capsys.disabled():
        sys.stdout.write(
            f"\n  {PROCESSES} processes, {SECONDS:.0f} s: {totals['writes']} batches, {totals['reads']} reads, "
            f"{len(gone)} deleted\n"
            f"  lost {len(lost)}, stale {sum(len(report['stale']) for report in reports)}, "
            f"errors {sum(len(report['errors']) for report in reports)}, "
            f"slowest turn {max(report['slowest'] for report in reports):.2f} s\n"
        )
    assert [report["errors"] for report in reports] == [[]] * PROCESSES
    assert [report["stale"] for report in reports] == [[]] * PROCESSES
    assert lost == set()
    assert gone & found == set()
    assert kept <= logged
    assert near == match == found
    assert faults == []
    assert all(report["writes"] > 0 for report in reports), "a process that never wrote shows nothing"


@pytest.mark.timeout(60 + 5 * KILLS)
async def test_what_was_acknowledged_survives_a_kill_at_any_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "store.db"
    chance = random.Random(8)
    mother = start("nursery", path)
    acknowledged = survived = 0
    for _ in range(KILLS):
        before = sum(1 for _ in Oracle.read(tmp_path / "oracle"))
        tell(mother)
        child = int(line_of(mother))
        # Once it writes, let it write for a random while; a few are killed before they have begun.
        if chance.random() < 0.9:
            assert line_written(tmp_path / "oracle", before)
        await asyncio.sleep(chance.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        assert line_of(mother) == "gone\n"

        acknowledged = max((int(name[1:]) for _, name in Oracle.read(tmp_path / "oracle")), default=0)
        store = SqliteStore.open(path)
        items = {item.id for item in await store.find(Where(SPACE), limit=10**6)}
        entries = {entry.id for entry in await store.read(LOG, limit=10**6)}
        task = await store.task(TASKS, "t")
        checkpoint = await store.checkpoint(TASKS, "t")
        assert await store.check() == []
        await store.close()
        survived = task.version if task else 0
        # The last batch may have been committed and not acknowledged, but then all of it.
        assert survived in (acknowledged, acknowledged + 1)
        assert items == entries == {f"v{n}" for n in range(1, survived + 1)}
        if checkpoint is not None:
            assert (checkpoint.version, checkpoint.intact) == (survived, True)
            assert json.loads(checkpoint.state)["version"] == survived
        if survived > acknowledged:
            Oracle(tmp_path / "oracle").note("put", f"v{survived}")
    assert mother.communicate() == ("", "")
    with capsys.disabled():
        sys.stdout.write(f"\n  {KILLS} kills: {acknowledged} batches acknowledged, {survived} there, 0 lost, 0 torn\n")
    assert acknowledged > KILLS, "too few writes for a kill to fall among them"
