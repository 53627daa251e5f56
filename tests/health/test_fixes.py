"""The repairs of `recollect doctor --fix`, and the damage that it leaves unchanged."""

from __future__ import annotations

import stat

import pytest

from recollect import Settings
from recollect.health.context import CheckContext, DoctorCheck, FixFunction
from recollect.health.examine import CHECKLIST, run_checks
from recollect.health.report import CheckResult, DoctorFinding, DoctorReport, make_warning
from tests.health.examined_memory import ExaminedMemory
from tests.health.failures import FAILURES, Tools

FIXABLE_NAMES = {
    "access.files-other_users_may_read",
    "access.files-other_users_may_write",
    "disk.ballast-the_reserve_file_is_deleted",
    "disk.log-the_WAL_is_large",
    "index.turns-a_turn_is_not_indexed",
    "index.words-terms_of_an_item_are_missing",
    "index.words-terms_of_an_unknown_item",
    "upkeep.erasures-the_receipt_file_is_missing",
    "upkeep.erasures-the_receipt_file_is_outdated",
}
FIXABLE = [failure for failure in FAILURES if failure.name in FIXABLE_NAMES]


def statuses(report: DoctorReport) -> dict[str, str]:
    return {finding.id: finding.status for finding in report.findings}


def test_only_lossless_checks_have_a_fix():
    safe = {"access.files", "index.words", "index.turns", "disk.ballast", "disk.log", "upkeep.erasures"}
    assert {check.id for check in CHECKLIST if check.fix is not None} == safe
    assert len(FIXABLE) == len(FIXABLE_NAMES)


@pytest.mark.parametrize("failure", FIXABLE, ids=lambda failure: failure.name)
async def test_fixed_check_passes_afterwards(
    failure: object, examined: ExaminedMemory, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    """Mutants: a fix that does nothing; a finding is reported as fixed without a second check."""
    fixable = next(known for known in FIXABLE if known is failure)
    await fixable.produce(Tools(examined, request, monkeypatch))
    report = await examined.examine(fix=True)
    assert (report[fixable.check].status, report[fixable.check].is_fixed) == ("pass", True)
    assert await examined.find_problems() == {}


async def test_rebuilt_full_text_index_finds_items(examined: ExaminedMemory):
    examined.execute_sql("insert into words (words) values ('delete-all')")
    await examined.examine(fix=True)
    memory = await examined.open_memory()
    [hit, *_] = await memory.semantic.search("Lisbon", mode="text", min_relevance=0.0)
    assert "Lisbon" in hit.item.content


async def test_fix_leaves_unfixable_damage_unchanged(examined: ExaminedMemory):
    examined.execute_sql(
        "delete from vectors_a where id >> 6 = (select min(place) from records)", "pragma user_version = 3"
    )
    before = examined.path.stat().st_mtime_ns, stat.S_IMODE(examined.path.stat().st_mode)
    report = await examined.examine(fix=True)
    assert not any(finding.is_fixed for finding in report.findings)
    assert (examined.path.stat().st_mtime_ns, stat.S_IMODE(examined.path.stat().st_mode)) == before


async def test_examination_without_fix_changes_nothing(examined: ExaminedMemory):
    examined.path.chmod(0o644)
    assert statuses(await examined.examine())["access.files"] == "warn"
    assert stat.S_IMODE(examined.path.stat().st_mode) == 0o644


async def test_ineffective_fix_is_not_reported_as_fixed(examined: ExaminedMemory):
    """Mutant: `is_fixed` is set without a second check."""
    finding = await run_with_fix(examined, fix_nothing)
    assert (finding.status, finding.is_fixed) == ("warn", False)


async def test_failing_fix_is_reported(examined: ExaminedMemory):
    finding = await run_with_fix(examined, fail_to_fix)
    assert (finding.status, finding.is_fixed) == ("warn", False)
    assert "the fix failed with PermissionError" in finding.detail


async def run_with_fix(examined: ExaminedMemory, fix_function: FixFunction) -> DoctorFinding:
    async def look(context: CheckContext) -> CheckResult:
        return make_warning("it is as it was", "something else")

    context = CheckContext(settings=Settings(), clock=examined.clock, targets=())
    [finding] = (
        await run_checks(
            context, fix=True, checks=[DoctorCheck("a.check", "A check", "It matters.", look, fix_function)]
        )
    ).findings
    return finding


async def fix_nothing(context: CheckContext) -> None:
    """Fix nothing."""


async def fail_to_fix(context: CheckContext) -> None:
    raise PermissionError(1, "not yours")
