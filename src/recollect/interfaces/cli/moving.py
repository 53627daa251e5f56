"""The command that moves a store: everything in it into another, with a bar, a table, and a comparison at the end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.errors import BadInput
from recollect.interfaces.cli.opening import Caller, command
from recollect.interfaces.cli.output import print_json, progress_bar, say

if TYPE_CHECKING:
    from recollect.memory import MigrationReport

_TIER = "A file or URL, or TIER=URL for one tier; may be given several times."


def add_commands(app: typer.Typer, panel: str) -> None:
    app.command("migrate", rich_help_panel=panel)(command(migrate))


def migrate(
    *,
    source: Annotated[list[str], typer.Option("--from", help=f"{_TIER} The store in use when not given.")] = [],  # noqa: B006 - typer's
    target: Annotated[list[str], typer.Option("--to", help=_TIER)],
    tenant: Annotated[str | None, typer.Option("--tenant", help="This tenant alone; everybody when not given.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be moved, and copy nothing; empty tables are made on a server."),
    ] = False,
    caller: Caller,
) -> None:
    """Copy everything of a store into another, and compare both; after a crash, run it again and it goes on.

    With TIER=URL targets alone, the tiers that are named are moved and the rest stays. Stop whoever writes first.
    """
    from recollect.memory import migrate_store

    here = _place(source) if source else caller.existing()
    with progress_bar(caller.as_json) as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        report = asyncio.run(migrate_store(here, _place(target), tenant=tenant, dry_run=dry_run, progress=tell))
    print_json(_plain(report)) if caller.as_json else say("\n".join(_lines(report)))


def _place(given: Sequence[str]) -> str | dict[str, str]:
    """One URL for everything, or a mapping of tiers."""
    from recollect.settings import STORED

    named: dict[str, str] = {}
    for one in given:
        tier, separator, url = one.partition("=")
        if separator and tier.isalpha() and tier not in (*STORED, "default"):
            raise BadInput(f"there is no stored tier {tier!r}; name {', '.join(STORED)}, or write ./{one} for a file")
        name = tier if separator and tier in (*STORED, "default") else "default"
        if name in named:
            raise BadInput(f"{name!r} is given twice, as {named[name]!r} and {one!r}; say once where it is")
        named[name] = url if name == tier else one
    return named["default"] if list(named) == ["default"] else named


def _plain(report: MigrationReport) -> dict[str, Any]:
    return {**asdict(report), "held": report.held, "copied": report.copied}


def _lines(report: MigrationReport) -> list[str]:
    """A line for each tier."""
    tiers: dict[str, list[Any]] = defaultdict(list)
    for one in report.moved:
        tiers[one.space.tier].append(one)
    lines = [f"{'tier':<13}{'spaces':>8}{'items':>11}{'copied now':>12}   compared"]
    for tier, moved in tiers.items():
        held, copied = sum(one.held for one in moved), sum(one.copied for one in moved)
        same = "not yet" if report.dry_run else "the same, by count and sha256"
        lines.append(f"{tier:<13}{len(moved):>8,}{held:>11,}{copied:>12,}   {same}")
    done = "would be moved" if report.dry_run else f"held by both, {report.copied:,} of them copied by this run"
    return [*lines, *report.notes, f"{report.held:,} from {report.source} to {report.target}: {done}"]
