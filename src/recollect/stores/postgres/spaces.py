"""Spaces as rows: their numbers, given when something is first written to them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

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
_MINT = """
    insert into recollect.spaces (tenant, handle, tier, owner, agent, session)
    values (%(tenant)s, %(handle)s, %(tier)s, %(owner)s, %(agent)s, %(session)s)
    returning handle, id, next_seq
"""


class Numbered(NamedTuple):
    """A space's number, and how many places it has given out."""

    id: int
    next_seq: int


async def numbered(work: Work, spaces: Iterable[Space]) -> dict[Space, Numbered]:
    """The spaces of a batch, those that are new included."""
    found: dict[Space, Numbered] = {}
    ordered = sorted(set(spaces), key=lambda space: space.tenant)
    for tenant, some in groupby(ordered, lambda space: space.tenant):
        found |= await _of_tenant(work, tenant, list(some))
    return found


async def _of_tenant(work: Work, tenant: str, spaces: list[Space]) -> dict[Space, Numbered]:
    await work.about(tenant)
    handles = {space_handle(space): space for space in spaces}
    values = {"tenant": kept(tenant), "handles": list(handles)}
    rows = await work.rows(_FIND, values)
    if len(rows) < len(handles):
        await work.run(GROWTH, {})
        rows = await work.rows(_FIND, values)
        known = {row[0] for row in rows}
        for handle, space in handles.items():
            if handle not in known:
                rows += await work.rows(_MINT, _minted(handle, space))
    return {handles[handle]: Numbered(id, next_seq) for handle, id, next_seq in rows}


def _minted(handle: str, space: Space) -> dict[str, Any]:
    return {
        "tenant": kept(space.tenant),
        "handle": handle,
        "tier": space.tier,
        "owner": kept(space.user),
        "agent": kept(space.agent),
        "session": kept(space.session),
    }
