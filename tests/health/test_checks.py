"""Every check in both directions: a healthy memory passes, and each failure is reported by its check only."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import apsw
import pytest

from recollect.errors import NotFound, StoreClosed
from recollect.health.examine import CHECKLIST
from recollect.stores.sqlite import store as sqlite_store
from recollect.types import Progress
from tests.health.examined_memory import ExaminedMemory
from tests.health.failures import FAILURES, Failure, Tools

IDS = [check.id for check in CHECKLIST]


def test_checklist_has_35_checks_and_each_has_a_failure():
    assert len(IDS) == len(set(IDS)) == 35
    assert {failure.check for failure in FAILURES} == set(IDS)


def test_docs_page_lists_every_check_and_its_fix():
    page = (Path(__file__).parents[2] / "docs" / "howto" / "operate.md").read_text(encoding="utf-8")
    reported = [line for line in page.splitlines() if re.match(r"\| `[a-z]+\.[a-z]+` \|", line)]
    assert reported == [f"| `{check.id}` | {check.title} | {'yes' if check.fix else ''} |" for check in CHECKLIST]


async def test_a_healthy_memory_passes(examined: ExaminedMemory):
    assert await examined.find_problems() == {}
    report = await examined.examine()
    assert [finding.id for finding in report.findings] == IDS
    assert {finding.id for finding in report.findings if finding.status != "pass"} == {"access.encryption"}


async def test_an_open_memory_passes(examined: ExaminedMemory):
    memory = await examined.open_memory()
    assert await examined.find_problems() == {}
    assert (await memory.doctor()).is_healthy


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
async def test_failure_is_reported_only_by_its_check(
    failure: Failure, examined: ExaminedMemory, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    await failure.produce(Tools(examined, request, monkeypatch))
    assert await examined.find_problems() == {failure.check: failure.status}


async def test_unknown_check_id_raises_not_found(examined: ExaminedMemory):
    """Mutant: `next` without a default, whose StopIteration becomes a RuntimeError in a coroutine."""
    with pytest.raises(NotFound, match="no check 'disk\\.spaec'"):
        (await examined.examine())["disk.spaec"]


async def test_torn_pages_are_reported_as_finding(examined: ExaminedMemory):
    """Mutant: `_run_safely` passes on the error of a damaged file."""
    with examined.path.open("r+b") as file:
        for page in range(6, 30):
            file.seek(page * 8192)
            file.write(b"\xff" * 8192)
    report = await examined.examine()
    assert report["disk.integrity"].status == "fail"
    assert "not checked" in report["index.words"].detail
    assert len(report.findings) == 35


async def test_damage_met_by_first_query_is_reported_as_finding(examined: ExaminedMemory):
    """Mutant: `_run_safely` passes on the error of a damaged file."""
    connection = apsw.Connection(str(examined.path))
    page = connection.execute("select rootpage from sqlite_schema where name = 'spaces'").get
    connection.close()
    with examined.path.open("r+b") as file:
        file.seek((page - 1) * 8192)
        file.write(b"\xff" * 8192)
    report = await examined.examine()
    assert {finding.id for finding in report.findings if finding.status == "fail"} == {"disk.integrity"}


async def test_small_store_is_checked_within_a_second(examined: ExaminedMemory):
    """The fastest of three runs counts, because the machine may be busy."""
    took = []
    for _ in range(3):
        started = time.perf_counter()
        await examined.examine()
        took.append(time.perf_counter() - started)
    assert min(took) < 1


async def test_backup_is_noticed_immediately(examined: ExaminedMemory, monkeypatch: pytest.MonkeyPatch):
    """Mutant: `read_stats` does not wait for the note of the backup."""
    monkeypatch.setattr(sqlite_store, "_BACKUP_NOTE_TIMEOUT_SECONDS", 30)  # another test covers the timeout
    examined.execute_sql("delete from meta where name = 'backed_up'")
    memory = await examined.open_memory()
    assert await examined.find_problems() == {"upkeep.backup": "warn"}
    await memory.backup(examined.directory / "just-now.db")
    assert await examined.find_problems() == {}


async def test_backup_does_not_wait_for_a_writer(examined: ExaminedMemory):
    """Mutant: `backup` waits until its note is written."""
    memory = await examined.open_memory()
    holder = apsw.Connection(str(examined.path))
    holder.execute("begin immediate")
    try:
        async with asyncio.timeout(10):
            await memory.backup(examined.directory / "meanwhile.db")
    finally:
        holder.close()
    assert (examined.directory / "meanwhile.db").exists()


async def test_progress_reports_the_running_check(examined: ExaminedMemory):
    reported: list[Progress] = []
    memory = await examined.open_memory()
    await memory.doctor(progress=reported.append)
    started_checks = [progress for progress in reported if ": " not in progress.stage]
    assert started_checks == [
        *(Progress(check.title, n, 35) for n, check in enumerate(CHECKLIST)),
        Progress("done", 35, 35),
    ]
    read = [progress.stage.split(": ")[1] for progress in reported if ": " in progress.stage]
    assert read == ["pages", "words", "counts and checksums", "vectors"]


async def test_closed_memory_raises_store_closed(examined: ExaminedMemory):
    memory = await examined.open_memory()
    await memory.close()
    with pytest.raises(StoreClosed):
        await memory.doctor()
