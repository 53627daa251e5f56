"""Results of checks, and the report that they form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

from recollect.errors import NotFound

CheckStatus = Literal["pass", "warn", "fail"]
STATUS_ORDER: tuple[CheckStatus, ...] = ("pass", "warn", "fail")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The status of a check, what was found, and a command that fixes it."""

    status: CheckStatus
    detail: str
    fix: str = ""


make_pass = partial(CheckResult, "pass")
make_warning = partial(CheckResult, "warn")
make_failure = partial(CheckResult, "fail")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """One line of the report. `is_fixed` is true if the check failed, was fixed and passed when it ran again."""

    id: str
    title: str
    status: CheckStatus
    detail: str
    why: str
    fix: str = ""
    is_fixed: bool = False

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["fixed"] = values.pop("is_fixed")
        return values


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings, in the order of the checklist."""

    at: datetime
    findings: tuple[DoctorFinding, ...]

    @property
    def is_healthy(self) -> bool:
        """True if no check failed; warnings are allowed."""
        return all(finding.status != "fail" for finding in self.findings)

    @property
    def counts(self) -> Mapping[CheckStatus, int]:
        found = Counter(finding.status for finding in self.findings)
        return {status: found[status] for status in STATUS_ORDER}

    def __getitem__(self, id: str) -> DoctorFinding:
        """Return the finding of a check, such as `report["disk.space"]`. Raises `NotFound` for an unknown id."""
        for finding in self.findings:
            if finding.id == id:
                return finding
        raise NotFound(f"there is no check {id!r:.80}; docs/howto/operate.md lists all checks")

    def as_json(self) -> dict[str, Any]:
        return {
            "at": self.at.isoformat(),
            "healthy": self.is_healthy,
            "counts": dict(self.counts),
            "checks": [finding.as_json() for finding in self.findings],
        }
