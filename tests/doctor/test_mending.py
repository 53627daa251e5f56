"""What `fix` puts right, and what it leaves alone."""

from __future__ import annotations

import stat

import pytest

from recollect import Settings
from recollect.doctor import DoctorReport, Finding, Patient, examine
from recollect.doctor.check import Check, Mend
from recollect.doctor.checklist import CHECKLIST
from recollect.doctor.finding import Verdict, warned
from tests.doctor.breakages import BREAKAGES, Tools
from tests.doctor.ward import Ward

MENDED = {
    "access.files-others_may_read",
    "access.files-others_may_write",
    "disk.ballast-somebody_tidied_up_beside_the_file",
    "disk.log-the_log_has_become_long",
    "index.turns-a_process_died_before_it_had_indexed_what_was_said",
    "index.words-the_words_of_an_item_are_gone",
    "index.words-words_of_an_item_that_never_was",
    "upkeep.erasures-the_receipts_beside_it_are_gone",
    "upkeep.erasures-the_receipts_beside_it_are_of_an_earlier_day",
}
HEALED = [breakage for breakage in BREAKAGES if breakage.name in MENDED]


def statuses(report: DoctorReport) -> dict[str, str]:
    return {one.id: one.status for one in report.findings}


def test_only_what_nothing_can_be_lost_by_is_mended():
    safe = {"access.files", "index.words", "index.turns", "disk.ballast", "disk.log", "upkeep.erasures"}
    assert {check.id for check in CHECKLIST if check.mend is not None} == safe
    assert len(HEALED) == len(MENDED)


@pytest.mark.parametrize("breakage", HEALED, ids=lambda one: one.name)
async def test_what_is_mended_is_well_afterwards(
    breakage: object, ward: Ward, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    """Mutants: a `mend` that does nothing; a finding that is called mended without a second look."""
    found = next(one for one in HEALED if one is breakage)
    await found.do(Tools(ward, request, monkeypatch))
    report = await ward.examined(fix=True)
    assert (report[found.check].status, report[found.check].mended) == ("pass", True)
    assert await ward.ill() == {}


async def test_words_that_were_made_anew_find_what_they_found(ward: Ward):
    ward.raw("insert into words (words) values ('delete-all')")
    await ward.examined(fix=True)
    memory = await ward.opened()
    [hit, *_] = await memory.semantic.search("Lisbon", mode="text", min_relevance=0.0)
    assert "Lisbon" in hit.item.content


async def test_nothing_else_is_touched(ward: Ward):
    ward.raw("delete from vectors_a where id >> 6 = (select min(place) from records)", "pragma user_version = 3")
    before = ward.path.stat().st_mtime_ns, stat.S_IMODE(ward.path.stat().st_mode)
    report = await ward.examined(fix=True)
    assert not any(one.mended for one in report.findings)
    assert (ward.path.stat().st_mtime_ns, stat.S_IMODE(ward.path.stat().st_mode)) == before


async def test_without_being_asked_nothing_is_mended(ward: Ward):
    ward.path.chmod(0o644)
    assert statuses(await ward.examined())["access.files"] == "warn"
    assert stat.S_IMODE(ward.path.stat().st_mode) == 0o644


async def test_a_mend_that_did_not_help_is_not_called_one(ward: Ward):
    """Mutant: `mended` is said without a second look."""
    found = await mended_by(ward, nothing)
    assert (found.status, found.mended) == ("warn", False)


async def test_a_mend_that_fails_is_told(ward: Ward):
    found = await mended_by(ward, refused)
    assert (found.status, found.mended) == ("warn", False)
    assert "could not be mended (PermissionError)" in found.detail


async def mended_by(ward: Ward, mend: Mend) -> Finding:
    async def look(patient: Patient) -> Verdict:
        return warned("it is as it was", "something else")

    patient = Patient(settings=Settings(), clock=ward.clock, places=())
    [found] = (
        await examine(patient, fix=True, checks=[Check("a.check", "A check", "It matters.", look, mend)])
    ).findings
    return found


async def nothing(patient: Patient) -> None:
    """Helps nobody."""


async def refused(patient: Patient) -> None:
    raise PermissionError(1, "not yours")
