"""Commands that review quarantined items: list, approve, drop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.context import MIN_ID_PREFIX, CliContext, SubcommandApp, select_id
from recollect.cli.output import to_json_value

if TYPE_CHECKING:
    from recollect.memory import AgentMemory
    from recollect.tiers.quarantine import QuarantinedItem
    from recollect.types import MemoryItem

quarantine_app = SubcommandApp(
    "Review quarantined items: instructions from untrusted sources, and what they would change."
)

_IdArgument = Annotated[str, typer.Argument(help=f"Its id, or its first characters: {MIN_ID_PREFIX} or more.")]
_MAX_SEARCHED_IDS = 10_000


@quarantine_app.add("list")
def list_quarantined(
    *, limit: Annotated[int, typer.Option(help="How many, newest first.")] = 50, caller: CliContext
) -> None:
    """List the items to review, with their source and the reasons."""
    entries = caller.use_existing_memory(lambda m: m.quarantine.list(limit))

    def format_entry(entry: QuarantinedItem) -> str:
        item, reasons = entry.item, "; ".join(entry.why)
        source = f"{item.id}  {item.created_at:%Y-%m-%d}  from {item.source}  trust {item.trust:g}  {reasons}"
        return f"{source}\n    “{' '.join(item.content.split())}”"

    empty = f"nothing is in quarantine for user {caller.user!r}"
    caller.print_page(entries, format_entry, encode=entry_to_json, empty=empty)


def entry_to_json(entry: QuarantinedItem) -> dict[str, Any]:
    return {**to_json_value(entry.item), "why": entry.why}


@quarantine_app.add("approve")
def approve_item(
    id: _IdArgument,
    *,
    trust: Annotated[float | None, typer.Option(help="The trust it gets; default: unchanged.")] = None,
    caller: CliContext,
) -> None:
    """Turn it into a fact, after you have read it. Exit code 1 when there is no such item."""

    async def approve(memory: AgentMemory) -> MemoryItem:
        return await memory.quarantine.approve(await _resolve_quarantined_id(memory, id), trust=trust)

    item = caller.use_existing_memory(approve)
    caller.print_result(item, f"approved {item.id}")


@quarantine_app.add("drop")
def drop_item(id: _IdArgument, *, caller: CliContext) -> None:
    """Delete it. Exit code 1 when there is no such item."""

    async def drop(memory: AgentMemory) -> tuple[str, bool]:
        full_id = await _resolve_quarantined_id(memory, id)
        return full_id, await memory.quarantine.drop(full_id)

    full_id, is_dropped = caller.use_existing_memory(drop)
    missing = f"there is nothing with the id {id} in quarantine"
    caller.print_deletion(
        {"id": full_id, "dropped": is_dropped}, f"dropped {full_id}", is_done=is_dropped, missing=missing
    )


async def _resolve_quarantined_id(memory: AgentMemory, prefix: str) -> str:
    return select_id(prefix, [entry.id for entry in await memory.quarantine.list(_MAX_SEARCHED_IDS)])
