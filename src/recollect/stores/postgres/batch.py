"""A batch of writes: everything it is about is read, every write is decided in its order, then all of it is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from recollect.stores.ops import Append, Clear, Delete, Drop, Embed, Put, RecordWrite, TaskWrite, Touch, Write
from recollect.stores.postgres import models
from recollect.stores.postgres.holdings import Asked, Holdings, asked_for, held
from recollect.stores.postgres.locks import GROWTH
from recollect.stores.postgres.logs import Pages
from recollect.stores.postgres.models import Models
from recollect.stores.postgres.plan import Plan
from recollect.stores.postgres.records import Shelf
from recollect.stores.postgres.server import Work
from recollect.stores.postgres.tasks import Desk
from recollect.stores.postgres.text import handle
from recollect.values import Space

_BIND = "bound{n} as (insert into recollect.meta (name, value) values ('model', %(model{n})s))"


async def apply(work: Work, writes: Sequence[Write], questions: Sequence[Asked]) -> None:
    """Every write, and with the last of them the end; or the first refusal as an exception: all is then rolled back.

    The transaction was begun with the first of the questions.
    """
    await (await _planned(work, writes, questions)).run(work)


async def apply_within(work: Work, writes: Sequence[Write]) -> None:
    """The same in the middle of a transaction, which goes on."""
    questions = asked_for(writes)
    await work.about(questions[0].tenant)
    work.first = await work.rows(*questions[0].statement)
    plan = await _planned(work, writes, questions)
    for statement in plan.statements(work):
        await work.run(*statement)
    work.tenant = None  # the last of them may have been another's


async def _planned(work: Work, writes: Sequence[Write], questions: Sequence[Asked]) -> Plan:
    there = await held(work, questions)
    known = bound = await _models(work, writes, there.models)
    plan = Plan()
    shelves: dict[Space, Shelf] = {}
    desks: dict[tuple[Space, str], Desk] = {}
    pages = Pages(plan, there, work.now)
    for write in writes:
        match write:
            case Put() | Delete() | Touch() | Embed():
                bound = _shelf(shelves, there, write).apply(write, bound)
            case Append() | Clear() | Drop():
                pages.apply(write)
            case _:
                _desk(desks, there, write).apply(plan, write, work.now)
    pages.plan()
    for shelf in shelves.values():
        shelf.plan(plan, bound)
    for desk in desks.values():
        desk.plan(plan)
    if known.active is None and bound.active is not None:
        plan.add(writes[0].space.tenant, _BIND, {"model": json.dumps(asdict(bound.active))}, ["meta"])
    return plan


def _shelf(shelves: dict[Space, Shelf], there: Holdings, write: RecordWrite) -> Shelf:
    space = write.space
    shelf = shelves.get(space)
    if shelf is None:
        shelf = shelves[space] = Shelf.of(space, there.spaces[space], there.items.get(space, ()))
    return shelf


def _desk(desks: dict[tuple[Space, str], Desk], there: Holdings, write: TaskWrite) -> Desk:
    key = write.space, write.task
    if key not in desks:
        row = there.tasks.get((write.space, handle(write.task)))
        desks[key] = Desk.of(write.space, there.spaces[write.space].id, write.task, row)
    return desks[key]


async def _models(work: Work, writes: Sequence[Write], found: Models) -> Models:
    """The models, if vectors are written; the first ones bind the store, and nobody else may bind it meanwhile."""
    if not any(isinstance(write, Embed) or (isinstance(write, Put) and write.vectors is not None) for write in writes):
        return Models()
    if found.active is None:
        await work.run(GROWTH, {})
        found = await models.read(work)
    return found
