"""What a batch is about, as it stands before: everything that its writes are decided by, in one reading a tenant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from recollect.stores.ops import (
    Append,
    Delete,
    DropTask,
    Embed,
    Journal,
    Put,
    RecordWrite,
    Restore,
    Save,
    SetStatus,
    Touch,
    Write,
)
from recollect.stores.postgres import models
from recollect.stores.postgres.journey import Statement, Values
from recollect.stores.postgres.models import Models
from recollect.stores.postgres.rows import TASK, space_handle
from recollect.stores.postgres.server import Work
from recollect.stores.postgres.spaces import Numbered, minted
from recollect.stores.postgres.text import handle, kept
from recollect.values import Space

Row = Sequence[Any]

_SPACES = """
    (
        select json_agg(json_build_array(handle, id, next_seq))
        from recollect.spaces
        where tenant = %(tenant)s and handle = any(%(spaces)s)
    )
"""
_OF = """
    from unnest(%({named}_in)s::text[], %({named})s::text[]) as asked (space, name)
    join recollect.spaces s on s.tenant = %(tenant)s and s.handle = asked.space
"""
_ITEMS = f"""
    (
        select json_agg(json_build_array(
            asked.space, r.id, r.place, r.version, r.access_count, r.last_accessed, r.terms, r.passages
        ))
        {_OF.format(named="items")}
        join recollect.records r on r.tenant = %(tenant)s and r.space = s.id and r.handle = asked.name
    )
"""
_ENTRIES = f"""
    (
        select json_agg(json_build_array(asked.space, asked.name))
        {_OF.format(named="entries")}
        join recollect.entries e on e.tenant = %(tenant)s and e.space = s.id and e.handle = asked.name
    )
"""
_TASKS = f"""
    (
        select json_agg(json_build_array(asked.space, asked.name, {TASK}))
        {_OF.format(named="tasks")}
        join recollect.tasks t on t.tenant = %(tenant)s and t.space = s.id and t.handle = asked.name
    )
"""


@dataclass(slots=True)
class Holdings:
    """What is there of what is asked for; the spaces are numbered, those that are new included."""

    models: Models = field(default_factory=Models)
    spaces: dict[Space, Numbered] = field(default_factory=dict)
    items: dict[Space, list[Row]] = field(default_factory=dict)
    entries: dict[Space, set[str]] = field(default_factory=dict)
    tasks: dict[tuple[Space, str], Row] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """What has to be known of one tenant before a batch can be decided."""

    tenant: str
    spaces: dict[str, Space]
    statement: Statement
    with_models: bool


def asked_for(writes: Sequence[Write]) -> list[Asked]:
    """A question for each tenant; a transaction is begun with the first."""
    tenants: dict[str, list[Write]] = {}
    for write in writes:
        tenants.setdefault(write.space.tenant, []).append(write)
    return [_asked(tenant, some) for tenant, some in tenants.items()]


async def held(work: Work, questions: Sequence[Asked]) -> Holdings:
    found = Holdings()
    rows = work.first
    for number, asked in enumerate(questions):
        if number:
            await work.about(asked.tenant)
            rows = await work.rows(*asked.statement)
        await _take(work, asked, rows[0], found)
    return found


def _asked(tenant: str, writes: Sequence[Write]) -> Asked:
    spaces: dict[str, Space] = {}
    items: dict[tuple[str, str], None] = {}
    entries: dict[tuple[str, str], None] = {}
    tasks: dict[tuple[str, str], None] = {}
    for write in writes:
        space = write.space
        name = space_handle(space)
        spaces[name] = space
        match write:
            case Append():
                entries[name, handle(write.entry.id)] = None
            case Put() | Delete() | Touch() | Embed():
                items.update({(name, handle(id)): None for id in _ids(write)})
            case Save() | Journal() | SetStatus() | DropTask() | Restore():
                tasks[name, handle(write.task)] = None
            case _:
                pass
    values: Values = {"tenant": kept(tenant), "spaces": list(spaces)}
    asked = [models.AS_JSON if items else "null", _SPACES]
    for name, sql, pairs in (("items", _ITEMS, items), ("entries", _ENTRIES, entries), ("tasks", _TASKS, tasks)):
        asked.append(sql if pairs else "null")
        if pairs:
            values |= {f"{name}_in": [space for space, _ in pairs], name: [one for _, one in pairs]}
    return Asked(tenant, spaces, Statement(f"select {', '.join(asked)}", values), bool(items))


async def _take(work: Work, asked: Asked, row: Row, found: Holdings) -> None:
    known, numbered, old_items, old_entries, old_tasks = row
    spaces = asked.spaces
    found.models = models.known(known) if asked.with_models else found.models
    numbers = {name: Numbered(id, next_seq) for name, id, next_seq in numbered or ()}
    if len(numbers) < len(spaces):
        numbers |= await minted(work, asked.tenant, spaces)
    found.spaces |= {space: numbers[name] for name, space in spaces.items()}
    for space, *item in old_items or ():
        found.items.setdefault(spaces[space], []).append(item)
    for space, name in old_entries or ():
        found.entries.setdefault(spaces[space], set()).add(name)
    found.tasks |= {(spaces[space], name): task for space, name, *task in old_tasks or ()}


def _ids(write: RecordWrite) -> Iterable[str]:
    match write:
        case Put():
            return (write.item.id,)
        case Touch():
            return write.ids
        case Delete() | Embed():
            return (write.id,)
