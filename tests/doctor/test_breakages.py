"""Every check in both directions: a healthy memory passes, and one that is hurt in one way fails in that one."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import apsw
import pytest

from recollect import StoreClosed
from recollect.doctor.checklist import CHECKLIST
from recollect.errors import NotFound
from recollect.stores.sqlite import store as sqlite_store
from tests.doctor.breakages import BREAKAGES, Breakage, Tools
from tests.doctor.ward import Ward

IDS = [check.id for check in CHECKLIST]


def test_the_list_has_35_points_and_each_can_be_broken():
    assert len(IDS) == len(set(IDS)) == 35
    assert {breakage.check for breakage in BREAKAGES} == set(IDS)


def test_the_page_lists_every_point_and_what_is_mended():
    page = (Path(__file__).parents[2] / "docs" / "howto" / "operate.md").read_text(encoding="utf-8")
    told = [line for line in page.splitlines() if re.match(r"\| `[a-z]+\.[a-z]+` \|", line)]
    assert told == [f"| `{one.id}` | {one.title} | {'yes' if one.mend else ''} |" for one in CHECKLIST]


async def test_a_healthy_memory_passes(ward: Ward):
    assert await ward.ill() == {}
    report = await ward.examined()
    assert [one.id for one in report.findings] == IDS
    assert {one.id for one in report.findings if one.status != "pass"} == {"access.encryption"}


async def test_an_open_memory_passes(ward: Ward):
    memory = await ward.opened()
    assert await ward.ill() == {}
    assert (await memory.doctor()).healthy


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda one: one.name)
async def test_what_is_broken_is_what_is_found(
    breakage: Breakage, ward: Ward, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    await breakage.do(Tools(ward, request, monkeypatch))
    assert await ward.ill() == {breakage.check: breakage.status}


async def test_a_point_that_is_not_on_the_list_is_an_error_of_ours(ward: Ward):
    """Mutant: `next` without an end, whose StopIteration a coroutine turns into something else."""
    with pytest.raises(NotFound, match="no point 'disk\\.spaec'"):
        (await ward.examined())["disk.spaec"]


async def test_torn_pages_are_a_finding_and_no_traceback(ward: Ward):
    """Mutant: `Patient.examine` lets the error of a damaged file through."""
    with ward.path.open("r+b") as file:
        for page in range(6, 30):
            file.seek(page * 8192)
            file.write(b"\xff" * 8192)
    report = await ward.examined()
    assert report["disk.integrity"].status == "fail"
    assert "not looked at" in report["index.words"].detail
    assert len(report.findings) == 35


async def test_damage_that_even_the_first_question_meets(ward: Ward):
    """Mutant: the same."""
    connection = apsw.Connection(str(ward.path))
    page = connection.execute("select rootpage from sqlite_schema where name = 'spaces'").get
    connection.close()
    with ward.path.open("r+b") as file:
        file.seek((page - 1) * 8192)
        file.write(b"\xff" * 8192)
    report = await ward.examined()
    assert {one.id for one in report.findings if one.status == "fail"} == {"disk.integrity"}


async def test_a_small_store_is_looked_at_within_a_second(ward: Ward):
    """The best of three: the machine may have other things to do."""
    took = []
    for _ in range(3):
        started = time.perf_counter()
        await ward.examined()
        took.append(time.perf_counter() - started)
    assert min(took) < 1


async def test_a_copy_is_known_of_at_once(ward: Ward, monkeypatch: pytest.MonkeyPatch):
    """Mutant: `vitals` does not wait for the note."""
    monkeypatch.setattr(sqlite_store, "_COUNTED_WITHIN", 30)  # that it is not waited for for ever is another matter
    ward.raw("delete from meta where name = 'backed_up'")
    memory = await ward.opened()
    assert await ward.ill() == {"upkeep.backup": "warn"}
    await memory.backup(ward.directory / "just-now.db")
    assert await ward.ill() == {}


async def test_a_copy_waits_for_nobody_who_writes(ward: Ward):
    """Mutant: `backup` waits for its note."""
    memory = await ward.opened()
    holder = apsw.Connection(str(ward.path))
    holder.execute("begin immediate")
    try:
        async with asyncio.timeout(10):
            await memory.backup(ward.directory / "meanwhile.db")
    finally:
        holder.close()
    assert (ward.directory / "meanwhile.db").exists()


async def test_progress_says_what_is_under_way(ward: Ward):
    told: list[tuple[str, int, int]] = []
    memory = await ward.opened()
    await memory.doctor(progress=lambda title, done, total: told.append((title, done, total)))
    begun = [(title, done, total) for title, done, total in told if ": " not in title]
    assert begun == [*((check.title, n, 35) for n, check in enumerate(CHECKLIST)), ("done", 35, 35)]
    read = [title.split(": ")[1] for title, *_ in told if ": " in title]
    assert read == ["pages", "words", "counts and checksums", "vectors"]


async def test_a_memory_that_was_closed_is_not_examined(ward: Ward):
    memory = await ward.opened()
    await memory.close()
    with pytest.raises(StoreClosed):
        await memory.doctor()
