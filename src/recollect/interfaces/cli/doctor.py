"""`recollect doctor`: the 35 points as a table, as JSON, and as an exit code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from recollect.interfaces.cli.counting import told
from recollect.interfaces.cli.opening import Caller, command
from recollect.interfaces.cli.output import clean, console, print_json, progress_bar, say

if TYPE_CHECKING:
    from recollect.doctor import DoctorReport, Finding

ILL = 1
_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def add_commands(app: typer.Typer, panel: str) -> None:
    app.command("doctor", rich_help_panel=panel)(command(doctor))


def doctor(
    *,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Put right what nothing can be lost by: permissions of files, the log, the room kept back, "
            "the index of words and that of turns, the receipts of erasures beside the store.",
        ),
    ] = False,
    caller: Caller,
) -> None:
    """Go through 35 points of a store: pass, warn or fail, why it matters, and the command that puts it right. Exit
    code 0 when nothing failed, 1 when something did. Every store is looked at as a whole, whoever asks, and nothing
    of what is kept is printed.
    """
    from recollect.memory import examine_store

    with progress_bar(caller.as_json) as bar:
        task = bar.add_task("looking", total=None)

        def tell(title: str, done: int, total: int) -> None:
            bar.update(task, description=title, completed=done, total=total)

        report = asyncio.run(examine_store(caller.store, fix=fix, progress=tell))
    print_json(report.as_json()) if caller.as_json else _show(report)
    if not report.healthy:
        raise typer.Exit(ILL)


def _show(report: DoctorReport) -> None:
    from recollect.doctor.check import OPENED_FIRST

    if not console.is_terminal:  # whoever looks for a line finds all of it in one
        for one in report.findings:
            say(f"{_word(one)}  {one.id:<20} {one.detail}")
    else:
        _show_table(report)
    ill = [one for one in report.findings if one.status != "pass"]
    # Where a store does not open, thirty times the same advice would bury what is the matter with it.
    unseen = [one for one in ill if one.status == "warn" and one.fix == OPENED_FIRST]
    for one in ill:
        if one not in unseen:
            _explain(one)
    if unseen:
        say(f"\n{told(len(unseen), 'point')} not looked at: {OPENED_FIRST}")
    counts = report.counts
    say(f"\n{counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail")


def _show_table(report: DoctorReport) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in report.findings:
        table.add_row(Text(_word(one), _STYLES[one.status]), one.id, Text(clean(one.detail)))
    console.print(table, soft_wrap=False)


def _word(one: Finding) -> str:
    return "mended" if one.mended else one.status


def _explain(one: Finding) -> None:
    say(f"\n{one.status} {one.id}: {one.title}\n  why  {one.why}\n  fix  {one.fix}")
