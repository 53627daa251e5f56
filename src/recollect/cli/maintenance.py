"""Commands that maintain a store and this machine: doctor, lifecycle, export, import, keys, evaluation."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from recollect import __version__
from recollect.cli.context import CliContext, SubcommandApp
from recollect.cli.output import (
    OutputClosed,
    collect_redactions,
    console,
    format_redactions,
    load_stats_lines,
    print_hint,
    print_json,
    print_text,
    show_progress,
    strip_control_characters,
    to_json_value,
)
from recollect.errors import BadInput
from recollect.settings import Settings, load_effective
from recollect.validation import format_count

if TYPE_CHECKING:
    from recollect.health.report import DoctorFinding, DoctorReport
    from recollect.portability.migration import MigrationReport


FAILED_CHECKS = 1
_STATUS_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}
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


key_app = SubcommandApp("Encrypt a store, change its key, or decrypt it. No other process may have it open.")


@key_app.add("new")
def create_key(
    file: Annotated[Path, typer.Argument(help="A new file for the key, readable only by you.")], *, caller: CliContext
) -> None:
    """Create a random key. Keep a copy apart from the store's backups: without the key the store cannot be read."""
    from recollect.stores.factory import create_key

    path = create_key(file)
    caller.print_result(
        {"path": str(path)},
        f"a new key is in {_shorten_path(path)}; set encryption_key_file to it, or RECOLLECT_ENCRYPTION_KEY_FILE",
    )


@key_app.add("set")
def set_key(*, caller: CliContext) -> None:
    """Encrypt a store with the key in the settings. Older backups are not encrypted: delete them."""
    hint = "backups and exports that were made before are not encrypted: delete them"
    _change_key(caller, "set", "encrypted", hint)


@key_app.add("rotate")
def rotate_key(
    *,
    to: Annotated[Path, typer.Option("--to", help="The file with the new key, as `recollect key new` creates it.")],
    caller: CliContext,
) -> None:
    """Encrypt a store with the key in another file. Older backups need the old key."""
    hint = f"now set encryption_key_file to {to}; backups that were made before need the old key"
    _change_key(caller, to, "encrypted with the new key", hint)


@key_app.add("remove")
def remove_key(*, caller: CliContext) -> None:
    """Decrypt a store; then remove the key from the settings."""
    _change_key(caller, "remove", "decrypted", "now remove encryption_key and encryption_key_file from the settings")


def _change_key(caller: CliContext, change: Literal["set", "remove"] | Path, outcome: str, hint: str) -> None:
    from recollect.stores.factory import change_keys

    changed = change_keys(caller.get_existing_store(), Settings.load(), change)
    if caller.as_json:
        print_json({"changed": [str(path) for path in changed]})
        return
    for path in changed:
        print_text(f"{outcome}: {_shorten_path(path)}")
    if changed:
        print_hint(hint)
    else:
        print_text(f"nothing to do: it is {outcome} already")


def _shorten_path(path: Path) -> Path:
    """Return the path relative to the current directory if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


eval_app = SubcommandApp("Measure retrieval on public data.")


@eval_app.add("locomo")
def evaluate_locomo(path: Annotated[Path, typer.Argument(help="locomo10.json")], *, caller: CliContext) -> None:
    """Measure recall of the evidence turns of LoCoMo's questions, categories 1 to 4.

    Uses a temporary store. With --store it is a new file, or a database without an evaluation, and the data stays.
    Every conversation is a separate user, so --user and --session have no effect.
    """
    from recollect.evals import locomo
    from recollect.memory import AgentMemory

    conversations = locomo.load_conversations(path)
    if caller.store is not None and Path(caller.store).exists():
        raise BadInput(f"{caller.store} exists already; use a new file for the evaluation")

    async def measure() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="recollect-eval-") as directory:
            async with AgentMemory.open(caller.store or Path(directory) / "locomo.db", tenant="locomo") as memory:
                if (await memory.scoped(user=conversations[0].id).stats()).items:
                    raise BadInput(f"{caller.store} has an evaluation already; use a new file or another database")
                return await locomo.evaluate(memory, conversations, progress)

    with show_progress(caller.as_json) as progress:
        result = asyncio.run(measure())
    print_json(result) if caller.as_json else _show_locomo(result)


def _show_locomo(result: dict[str, Any]) -> None:
    turn_columns = ("recall@1", "recall@5", "recall@10", "recall@25", "ndcg@10")
    session_columns = ("recall@5", "recall@10")
    table = Table(title=f"LoCoMo, {result['questions']} questions")
    table.add_column("questions")
    for column in (*turn_columns, *(column.replace("recall", "session") for column in session_columns)):
        table.add_column(column, justify="right")
    rows = {"all": result, **result["by_category"], **result["by_conversation"]}
    for name, row in rows.items():
        cells = [row["turn"][column] for column in turn_columns]
        cells += [row["session"][column] for column in session_columns]
        table.add_row(name, *(f"{cell:.3f}" for cell in cells))
    console.print(table)
    console.print(f"search p50 {result['latency_ms']['p50']} ms, p95 {result['latency_ms']['p95']} ms")
