"""The commands that look after a store: what it holds, copies of it, and keeping it small and true."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from recollect.errors import BadInput
from recollect.interfaces.cli.counting import stats_lines, told
from recollect.interfaces.cli.left_out import heard_of_secrets, told_of_secrets
from recollect.interfaces.cli.opening import Caller, command
from recollect.interfaces.cli.output import ReaderGone, aside, print_json, progress_bar, say

Everybody = Annotated[bool, typer.Option("--everybody", help="For every user and agent of the tenant.")]


def add_commands(app: typer.Typer, panel: str) -> None:
    for name, function in (
        ("stats", stats),
        ("lifecycle", lifecycle),
        ("export", export),
        ("import", import_from),
        ("backup", backup),
        ("reembed", reembed),
    ):
        app.command(name, rich_help_panel=panel)(command(function))


def stats(*, caller: Caller) -> None:
    """Show what a store holds, tier by tier."""
    found, lines = caller.known(stats_lines)
    print_json(asdict(found)) if caller.as_json else say("\n".join(lines))


def backup(
    path: Annotated[Path, typer.Argument(help="A new file.")],
    *,
    caller: Caller,
) -> None:
    """Copy the store, with everybody in it, to a new file while others use it."""
    caller.known(lambda m: m.backup(path))
    print_json({"path": str(path)}) if caller.as_json else say(f"copied to {path}")


def export(
    path: Annotated[str, typer.Argument(help="A new file of JSON lines; `-` is standard output.")],
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older export.")] = False,
    caller: Caller,
) -> None:
    """Write the memory of one user to a file, losslessly: every tier, but no tasks (`backup` has those)."""
    if path == "-":
        _export_to_standard_output(caller)
        return
    if Path(path).is_file() and not overwrite:
        raise BadInput(f"{path} exists already; name a new file, or say --overwrite to replace an older export")
    with progress_bar(caller.as_json) as bar:
        task = bar.add_task("exporting", total=None)
        report = caller.known(
            lambda m: m.export(
                path, overwrite=overwrite, progress=lambda done, total: bar.update(task, completed=done, total=total)
            ),
        )
    if caller.as_json:
        print_json({"path": path, "lines": dict(report.lines)})
    else:
        say(f"wrote {told(sum(report.lines.values()), 'line')} to {path}")


def _export_to_standard_output(caller: Caller) -> None:
    """Whole or not at all, as into a file: nothing is written before all of it has been read from the store."""
    if caller.as_json:
        raise BadInput("standard output has the export itself; leave --json out, or name a file")
    with tempfile.TemporaryDirectory(prefix="recollect-export-") as directory:
        path = Path(directory) / "export.jsonl"
        caller.known(lambda m: m.export(path))
        with path.open("rb") as file:
            try:
                shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            except BrokenPipeError as error:
                raise ReaderGone from error


def import_from(
    path: Annotated[Path, typer.Argument(help="A file that `recollect export` wrote.")],
    *,
    trust: Annotated[float | None, typer.Option(help="From 0 to 1: trust nothing in the file more than this.")] = None,
    caller: Caller,
) -> None:
    """Take an export into a store, for one user; what is there already stays. Exit code 1 when there is no file."""
    from recollect.memory.export_file import checked_path, opened

    opened(checked_path(path)).close()  # before a store is made for it
    caller.keeps("an import")
    with progress_bar(caller.as_json) as bar, heard_of_secrets() as gone:
        task = bar.add_task("importing", total=None)
        try:
            report = caller.memory(
                lambda m: m.import_from(
                    path, trust=trust, progress=lambda done, total: bar.update(task, completed=done, total=total)
                ),
            )
        except BadInput as error:
            # Of a line it is the number alone that is said: whoever calls from a program knows the file.
            raise BadInput(f"{path}, {error}" if str(error).startswith("line ") else str(error)) from error
    if caller.as_json:
        print_json({**asdict(report), "redacted": gone})
        return
    added, present = sum(report.added.values()), sum(report.present.values())
    left = f", {report.untrusted} versions of procedures were not trusted enough" if report.untrusted else ""
    say(f"added {added}, {present} were there already, {report.expired} have expired since{left}")
    if gone:
        aside(told_of_secrets(gone))


def lifecycle(
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done, and change nothing.")] = False,
    everybody: Everybody = False,
    caller: Caller,
) -> None:
    """Promote what deserves to last, drop what has expired, merge duplicates, age and forget."""
    with progress_bar(caller.as_json) as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        report = caller.known(
            lambda m: (m.lifecycle.plan if plan else m.lifecycle.run_once)(tell, everybody=everybody),
        )
    if caller.as_json:
        actions = {kind: [asdict(action) for action in found] for kind, found in report.actions.items()}
        print_json(
            {"at": report.at, "planned": report.planned, "counts": report.counts, **actions, "notes": report.notes}
        )
    else:
        say(str(report))


def reembed(
    embedder: Annotated[
        str, typer.Argument(help="The model to change to, such as `minilm` or `openai:text-embedding-3-small`.")
    ],
    *,
    caller: Caller,
) -> None:
    """Change a store's embedding model while it answers; goes on where it stopped."""
    from recollect.memory import reembed_store

    with progress_bar(caller.as_json) as bar:
        task = bar.add_task("embedding", total=None)
        # Not through an open memory: that would ask for the model the store has, which may be gone. And a store has
        # one model for everybody in it: `--user` and the like are taken as everywhere, and change nothing.
        done = asyncio.run(
            reembed_store(
                caller.existing(), embedder, progress=lambda done, every: bar.update(task, completed=done, total=every)
            )
        )
    if caller.as_json:
        print_json({"embedded": done, "model": embedder})
    else:
        say(f"embedded {done} items with {embedder}")
