"""Spaces as rows: their numbers, given when something is first written to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from recollect.stores.postgres.journey import Values
from recollect.stores.postgres.locks import GROWTH
from recollect.stores.postgres.rows import space_handle
from recollect.stores.postgres.server import Work
from recollect.stores.postgres.text import kept
from recollect.values import Space

_FIND = """
    select handle, id, next_seq
    from recollect.spaces
    where tenant = %(tenant)s and handle = any(%(handles)s)
"""
# No fence of a space that was erased is given again: see `wiping`.
_MINT = """
    insert into recollect.spaces (tenant, handle, tier, owner, agent, session, next_seq)
    values (
        %(tenant)s, %(handle)s, %(tier)s, %(owner)s, %(agent)s, %(session)s,
        case
            when %(tier)s = 'checkpoints' then
                coalesce((select value::bigint from recollect.meta where name = 'last_fence'), 0)
            else 0
        end
    )
    returning handle, id, next_seq
"""


class Numbered(NamedTuple):
    """A space's number, and how many places it has given out."""

    id: int
    next_seq: int


async def numbered(work: Work, space: Space) -> int:
    """A space's number, given to it if it has none."""
    await work.about(space.tenant)
    row = await work.row(_FIND, {"tenant": kept(space.tenant), "handles": [space_handle(space)]})
    if row is not None:
        return int(row[1])
    return (await minted(work, space.tenant, {space_handle(space): space}))[space_handle(space)].id


async def minted(work: Work, tenant: str, spaces: Mapping[str, Space]) -> dict[str, Numbered]:
    """Some spaces of one tenant by their handles, each with a number; nobody else gives numbers meanwhile."""
    await work.run(GROWTH, {})
    rows = await work.rows(_FIND, {"tenant": kept(tenant), "handles": list(spaces)})
    known = {row[0] for row in rows}
    for handle, space in spaces.items():
        if handle not in known:
            rows += await work.rows(_MINT, _values(handle, space))
    return {handle: Numbered(id, next_seq) for handle, id, next_seq in rows}


def _values(handle: str, space: Space) -> Values:
    return {
        "tenant": kept(space.tenant),
        "handle": handle,
        "tier": space.tier,
        "owner": kept(space.user),
        "agent": kept(space.agent),
        "session": kept(space.session),
    }
