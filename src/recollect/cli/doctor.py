"""`recollect doctor`: 35 checks as a table, as JSON, and as an exit code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from recollect.cli.context import CliContext
from recollect.cli.output import console, print_json, print_text, show_progress, strip_control_characters
from recollect.validation import format_count

if TYPE_CHECKING:
    from recollect.health.report import DoctorFinding, DoctorReport

FAILED_CHECKS = 1
_STATUS_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def run_doctor(
    *,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Fix what can be fixed without losing data: file permissions, the write-ahead log, the reserve file, "
            "the full-text and turn indexes, the receipts of erasures beside the store.",
        ),
    ] = False,
    caller: CliContext,
) -> None:
    """Run 35 checks on a store: pass, warn or fail, why it matters, and the command that fixes it. Exit code 0 when
    nothing failed, 1 when something did. The whole store is checked, for all users, and no stored content is printed.
    """
    from recollect.health.examine import examine_store

    with show_progress(caller.as_json, is_single=True) as progress:
        report = asyncio.run(examine_store(caller.store, fix=fix, progress=progress))
    print_json(report) if caller.as_json else _show_report(report)
    if not report.is_healthy:
        raise typer.Exit(FAILED_CHECKS)


def _show_report(report: DoctorReport) -> None:
    from recollect.health.context import OPEN_FIRST_FIX

    if console.is_terminal:
        _show_table(report)
    else:  # one line for each check, so that grep finds all of it
        for finding in report.findings:
            print_text(f"{_format_status(finding)}  {finding.id:<20} {finding.detail}")
    not_checked = 0
    for finding in report.findings:
        # If a store does not open, most checks have the same fix.
        if finding.status == "warn" and finding.fix == OPEN_FIRST_FIX:
            not_checked += 1
        elif finding.status != "pass":
            print_text(f"\n{finding.status} {finding.id}: {finding.title}\n  why  {finding.why}\n  fix  {finding.fix}")
    if not_checked:
        print_text(f"\n{format_count(not_checked, 'check')} not run: {OPEN_FIRST_FIX}")
    counts = report.counts
    print_text(f"\n{counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail")


def _show_table(report: DoctorReport) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in report.findings:
        status = Text(_format_status(finding), _STATUS_STYLES[finding.status])
        table.add_row(status, finding.id, Text(strip_control_characters(finding.detail)))
    console.print(table, soft_wrap=False)


def _format_status(finding: DoctorFinding) -> str:
    return "fixed" if finding.is_fixed else finding.status
