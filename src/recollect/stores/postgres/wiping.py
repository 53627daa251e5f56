"""Deleting for an erasure: whole spaces and single rows in one transaction, with evidence of what they held."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.stores.erasing import Doomed
from recollect.stores.ops import Delete, Drop, DropTask, Put, Write
from recollect.stores.postgres import ledger, wiped
from recollect.stores.postgres.batch import apply_within
from recollect.stores.postgres.evidence import Evidence
from recollect.stores.postgres.journey import Values
from recollect.stores.postgres.rows import loaded, space_handle, space_of
from recollect.stores.postgres.server import Work
from recollect.stores.postgres.text import given, handle, kept
from recollect.stores.traces import Traces, pieces_of
from recollect.stores.where import paths_of
from recollect.values import Space

_AT_ONCE = 500

_HOLDINGS = "select tenant, tier, owner, agent, session from recollect.spaces order by id"

_FOUND = """
    select id, next_seq, substring(tableoid::regclass::text from '[0-9]+$')::bigint
    from recollect.spaces
    where tenant = %(tenant)s and handle = %(handle)s
"""

_OF = "where tenant = %(tenant)s and space = %(space)s"
_ITEMS = f"""
    select id, content, metadata, superseded_by, source, key, session, speaker, derived_from, by_session, terms
    from recollect.records
    {_OF}
"""  # noqa: S608 - a constant clause, here and below
_ITEM = f"{_ITEMS} and handle = %(name)s"
_VECTORS = f"select data from recollect.vectors {_OF}"  # noqa: S608
_VECTORS_OF_ITEM = f"""
    {_VECTORS} and place = (select place from recollect.records {_OF} and handle = %(name)s)
"""  # noqa: S608
_ENTRIES = f"select id, kind, content, metadata from recollect.entries {_OF}"  # noqa: S608
_ENTRIES_AT = f"{_ENTRIES} and seq = any(%(seqs)s)"
_TASKS = f"select id, plan_hash, owner from recollect.tasks {_OF}"  # noqa: S608
_STATES = f"select state from recollect.checkpoints {_OF}"  # noqa: S608
_STEPS = f"select key, idempotency_key, input_sha, result, error from recollect.steps {_OF}"  # noqa: S608
_PATHS = f"select path from recollect.paths {_OF}"  # noqa: S608
_METADATA = f"select metadata from recollect.records {_OF} and metadata <> '{{}}'"  # noqa: S608
_UNPATHED = f"delete from recollect.paths {_OF} and path = any(%(paths)s)"  # noqa: S608

_EMPTIED = tuple(
    f"delete from recollect.{table} {_OF}"  # noqa: S608
    for table in ("records", "vectors", "postings", "entries", "steps", "checkpoints", "tasks", "paths")
)
_UNSPACED = "delete from recollect.spaces where tenant = %(tenant)s and id = %(space)s"

# What is left of a space: numbers are never given again, and neither are fences, lest the holder of a task that is gone
# pass for the holder of its successor.
_LAST_FENCE = """
    insert into recollect.meta (name, value)
    values ('last_fence', %(fence)s::text)
    on conflict (name) do update
    set value = greatest(meta.value::bigint, excluded.value::bigint)::text
"""


@dataclass(frozen=True, slots=True)
class _Found:
    """A space that is there: its number, its partition, and the last place or fence that it has given."""

    space: Space
    number: int
    last: int
    part: int

    @property
    def values(self) -> Values:
        return {"tenant": kept(self.space.tenant), "space": self.number}


@dataclass(slots=True)
class _Gone:
    """What one deletion takes away."""

    pieces: list[bytes] = field(default_factory=list)
    spaces: set[tuple[int, int]] = field(default_factory=set)
    parts: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    async def note(self, rows: AsyncIterator[tuple[Any, ...]]) -> int:
        count = 0
        async for row in rows:
            count += 1
            self.note_values(row)
        return count

    def note_values(self, values: Iterable[Any]) -> None:
        for value in values:
            if value:
                self.pieces.extend(pieces_of(value if isinstance(value, bytes) else str(value).encode()))


async def holdings(work: Work) -> list[Space]:
    """Every space that has a row, whether anything lies in it or not."""
    return [space_of(row) for row in await work.rows(_HOLDINGS, {})]


async def wipe(work: Work, id: str, doomed: Doomed) -> None:
    before, gone = await ledger.one(work, id), _Gone()
    await _replan(work)
    for space in doomed.spaces:
        if (found := await _found(work, space)) is not None:
            gone.spaces.add((found.part, found.number))
            gone.parts.add(found.part)
            gone.counts[space.tier] += await _space(work, found, gone)
    shared = {write.space: await _found(work, write.space) for write in doomed.writes}
    for write in doomed.writes:
        if (found := shared[write.space]) is not None:
            gone.parts.add(found.part)
            await _note(work, found, write, gone)
    if doomed.writes:
        await apply_within(work, doomed.writes)
        await _replan(work)
    for found in shared.values():
        if found is not None:
            await _tidy_paths(work, found)
    salt = await ledger.salt(work)
    held = Evidence.unpacked(salt, before.evidence)
    fresh = Evidence(frozenset(gone.spaces), frozenset(gone.parts), Traces.of_pieces(salt, gone.pieces))
    rewritten = sum(isinstance(write, Put) for write in doomed.writes)
    await ledger.add(work, before, gone.counts, rewritten, held.plus(fresh).packed)
    await wiped.note(work.connection, sorted(gone.parts))


async def _replan(work: Work) -> None:
    for statement in work.replanned():
        await work.run(*statement)


async def _found(work: Work, space: Space) -> _Found | None:
    await work.about(space.tenant)
    row = await work.row(_FOUND, {"tenant": kept(space.tenant), "handle": space_handle(space)})
    return None if row is None else _Found(space, *row)


async def _space(work: Work, found: _Found, gone: _Gone) -> int:
    """Everything of a space, and its name; how much that was."""
    await work.about(found.space.tenant)
    values = found.values
    count = await gone.note(_each(work, _ITEMS, values))
    await gone.note(_vectors(work, _VECTORS, values))
    count += await gone.note(_each(work, _ENTRIES, values))
    count += await _tasks(work, values, "", gone)
    await gone.note(_each(work, _PATHS, values))
    space = found.space
    gone.note_values((space.tenant, space_handle(space), space.user, space.agent, space.session))
    for statement in (*_EMPTIED, _UNSPACED):
        await work.run(statement, values)
    await work.run(_LAST_FENCE, {"fence": found.last})
    return count


async def _tasks(work: Work, values: Values, task: str, gone: _Gone) -> int:
    """Notes the tasks of a space, or one of them."""
    of_one, by_name = (" and task = %(name)s", " and handle = %(name)s") if task else ("", "")
    named = {**values, "name": task}
    count = await gone.note(_each(work, _TASKS + by_name, named))
    await gone.note(_each(work, _STATES + of_one, named))
    await gone.note(_each(work, _STEPS + of_one, named))
    return count


async def _note(work: Work, found: _Found, write: Write, gone: _Gone) -> None:
    """What a single write is about to take away."""
    await work.about(found.space.tenant)
    values = found.values
    match write:
        case Delete():
            named = {**values, "name": handle(write.id)}
            gone.counts[write.space.tier] += await gone.note(_each(work, _ITEM, named))
            await gone.note(_vectors(work, _VECTORS_OF_ITEM, named))
        case DropTask():
            gone.counts[write.space.tier] += await _tasks(work, values, handle(write.task), gone)
        case Drop():
            seqs = {**values, "seqs": list(write.seqs)}
            gone.counts[write.space.tier] += await gone.note(_each(work, _ENTRIES_AT, seqs))
        case _:
            return


async def _each(work: Work, statement: str, values: Values) -> AsyncIterator[tuple[Any, ...]]:
    """Rows a few at a time: all that somebody ever said need not fit into memory."""
    async with work.connection.cursor("wiping", binary=True) as cursor:
        cursor.itersize = _AT_ONCE
        await cursor.execute(statement, values)
        async for row in cursor:
            yield row


async def _vectors(work: Work, statement: str, values: Values) -> AsyncIterator[tuple[Any, ...]]:
    """Vectors as they lie on disk, which is not quite how they are sent."""
    async for (sent,) in _each(work, statement, values):
        yield (np.frombuffer(sent, ">f2", offset=4).astype("<f2").tobytes(),)


async def _tidy_paths(work: Work, found: _Found) -> None:
    """What may be filtered by is what the items that are left carry: a path may be a name."""
    await work.about(found.space.tenant)
    left = {path async for (told,) in _each(work, _METADATA, found.values) for path in paths_of(loaded(told))}
    stale = [path for (path,) in await work.rows(_PATHS, found.values) if given(path) not in left]
    if stale:
        await work.run(_UNPATHED, {**found.values, "paths": stale})
