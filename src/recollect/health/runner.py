"""The checklist, and the function that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from recollect.errors import RecollectError
from recollect.health import checks_access, checks_index, checks_maintenance, checks_settings, checks_stores
from recollect.health.context import CheckContext, DoctorCheck
from recollect.health.report import CheckResult, DoctorFinding, DoctorReport, make_failure
from recollect.types import Progress, ProgressCallback

_GROUPS = ("store", "config", "access", "index", "disk", "capacity", "upkeep", "tasks")

_MODULES = (checks_stores, checks_settings, checks_access, checks_index, checks_maintenance)

CHECKLIST: tuple[DoctorCheck, ...] = tuple(
    sorted(
        (check for module in _MODULES for check in module.CHECKS),
        key=lambda check: _GROUPS.index(check.id.partition(".")[0]),
    )
)


async def run_checks(
    context: CheckContext,
    *,
    fix: bool = False,
    progress: ProgressCallback | None = None,
    checks: Sequence[DoctorCheck] = CHECKLIST,
) -> DoctorReport:
    """Run the checks. With `fix`, run the fix of each check that does not pass, then run the check again.

    `progress` is called for each check, and for each stage of a full scan, possibly in another thread.
    """
    await context.refresh_stats()
    findings = []
    for done, check in enumerate(checks):
        if progress is not None:
            progress(Progress(check.title, done, len(checks)))
            context.on_stage = partial(_report_stage, progress, check.title, done, len(checks))
        findings.append(await _run_check(context, check, fix=fix))
    if progress is not None:
        progress(Progress("done", len(checks), len(checks)))
    return DoctorReport(context.now, tuple(findings))


def _report_stage(progress: ProgressCallback, title: str, done: int, total: int, stage: str) -> None:
    progress(Progress(f"{title}: {stage}", done, total))


async def _run_check(context: CheckContext, check: DoctorCheck, *, fix: bool) -> DoctorFinding:
    result, is_fixed = await _run_safely(context, check), False
    if fix and check.fix is not None and result.status != "pass":
        try:
            await check.fix(context)
            await context.refresh_stats()
        except (RecollectError, OSError) as error:
            detail = f"{result.detail}; the fix failed with {type(error).__name__}"
            result = CheckResult(result.status, detail, result.fix)
        else:
            result = await _run_safely(context, check)
            is_fixed = result.status == "pass"
    return DoctorFinding(
        id=check.id,
        title=check.title,
        status=result.status,
        detail=result.detail,
        why=check.why,
        fix=result.fix,
        is_fixed=is_fixed,
    )


async def _run_safely(context: CheckContext, check: DoctorCheck) -> CheckResult:
    try:
        return await check.run(context)
    except (RecollectError, OSError) as error:
        # Only the type: the message may contain user content.
        return make_failure(f"the check failed with {type(error).__name__}", "see disk.integrity and store.opens")
