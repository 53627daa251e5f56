"""What a check finds: a verdict, and the whole line of the report that it becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from recollect.errors import NotFound

Status = Literal["pass", "warn", "fail"]
ORDER: tuple[Status, ...] = ("pass", "warn", "fail")
"""From well to ill."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How something is, what was looked at, and the command that puts it right."""

    status: Status
    detail: str
    fix: str = ""


def passed(detail: str) -> Verdict:
    return Verdict("pass", detail)


def warned(detail: str, fix: str) -> Verdict:
    return Verdict("warn", detail, fix)


def failed(detail: str, fix: str) -> Verdict:
    return Verdict("fail", detail, fix)


def not_applicable(because: str) -> Verdict:
    """A pass that says that there was nothing to look at."""
    return Verdict("pass", f"not applicable: {because}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. `mended` says that it was found ill, put right, and looked at again."""

    id: str
    title: str
    status: Status
    detail: str
    why: str
    fix: str = ""
    mended: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "why": self.why,
            "fix": self.fix,
            "mended": self.mended,
        }


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Every finding, in the order of the checklist."""

    at: datetime
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing failed; a warning is for working hours."""
        return all(one.status != "fail" for one in self.findings)

    @property
    def counts(self) -> Mapping[Status, int]:
        found = Counter(one.status for one in self.findings)
        return {status: found[status] for status in ORDER}

    def __getitem__(self, id: str) -> Finding:
        """`report["disk.space"]`."""
        for one in self.findings:
            if one.id == id:
                return one
        raise NotFound(f"there is no point {id!r:.80}; docs/howto/operate.md has them all")

    def as_json(self) -> dict[str, Any]:
        return {
            "at": self.at.isoformat(),
            "healthy": self.healthy,
            "counts": dict(self.counts),
            "checks": [one.as_json() for one in self.findings],
        }
