"""The commands that look after a store: what it holds, copies of it, and keeping it small and true."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from recollect.interfaces.cli.opening import AsJson, Session, Store, User, existing, with_memory
from recollect.interfaces.cli.output import print_json, progress_bar, say
from recollect.memory.export_file import checked_path, opened

Everybody = Annotated[bool, typer.Option("--everybody", help="For every user and agent of the tenant.")]


def add_commands(app: typer.Typer) -> None:
    for command in (stats, backup, export, lifecycle):
        app.command()(command)
    app.command("import")(import_from)


def stats(*, store: Store = None, user: User = "default", session: Session = None, as_json: AsJson = False) -> None:
    """Show what a store holds, tier by tier."""
    found = asdict(with_memory(existing(store), user, session, lambda m: m.stats()))
    if as_json:
        print_json(found)
        return
    tiers = found.pop("tiers")
    for name, value in found.items():
        say(f"{name:>12}  {_shown(value)}")
    for name, tier in tiers.items():
        since = f", {_shown(tier['oldest'])} to {_shown(tier['newest'])}" if tier["oldest"] else ""
        sessions = f" in {tier['sessions']} sessions" if tier["sessions"] else ""
        say(f"{name:>12}  {tier['items']}{sessions}{since}")


def backup(
    path: Annotated[Path, typer.Argument(help="A new file.")],
    *,
    store: Store = None,
    user: User = "default",
    session: Session = None,
    as_json: AsJson = False,
) -> None:
    """Copy the store, with everybody in it, to a new file while others use it."""
    with_memory(existing(store), user, session, lambda m: m.backup(path))
    print_json({"path": str(path)}) if as_json else say(f"copied to {path}")


def export(
    path: Annotated[Path, typer.Argument(help="A new file of JSON lines.")],
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older export.")] = False,
    store: Store = None,
    user: User = "default",
    session: Session = None,
    as_json: AsJson = False,
) -> None:
    """Write everything of one user to a file, losslessly."""
    with progress_bar() as bar:
        task = bar.add_task("exporting", total=None)
        report = with_memory(
            existing(store),
            user,
            session,
            lambda m: m.export(
                path, overwrite=overwrite, progress=lambda done, total: bar.update(task, completed=done, total=total)
            ),
        )
    if as_json:
        print_json({"path": str(path), "lines": dict(report.lines)})
    else:
        say(f"wrote {sum(report.lines.values())} lines to {path}")


def import_from(
    path: Annotated[Path, typer.Argument(help="A file that `recollect export` wrote.")],
    *,
    trust: Annotated[float | None, typer.Option(help="From 0 to 1: trust nothing in the file more than this.")] = None,
    store: Store = None,
    user: User = "default",
    session: Session = None,
    as_json: AsJson = False,
) -> None:
    """Take an export into a store, for one user; what is there already stays. Exit code 1 when there is no file."""
    opened(checked_path(path)).close()  # before a store is made for it
    with progress_bar() as bar:
        task = bar.add_task("importing", total=None)
        report = with_memory(
            store,
            user,
            session,
            lambda m: m.import_from(
                path, trust=trust, progress=lambda done, total: bar.update(task, completed=done, total=total)
            ),
        )
    if as_json:
        print_json(asdict(report))
        return
    added, present = sum(report.added.values()), sum(report.present.values())
    say(f"added {added}, {present} were there already, {report.expired} have expired since")


def lifecycle(
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done, and change nothing.")] = False,
    everybody: Everybody = False,
    store: Store = None,
    user: User = "default",
    session: Session = None,
    as_json: AsJson = False,
) -> None:
    """Promote what deserves to last, drop what has expired, merge duplicates, age and forget."""
    with progress_bar() as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        report = with_memory(
            existing(store),
            user,
            session,
            lambda m: (m.lifecycle.plan if plan else m.lifecycle.run_once)(tell, everybody=everybody),
        )
    if as_json:
        actions = {kind: [asdict(action) for action in found] for kind, found in report.actions.items()}
        print_json(
            {"at": report.at, "planned": report.planned, "counts": report.counts, **actions, "notes": report.notes}
        )
    else:
        say(str(report))


def _shown(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return "-" if value is None else str(value)
