"""`recollect procedures`: stored procedures and their success rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.context import CliContext, SubcommandApp
from recollect.cli.output import print_json, print_text
from recollect.errors import NotFound
from recollect.validation import format_count

if TYPE_CHECKING:
    from recollect.memory import AgentMemory
    from recollect.tiers.procedural import Procedure

procedures_app = SubcommandApp("Look at the procedures of an agent.")


@procedures_app.add("list")
def list_procedures(
    *,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Only those whose key begins like this.")] = None,
    retired: Annotated[bool, typer.Option("--retired", help="Also retired ones.")] = False,
    caller: CliContext,
) -> None:
    """List the newest version of each, by key, with its success rate."""
    procedures = caller.use_existing_memory(lambda m: m.procedural.all(tag=tag, prefix=prefix, retired=retired))

    def format_procedure(procedure: Procedure) -> str:
        description = f"  {procedure.description}" if procedure.description else ""
        return f"{procedure.key}  {_format_outcomes(procedure)}{description}"

    empty = f"no {'such ' if tag or prefix else ''}procedures here for agent {caller.agent!r}"
    caller.print_page(procedures, format_procedure, encode=_procedure_to_json, empty=empty)


@procedures_app.add("show")
def show_procedure(
    key: Annotated[str, typer.Argument(help="Its key.")],
    *,
    version: Annotated[int | None, typer.Option(help="An older version; default: the newest.")] = None,
    caller: CliContext,
) -> None:
    """Show one with its text, its outcomes and its versions. Exit code 1 when there is none."""

    async def load(memory: AgentMemory) -> tuple[Procedure | None, list[Procedure]]:
        return await memory.procedural.get(key, version), await memory.procedural.history(key)

    procedure, versions = caller.use_existing_memory(load)
    if procedure is None:
        raise NotFound(f"there is no procedure {key!r}" + (f" in version {version}" if versions else ""))
    if caller.as_json:
        history = [_procedure_to_json(old) for old in versions]
        print_json({**_procedure_to_json(procedure), "versions": history})
        return
    print_text(f"{procedure.key}  {_format_outcomes(procedure)}")
    if procedure.description:
        print_text(procedure.description)
    print_text(f"\n{procedure.body}\n")
    for note in procedure.outcomes.notes:
        print_text(f"{note.at:%Y-%m-%d}  {'worked' if note.success else 'failed'}: {note.text}")
    if len(versions) > 1:
        trials = (f"{old.version} ({format_count(old.success_rate.trials, 'trial')})" for old in versions)
        print_text("versions: " + ", ".join(trials))


def _format_outcomes(procedure: Procedure) -> str:
    rate = procedure.success_rate
    outcomes = f"worked {procedure.outcomes.successes} of {rate.trials} times" if rate.trials else "not tried yet"
    demoted = ", demoted" if procedure.demoted else ""
    standing = "" if procedure.current else f", {procedure.standing}"
    return f"version {procedure.version}, {outcomes}{demoted}{standing}"


def _procedure_to_json(procedure: Procedure) -> dict[str, Any]:
    names = ("key", "version", "standing", "description", "tags", "body", "source", "trust", "created_at", "demoted")
    return {
        **{name: getattr(procedure, name) for name in names},
        "success_rate": procedure.success_rate,
        "mean_seconds": procedure.outcomes.mean_seconds,
        "notes": [{"at": note.at, "success": note.success, "text": note.text} for note in procedure.outcomes.notes],
    }
