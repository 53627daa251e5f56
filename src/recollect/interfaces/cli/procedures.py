"""`recollect procedures`: how things are done, and how well that has worked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.errors import NotFound
from recollect.interfaces.cli.counting import told
from recollect.interfaces.cli.grouping import Group
from recollect.interfaces.cli.opening import Caller, command
from recollect.interfaces.cli.output import aside, print_json, say

if TYPE_CHECKING:
    from recollect.memory import AgentMemory
    from recollect.tiers.procedure import Procedure

procedures_app = typer.Typer(cls=Group, no_args_is_help=True, help="Look at the procedures of an agent.")


@procedures_app.command("list")
@command
def list_procedures(
    *,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Only those whose key begins like this.")] = None,
    retired: Annotated[bool, typer.Option("--retired", help="Those out of use too.")] = False,
    caller: Caller,
) -> None:
    """List the newest version of each, by key, with its success rate."""
    found = caller.known(lambda m: m.procedural.all(tag=tag, prefix=prefix, retired=retired))
    if caller.as_json:
        print_json([_json(one) for one in found])
        return
    for one in found:
        say(f"{one.key}  {_worked(one)}{'  ' + one.description if one.description else ''}")
    if not found:
        aside(f"no {'such ' if tag or prefix else ''}procedures here for agent {caller.agent!r}")


@procedures_app.command("show")
@command
def show_procedure(
    key: Annotated[str, typer.Argument(help="Its key.")],
    *,
    version: Annotated[int | None, typer.Option(help="An older version; the newest when not given.")] = None,
    caller: Caller,
) -> None:
    """Show one with its text, its outcomes and its versions. Exit code 1 when there is none."""

    async def look(memory: AgentMemory) -> tuple[Procedure | None, list[Procedure]]:
        return await memory.procedural.get(key, version), await memory.procedural.history(key)

    found, versions = caller.known(look)
    if found is None:
        raise NotFound(f"there is no procedure {key!r}" + (f" in version {version}" if versions else ""))
    if caller.as_json:
        print_json({**_json(found), "versions": [_json(one) for one in versions]})
        return
    say(f"{found.key}  {_worked(found)}")
    if found.description:
        say(found.description)
    say(f"\n{found.body}\n")
    for note in found.outcomes.notes:
        say(f"{note.at:%Y-%m-%d}  {'worked' if note.success else 'failed'}: {note.text}")
    if len(versions) > 1:
        say("versions: " + ", ".join(f"{one.version} ({told(one.success_rate.trials, 'trial')})" for one in versions))


def _worked(one: Procedure) -> str:
    rate = one.success_rate
    told = f"worked {one.outcomes.successes} of {rate.trials} times" if rate.trials else "not tried yet"
    standing = "" if one.current else f", {one.standing}"
    return f"version {one.version}, {told}{', demoted' if one.demoted else ''}{standing}"


def _json(one: Procedure) -> dict[str, Any]:
    rate = one.success_rate
    return {
        "key": one.key,
        "version": one.version,
        "standing": one.standing,
        "description": one.description,
        "tags": list(one.tags),
        "body": one.body,
        "source": one.source,
        "trust": one.trust,
        "created_at": one.created_at,
        "demoted": one.demoted,
        "success_rate": {"rate": rate.rate, "lower": rate.lower, "upper": rate.upper, "trials": rate.trials},
        "mean_seconds": one.outcomes.mean_seconds,
        "notes": [{"at": note.at, "success": note.success, "text": note.text} for note in one.outcomes.notes],
    }
