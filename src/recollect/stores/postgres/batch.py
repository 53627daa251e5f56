"""Batches of writes, and the deletion of an erasure, each in one transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from recollect.stores.erasure import ErasureSelection, require_erasure
from recollect.stores.filters import iter_metadata_paths
from recollect.stores.postgres import erasure
from recollect.stores.postgres.connections import Rows, SqlParams, SqlStatement
from recollect.stores.postgres.embedding_models import MODELS_JSON_SQL, PostgresModels, load_models, parse_models
from recollect.stores.postgres.logs import PostgresLogBatch
from recollect.stores.postgres.records import PostgresRecordBatch
from recollect.stores.postgres.row_codec import (
    build_handle,
    build_space_handle,
    escape_text,
    load_metadata,
    unescape_text,
)
from recollect.stores.postgres.tasks import TASK_COLUMNS, PostgresTaskBatch
from recollect.stores.postgres.transactions import (
    LOCK_GROWTH_SQL,
    PostgresTransaction,
    SpaceNumber,
    StatementPlan,
    create_space_numbers,
    has_vectors,
)
from recollect.stores.traces import DeletionTraces, select_pieces
from recollect.stores.writes import (
    Append,
    Clear,
    Delete,
    Drop,
    DropTask,
    Embed,
    Put,
    Touch,
    Write,
)
from recollect.types import Space

# Reads: the rows on which the writes of a batch depend.

# Rows by the handles of their spaces and their own, and the numbers of the spaces. Both may be missing. Each row is
# found by an index: a join may scan all rows of the tenant instead, if it is planned before they are there.
_SELECT_NAMED = """
    select asked.space, s.id, s.next_seq, t.handle, {columns}
    from unnest(%(spaces)s::text[], %(names)s::text[]) as asked (space, name)
    left join lateral (
        select * from recollect.spaces where tenant = %(tenant)s and handle = asked.space offset 0
    ) s on true
    left join lateral (
        select * from recollect.{table} where tenant = %(tenant)s and space = s.id and handle = asked.name offset 0
    ) t on true
"""
_SELECT_NAMED_ROWS = {
    "items": _SELECT_NAMED.format(
        table="records",
        columns=f"t.id, t.place, t.version, t.access_count, t.last_accessed, t.terms, t.passages, {MODELS_JSON_SQL}",
    ),
    "entries": _SELECT_NAMED.format(table="entries", columns="t.seq"),
    "tasks": _SELECT_NAMED.format(table="tasks", columns=TASK_COLUMNS),
}


@dataclass(frozen=True, slots=True)
class TenantBatch:
    """The writes of one tenant, and the statements that read the rows on which they depend, by name."""

    tenant: str
    writes: Sequence[Write]
    spaces: dict[str, Space]
    statements: dict[str, SqlStatement]


def split_by_tenant(writes: Sequence[Write]) -> list[TenantBatch]:
    """Return one batch per tenant. The statements of the first are sent with the begin of the transaction."""
    tenants: dict[str, list[Write]] = {}
    for write in writes:
        tenants.setdefault(write.space.tenant, []).append(write)
    return [_build_batch(tenant, of_tenant) for tenant, of_tenant in tenants.items()]


def _build_batch(tenant: str, writes: Sequence[Write]) -> TenantBatch:
    spaces: dict[str, Space] = {}
    rows: dict[str, dict[tuple[str, str], None]] = {}
    for write in writes:
        space = build_space_handle(write.space)
        spaces[space] = write.space
        kind, ids = _get_row_ids(write)
        rows.setdefault(kind, {}).update({(space, build_handle(id)): None for id in ids})
    statements = {}
    for name, keys in rows.items():
        values = {"spaces": [space for space, _ in keys], "names": [handle for _, handle in keys]}
        statements[name] = SqlStatement(_SELECT_NAMED_ROWS[name], {"tenant": escape_text(tenant), **values})
    return TenantBatch(tenant, writes, spaces, statements)


def _get_row_ids(write: Write) -> tuple[str, Iterable[str]]:
    """Return the kind and the ids of the rows on which a write depends. No entry has the id ''."""
    match write:
        case Put():
            return "items", (write.item.id,)
        case Touch():
            return "items", write.ids
        case Delete() | Embed():
            return "items", (write.id,)
        case Append():
            return "entries", (write.entry.id,)
        case Clear() | Drop():
            return "entries", ("",)
        case _:
            return "tasks", (write.task,)


# Writes.

_BIND_MODEL = "insert into recollect.meta (name, value) values ('model', %(model)s)"


async def plan_writes(
    work: PostgresTransaction, batches: Sequence[TenantBatch], results: Sequence[Rows]
) -> StatementPlan:
    """Return the statements of all writes. Raise the error of the first write that is refused.

    The results are those of the first batch.
    """
    plan, models = StatementPlan(), PostgresModels()
    for number, batch in enumerate(batches):
        if number:
            await work.switch_tenant(batch.tenant)
            results = await work.fetch_all(list(batch.statements.values()))
        rows = dict(zip(batch.statements, results, strict=True))
        if any(map(has_vectors, batch.writes)) and models.active is None:
            models = parse_models(rows["items"][0][-1])
            if models.active is None:  # lock out others that would bind the store
                await work.execute(LOCK_GROWTH_SQL)
                models = await load_models(work)
        is_bound = models.active is not None
        found = (row for named in rows.values() for row in named)
        numbers = {space: SpaceNumber(id, next_seq) for space, id, next_seq, *_ in found if id is not None}
        if len(numbers) < len(batch.spaces):
            numbers |= await create_space_numbers(work, batch.tenant, batch.spaces)
        models = _plan_batch(plan, batch.writes, numbers, rows, models, work.now)
        if not is_bound and models.active is not None:
            plan.add(batch.tenant, _BIND_MODEL, {"model": json.dumps(asdict(models.active))})
    return plan


def _plan_batch(
    plan: StatementPlan,
    writes: Sequence[Write],
    numbers: Mapping[str, SpaceNumber],
    rows: Mapping[str, Rows],
    models: PostgresModels,
    now: datetime,
) -> PostgresModels:
    """Apply the writes of one tenant in their order, and return the models after them."""
    stored = {
        kind: {(space, handle): row for space, _, _, handle, *row in named if handle is not None}
        for kind, named in rows.items()
    }
    records: dict[str, PostgresRecordBatch] = {}
    tasks: dict[tuple[str, str], PostgresTaskBatch] = {}
    logs: dict[str, PostgresLogBatch] = {}
    for write in writes:
        handle = build_space_handle(write.space)
        number = numbers[handle]
        match write:
            case Put() | Delete() | Touch() | Embed():
                if handle not in records:
                    items = [row for (space, _), row in stored["items"].items() if space == handle]
                    records[handle] = PostgresRecordBatch(write.space, number, items)
                models = records[handle].apply(write, models)
            case Append() | Clear() | Drop():
                if handle not in logs:
                    names = [name for space, name in stored["entries"] if space == handle]
                    logs[handle] = PostgresLogBatch(plan, write.space, number, names, now)
                logs[handle].apply(write)
            case _:
                key = handle, build_handle(write.task)
                if key not in tasks:
                    tasks[key] = PostgresTaskBatch(write.space, number.id, write.task, stored["tasks"].get(key))
                tasks[key].apply(plan, write, now)
    for log in logs.values():
        log.add_to_plan()
    for record_batch in records.values():
        record_batch.add_to_plan(plan, models)
    for task_batch in tasks.values():
        task_batch.add_to_plan(plan)
    return models


# Deletion for an erasure.

_FIND_SPACE = """
    select id, next_seq, substring(tableoid::regclass::text from '[0-9]+$')::bigint
    from recollect.spaces
    where tenant = %(tenant)s and handle = %(handle)s
"""

_OF_SPACE = "tenant = %(tenant)s and space = %(space)s"
_PLACE_OF_ITEM = f"place = (select place from recollect.records where {_OF_SPACE} and handle = %(name)s)"  # noqa: S608
_SELECT_PATHS = f"select path from recollect.paths where {_OF_SPACE}"  # noqa: S608 - a constant clause, here and below
_SELECT_METADATA = f"select metadata from recollect.records where {_OF_SPACE} and metadata <> '{{}}'"  # noqa: S608
_DELETE_PATHS = f"delete from recollect.paths where {_OF_SPACE} and path = any(%(paths)s)"  # noqa: S608

_DELETE_SPACE_ROWS = tuple(
    f"delete from recollect.{table} where {_OF_SPACE}"  # noqa: S608
    for table in ("records", "vectors", "postings", "entries", "steps", "checkpoints", "tasks", "paths")
)
_DELETE_SPACE = "delete from recollect.spaces where tenant = %(tenant)s and id = %(space)s"

# The last fence of all erased spaces. A fence is never reused: the holder of an erased task's lease could use it.
_SAVE_LAST_FENCE = """
    insert into recollect.meta (name, value)
    values ('last_fence', %(fence)s::text)
    on conflict (name) do update
    set value = greatest(meta.value::bigint, excluded.value::bigint)::text
"""


async def delete_selection(work: PostgresTransaction, id: str, selection: ErasureSelection) -> None:
    """Delete what an erasure selects, and add the evidence and counts to its ledger entry."""
    before, deletion = require_erasure(id, await erasure.load_erasure(work, id)), _Deletion(work)
    await work.force_replan()
    for space in selection.spaces:
        if (row := await deletion.find_space(space)) is not None:
            deletion.spaces.add((row["partition"], row["space"]))
            await deletion.delete_space(space, row)
    changed = {write.space: await deletion.find_space(write.space) for write in selection.writes}
    for write in selection.writes:
        if (row := changed[write.space]) is not None:
            await deletion.collect_write(row, write)
    if selection.writes:
        batches = split_by_tenant(selection.writes)
        await work.switch_tenant(batches[0].tenant)
        plan = await plan_writes(work, batches, await work.fetch_all(list(batches[0].statements.values())))
        await work.fetch_all(plan.build_statements(work))
        work.tenant = None  # the last statement may have switched it
    for space, row in changed.items():
        if row is not None:
            await work.switch_tenant(space.tenant)
            await _delete_unused_paths(work, row)
    known, new = (
        erasure.PostgresEvidence.unpack(before.key, before.evidence),
        DeletionTraces.from_pieces(before.key, deletion.pieces),
    )
    evidence = erasure.PostgresEvidence(
        known.spaces | deletion.spaces, known.partitions | deletion.partitions, known.traces.merge(new)
    )
    deletion.counts.update(before.erased)
    rederived = before.rederived + sum(isinstance(write, Put) for write in selection.writes)
    after = replace(before, erased=deletion.counts, rederived=rederived, evidence=evidence.packed)
    await erasure.save_erasure(work, after)
    await erasure.note_partitions(work.connection, sorted(deletion.partitions))


class _Deletion:
    """Evidence and counts of what one transaction deletes. A stored space is given by its parameters in statements."""

    def __init__(self, work: PostgresTransaction) -> None:
        self._work = work
        self.pieces: list[bytes] = []
        self.spaces: set[tuple[int, int]] = set()
        self.partitions: set[int] = set()
        self.counts: Counter[str] = Counter()

    async def find_space(self, space: Space) -> SqlParams | None:
        """Return the number of a space, the last place or fence that it has assigned, and its partition."""
        await self._work.switch_tenant(space.tenant)
        params = {"tenant": escape_text(space.tenant), "handle": build_space_handle(space)}
        row = await self._work.fetch_row(_FIND_SPACE, params)
        if row is None:
            return None
        self.partitions.add(row[2])
        return params | dict(zip(("space", "fence", "partition"), row, strict=True))

    async def delete_space(self, space: Space, row: SqlParams) -> None:
        """Delete a space with all its rows, and count its items, entries and tasks."""
        for table in ("records", "entries", "tasks"):
            self.counts[space.tier] += await self._collect(table, row)
        for table in ("vectors", "checkpoints", "steps", "paths"):
            await self._collect(table, row)
        for name in (space.tenant, row["handle"], space.user, space.agent, space.session):
            self.pieces.extend(select_pieces(name.encode()))
        for statement in (*_DELETE_SPACE_ROWS, _DELETE_SPACE, _SAVE_LAST_FENCE):
            await self._work.execute(statement, row)

    async def collect_write(self, row: SqlParams, write: Write) -> None:
        """Collect the data that a write is about to delete, and count its items, entries and tasks."""
        await self._work.switch_tenant(write.space.tenant)
        match write:
            case Delete():
                row = {**row, "name": build_handle(write.id)}
                count = await self._collect("records", row, "handle = %(name)s")
                await self._collect("vectors", row, _PLACE_OF_ITEM)
            case DropTask():
                row = {**row, "name": build_handle(write.task)}
                count = await self._collect("tasks", row, "handle = %(name)s")
                for table in ("checkpoints", "steps"):
                    await self._collect(table, row, "task = %(name)s")
            case Drop():
                count = await self._collect("entries", {**row, "seqs": list(write.seqs)}, "seq = any(%(seqs)s)")
            case _:
                return
        self.counts[write.space.tier] += count

    async def _collect(self, table: str, row: SqlParams, condition: str = "true") -> int:
        """Collect the rows of a space in a table that meet a condition, and return their number."""
        count = 0
        async for rows in erasure.stream_data(self._work.connection, table, f"{_OF_SPACE} and {condition}", row):
            count += len(rows)
            self.pieces.extend(piece for values in rows for value in values for piece in select_pieces(value))
        return count


async def _delete_unused_paths(work: PostgresTransaction, row: SqlParams) -> None:
    """Delete the metadata paths that no remaining item has. A path may contain a name."""
    used = {
        path
        async for rows in erasure.stream_rows(work.connection, _SELECT_METADATA, row)
        for (metadata,) in rows
        for path in iter_metadata_paths(load_metadata(metadata))
    }
    unused = [path for (path,) in await work.fetch_rows(_SELECT_PATHS, row) if unescape_text(path) not in used]
    if unused:
        await work.execute(_DELETE_PATHS, {**row, "paths": unused})
