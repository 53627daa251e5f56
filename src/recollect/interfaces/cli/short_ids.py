"""Ids that are given by their beginning, as a chat shows them and as people copy them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.errors import BadInput

if TYPE_CHECKING:
    from recollect.memory import AgentMemory

# Fewer characters are as soon a slip as a choice, and what is forgotten is gone.
SHORTEST = 6
_PAGE = 500


async def whole_id(memory: AgentMemory, given: str) -> str:
    """The id of the fact that alone begins so; as it was given when there is none."""
    if len(given) < SHORTEST or await memory.semantic.get(given) is not None:
        return given
    found: list[str] = []
    last: str | None = None
    while page := await memory.semantic.page(_PAGE, after=last, past=True):
        found += [item.id for item in page if item.id.startswith(given)]
        last = page[-1].id
    if len(found) > 1:
        raise BadInput(f"{given} begins the ids of {len(found)} facts, such as {found[0]} and {found[1]}; give more")
    return found[0] if found else given
