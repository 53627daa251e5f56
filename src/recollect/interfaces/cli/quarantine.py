"""The commands for what is in quarantine: read it, then let it in or drop it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.errors import BadInput
from recollect.interfaces.cli.grouping import Group
from recollect.interfaces.cli.opening import NOT_FOUND, Caller, command
from recollect.interfaces.cli.output import aside, complain, item_json, print_json, say
from recollect.interfaces.cli.short_ids import SHORTEST

if TYPE_CHECKING:
    from recollect.memory import AgentMemory
    from recollect.tiers.quarantine import Quarantined

quarantine_app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Read what was held back: orders from strangers, and what they would change."
)

_Id = Annotated[str, typer.Argument(help=f"Its id, or its first characters: {SHORTEST} or more.")]


@quarantine_app.command("list")
@command
def list_quarantined(
    *, limit: Annotated[int, typer.Option(help="How many, newest first.")] = 50, caller: Caller
) -> None:
    """List what waits to be read, with where it came from and what speaks against it."""
    found = caller.known(lambda m: m.quarantine.list(limit))
    if caller.as_json:
        print_json([_json(one) for one in found])
        return
    for one in found:
        item = one.item
        say(f"{item.id}  {item.created_at:%Y-%m-%d}  from {item.source}  trust {item.trust:g}  {'; '.join(one.why)}")
        say(f"    “{' '.join(item.content.split())}”")
    if not found:
        aside(f"nothing is in quarantine for user {caller.user!r}")


@quarantine_app.command("approve")
@command
def approve(
    id: _Id,
    *,
    trust: Annotated[float | None, typer.Option(help="How far it is to be trusted; as before when not given.")] = None,
    caller: Caller,
) -> None:
    """Make it a fact, after you have read it. Exit code 1 when there is no such item."""

    async def let_in(memory: AgentMemory) -> Any:
        return await memory.quarantine.approve(await _whole(memory, id), trust=trust)

    item = caller.known(let_in)
    print_json(item_json(item)) if caller.as_json else say(f"approved {item.id}")


@quarantine_app.command("drop")
@command
def drop(id: _Id, *, caller: Caller) -> None:
    """Forget it. Exit code 1 when there is no such item."""

    async def gone(memory: AgentMemory) -> tuple[str, bool]:
        whole = await _whole(memory, id)
        return whole, await memory.quarantine.drop(whole)

    whole, done = caller.known(gone)
    if caller.as_json:
        print_json({"id": whole, "dropped": done})
    elif done:
        say(f"dropped {whole}")
    else:
        complain(f"there is nothing with the id {id} in quarantine")
    if not done:
        raise typer.Exit(NOT_FOUND)


async def _whole(memory: AgentMemory, given: str) -> str:
    found = [one.id for one in await memory.quarantine.list(10_000) if one.id.startswith(given)]
    if len(given) < SHORTEST or given in found:
        return given
    if len(found) > 1:
        raise BadInput(f"{given} begins the ids of {len(found)} items, such as {found[0]} and {found[1]}; give more")
    return found[0] if found else given


def _json(one: Quarantined) -> dict[str, Any]:
    return {**item_json(one.item), "why": list(one.why)}
