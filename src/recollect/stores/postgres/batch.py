"""A batch of writes: everything it is about is read, every write is decided in its order, then all of it is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from recollect.stores.ops import Append, Clear, Delete, Drop, Embed, Put, RecordWrite, TaskWrite, Touch, Write
from recollect.stores.postgres import logs, models
from recollect.stores.postgres.locks import GROWTH
from recollect.stores.postgres.models import Models
from recollect.stores.postgres.plan import Plan
from recollect.stores.postgres.records import Shelf
from recollect.stores.postgres.server import Work
from recollect.stores.postgres.spaces import Numbered, numbered
from recollect.stores.postgres.tasks import Desk
from recollect.values import Space

_BIND = "insert into recollect.meta (name, value) values ('model', %(model)s)"


async def apply(work: Work, writes: Sequence[Write]) -> None:
    """Every write, or the first refusal as an exception: the transaction is then rolled back."""
    spaces = await numbered(work, (write.space for write in writes))
    shelves = await _shelves(work, writes, spaces)
    desks = await _desks(work, writes, spaces)
    known = bound = await _models(work, writes)
    plan = Plan()
    for write in writes:
        match write:
            case Put() | Delete() | Touch() | Embed():
                bound = shelves[write.space].apply(write, bound)
            case Append() | Clear() | Drop():
                logs.apply(plan, spaces[write.space].id, write, work.now)
            case _:
                desks[write.space, write.task].apply(plan, write, work.now)
    for shelf in shelves.values():
        shelf.plan(plan, bound)
    for desk in desks.values():
        desk.plan(plan)
    if known.active is None and bound.active is not None:
        plan.add(writes[0].space.tenant, _BIND, {"model": json.dumps(asdict(bound.active))})
    await plan.run(work)


async def _shelves(work: Work, writes: Sequence[Write], spaces: dict[Space, Numbered]) -> dict[Space, Shelf]:
    ids: dict[Space, list[str]] = {}
    for write in writes:
        if isinstance(write, RecordWrite):
            ids.setdefault(write.space, []).extend(_ids(write))
    shelves = {space: Shelf(space, spaces[space]) for space in ids}
    for space, shelf in shelves.items():
        await shelf.load(work, ids[space])
    return shelves


async def _desks(work: Work, writes: Sequence[Write], spaces: dict[Space, Numbered]) -> dict[tuple[Space, str], Desk]:
    named = {(write.space, write.task): None for write in writes if isinstance(write, TaskWrite)}
    desks = {(space, task): Desk(space, spaces[space].id, task) for space, task in named}
    for desk in desks.values():
        await desk.load(work)
    return desks


async def _models(work: Work, writes: Sequence[Write]) -> Models:
    """The models, if vectors are written; the first ones bind the store, and nobody else may bind it meanwhile."""
    if not any(isinstance(write, Embed) or (isinstance(write, Put) and write.vectors is not None) for write in writes):
        return Models()
    found = await models.read(work)
    if found.active is None:
        await work.run(GROWTH, {})
        found = await models.read(work)
    return found


def _ids(write: RecordWrite) -> Sequence[str]:
    match write:
        case Put():
            return (write.item.id,)
        case Touch():
            return write.ids
        case _:
            return (write.id,)
