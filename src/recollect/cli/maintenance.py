"""Commands that maintain a store: statistics, lifecycle, export, import, backup, reembedding, migration."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect import __version__
from recollect.cli.context import CliContext, SubcommandApp
from recollect.cli.output import (
    OutputClosed,
    collect_redactions,
    format_redactions,
    load_stats_lines,
    print_hint,
    print_json,
    print_text,
    show_progress,
    to_json_value,
)
from recollect.errors import BadInput
from recollect.settings import Settings, load_effective
from recollect.validation import format_count

if TYPE_CHECKING:
    from recollect.portability.migration import MigrationReport


_TIER_HELP = "A file or URL, or TIER=URL for one tier; may be given several times."


def show_stats(*, caller: CliContext) -> None:
    """Show what a store holds, tier by tier."""
    stats, lines = caller.use_existing_memory(load_stats_lines)
    caller.print_result(stats, "\n".join(lines))


def backup_store(path: Annotated[Path, typer.Argument(help="A new file.")], *, caller: CliContext) -> None:
    """Copy the store, with all users in it, to a new file while it is in use."""
    caller.use_existing_memory(lambda m: m.backup(path))
    caller.print_result({"path": str(path)}, f"copied to {path}")


def export_memory(
    path: Annotated[str, typer.Argument(help="A new file of JSON lines; `-` is standard output.")],
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older export.")] = False,
    caller: CliContext,
) -> None:
    """Write the memory of one user to a file, losslessly: every tier, but no tasks (`backup` has those)."""
    if path == "-":
        _export_to_standard_output(caller)
        return
    if Path(path).is_file() and not overwrite:
        raise BadInput(f"{path} exists already; use a new file, or --overwrite to replace an older export")
    with show_progress(caller.as_json) as progress:
        report = caller.use_existing_memory(lambda m: m.export(path, overwrite=overwrite, progress=progress))
    lines = format_count(sum(report.lines.values()), "line")
    caller.print_result({"path": path, "lines": dict(report.lines)}, f"wrote {lines} to {path}")


def _export_to_standard_output(caller: CliContext) -> None:
    """Export to a temporary file first, so that a failure writes nothing to stdout."""
    if caller.as_json:
        raise BadInput("standard output has the export itself; omit --json, or name a file")
    with tempfile.TemporaryDirectory(prefix="recollect-export-") as directory:
        path = Path(directory) / "export.jsonl"
        caller.use_existing_memory(lambda m: m.export(path))
        with path.open("rb") as file:
            try:
                shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            except BrokenPipeError as error:
                raise OutputClosed from error


def import_memory(
    path: Annotated[Path, typer.Argument(help="A file that `recollect export` wrote.")],
    *,
    trust: Annotated[float | None, typer.Option(help="From 0 to 1: trust nothing in the file more than this.")] = None,
    include_erased: Annotated[
        bool, typer.Option("--include-erased", help="Also import what was erased here after it was recorded.")
    ] = False,
    caller: CliContext,
) -> None:
    """Import a file for one user; existing items stay. Exit code 1 when there is no such file."""
    from recollect.portability.safe_file import open_export, parse_path

    open_export(parse_path(path)).close()  # fails before a store is created
    caller.refuse_volatile_store("an import")
    with show_progress(caller.as_json) as progress, collect_redactions() as redacted:
        try:
            report = caller.use_memory(
                lambda m: m.import_from(path, trust=trust, include_erased=include_erased, progress=progress)
            )
        except BadInput as error:
            # Errors about a line give only its number.
            raise BadInput(f"{path}, {error}" if str(error).startswith("line ") else str(error)) from error
    added, present = sum(report.added.values()), sum(report.present.values())
    untrusted = f", {report.untrusted} versions of procedures were not trusted enough" if report.untrusted else ""
    erased = f", {report.erased} had been erased (--include-erased imports them)" if report.erased else ""
    caller.print_result(
        {**to_json_value(report), "redacted": redacted},
        f"added {added}, {present} were there already, {report.expired} have expired since{untrusted}{erased}",
    )
    if redacted and not caller.as_json:
        print_hint(format_redactions(redacted))


def run_lifecycle(
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be done, and change nothing.")] = False,
    all_users: Annotated[bool, typer.Option("--all-users", help="For every user and agent of the tenant.")] = False,
    caller: CliContext,
) -> None:
    """Promote lasting facts, delete expired items, merge duplicates, age and forget."""
    with show_progress(caller.as_json) as progress:
        report = caller.use_existing_memory(
            lambda m: (m.lifecycle.plan if plan else m.lifecycle.run_once)(progress, all_users=all_users)
        )
    if caller.as_json:
        summary = {"at": report.at, "planned": report.planned, "counts": report.counts}
        print_json({**summary, **report.actions, "notes": report.notes})
    else:
        print_text(str(report))


def reembed_items(
    embedder: Annotated[
        str, typer.Argument(help="The model to change to, such as `minilm` or `openai:text-embedding-3-small`.")
    ],
    *,
    caller: CliContext,
) -> None:
    """Change the embedding model of a store while it is in use; resumes where it stopped."""
    from recollect.portability.reembed import reembed_store

    with show_progress(caller.as_json) as progress:
        # Opening a memory would load the store's current model, which may be missing. A store has one model for all
        # users, so that `--user` has no effect here.
        count = asyncio.run(reembed_store(caller.get_existing_store(), embedder, progress=progress))
    caller.print_result({"embedded": count, "model": embedder}, f"embedded {count} items with {embedder}")


def migrate_tiers(
    *,
    source: Annotated[list[str], typer.Option("--from", help=f"{_TIER_HELP} Default: the store in use.")] = [],  # noqa: B006 - typer reads it
    target: Annotated[list[str], typer.Option("--to", help=_TIER_HELP)],
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant; default: all.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be moved, and copy nothing; a server gets empty tables.")
    ] = False,
    caller: CliContext,
) -> None:
    """Copy a store to another and compare both; after a crash, run it again and it continues.

    If all targets are TIER=URL, only these tiers are moved. Stop all writers first.
    """
    from recollect.portability.migration import migrate_store

    source_store = _parse_target(source) if source else caller.get_existing_store()
    with show_progress(caller.as_json) as progress:
        report = asyncio.run(
            migrate_store(source_store, _parse_target(target), tenant=tenant, dry_run=dry_run, progress=progress)
        )
    json_report = {**to_json_value(report), "held": report.held, "copied": report.copied}
    caller.print_result(json_report, "\n".join(_format_migration(report)))


def _parse_target(values: Sequence[str]) -> str | dict[str, str]:
    """Return one URL for everything, or a mapping of tiers to URLs."""
    from recollect.settings import STORED_TIERS

    targets: dict[str, str] = {}
    for value in values:
        tier, separator, url = value.partition("=")
        is_tier = bool(separator) and tier in (*STORED_TIERS, "default")
        if separator and tier.isalpha() and not is_tier:
            raise BadInput(f"no stored tier {tier!r}; use {', '.join(STORED_TIERS)}, or ./{value} for a file")
        name = tier if is_tier else "default"
        if name in targets:
            raise BadInput(f"{name!r} is given twice, as {targets[name]!r} and {value!r}; give it once")
        targets[name] = url if is_tier else value
    return targets["default"] if list(targets) == ["default"] else targets


def _format_migration(report: MigrationReport) -> list[str]:
    tiers: dict[str, list[Any]] = defaultdict(list)
    for moved in report.moved:
        tiers[moved.space.tier].append(moved)
    lines = [f"{'tier':<13}{'spaces':>8}{'items':>11}{'copied now':>12}   compared"]
    compared = "not yet" if report.dry_run else "the same, by count and sha256"
    for tier, spaces in tiers.items():
        held, copied = sum(space.held for space in spaces), sum(space.copied for space in spaces)
        lines.append(f"{tier:<13}{len(spaces):>8,}{held:>11,}{copied:>12,}   {compared}")
    outcome = "would be moved" if report.dry_run else f"in both stores, {report.copied:,} of them copied by this run"
    return [*lines, *report.notes, f"{report.held:,} from {report.source} to {report.target}: {outcome}"]


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, also of an error.")]

config_app = SubcommandApp("Look at the settings.")


def set_up(*, as_json: JsonOption = False) -> None:
    """Install the local embedding model on this machine, once. Nothing is downloaded at run time."""
    from recollect.models.factory import install_local_model

    with show_progress(as_json, is_single=True) as progress:
        path = install_local_model(progress)
    print_json({"path": str(path)}) if as_json else print_text(f"The local model is ready in {path}.")


@config_app.add("show")
def show_config(*, caller: CliContext) -> None:
    """Print the effective settings, and where each came from: an option, the environment, recollect.toml, a default."""
    options = load_effective(given={"store": caller.store})
    Settings.load(store=caller.store)  # raises for an invalid value
    if caller.as_json:
        tiers = {tier.name: tier for tier in options["tiers"][0]}
        options["tiers"] = (tiers, options["tiers"][1])
        print_json({name: {"value": value, "from": origin} for name, (value, origin) in options.items()})
        return
    width = max(map(len, options))
    for name, (value, origin) in options.items():
        shown = ", ".join(tier.name for tier in value) if name == "tiers" else str(value)
        print_text(f"{name:>{width}}  {shown or '-'}  ({origin})")


def show_version(*, as_json: JsonOption = False) -> None:
    """Print the version."""
    print_json({"version": __version__}) if as_json else print_text(__version__)
