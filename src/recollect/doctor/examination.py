"""An examination: every check of the list, what can be mended mended, and a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recollect.doctor.check import Check
from recollect.doctor.checklist import CHECKLIST
from recollect.doctor.finding import DoctorReport, Finding, Verdict, failed
from recollect.doctor.patient import Patient
from recollect.errors import RecollectError
from recollect.stores.health import Tell

Progress = Callable[[str, int, int], None]
"""Called with the title of the check that is under way, how many are done, and how many there are.

A check that reads everything calls it again with what it reads next, and may do so in another thread.
"""


async def examine(
    patient: Patient, *, fix: bool = False, progress: Progress | None = None, checks: Sequence[Check] = CHECKLIST
) -> DoctorReport:
    """Go through the list. With `fix`, what nothing can be lost by is put right and looked at again."""
    await patient.examine()
    findings = []
    for done, check in enumerate(checks):
        if progress is not None:
            progress(check.title, done, len(checks))
            patient.tell = _within(progress, check.title, done, len(checks))
        findings.append(await _found(patient, check, fix=fix))
    if progress is not None:
        progress("done", len(checks), len(checks))
    return DoctorReport(patient.now, tuple(findings))


def _within(progress: Progress, title: str, done: int, total: int) -> Tell:
    return lambda stage: progress(f"{title}: {stage}", done, total)


async def _found(patient: Patient, check: Check, *, fix: bool) -> Finding:
    verdict, mended = await _looked(patient, check), False
    if fix and check.mend is not None and verdict.status != "pass":
        before = verdict
        try:
            await check.mend(patient)
            await patient.examine()
        except (RecollectError, OSError) as error:
            verdict = Verdict(before.status, f"{before.detail}; it could not be mended ({_named(error)})", before.fix)
        else:
            verdict = await _looked(patient, check)
            mended = verdict.status == "pass"
    return Finding(
        id=check.id,
        title=check.title,
        status=verdict.status,
        detail=verdict.detail,
        why=check.why,
        fix=verdict.fix,
        mended=mended,
    )


async def _looked(patient: Patient, check: Check) -> Verdict:
    try:
        return await check.look(patient)
    except (RecollectError, OSError) as error:
        return failed(f"it could not be looked at ({_named(error)})", "see disk.integrity and store.opens")


def _named(error: BaseException) -> str:
    """The type alone: the message of an error may hold what somebody said."""
    return type(error).__name__
