"""Batches of writes, each in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from recollect.stores.postgres.connections import Rows, SqlStatement
from recollect.stores.postgres.logs import SELECT_ENTRIES, PostgresLogBatch
from recollect.stores.postgres.records import SELECT_ITEMS, PostgresRecordBatch, load_models
from recollect.stores.postgres.row_codec import PostgresModels, build_handle, build_space_handle, escape_text
from recollect.stores.postgres.tasks import SELECT_TASKS, PostgresTaskBatch
from recollect.stores.postgres.transactions import (
    LOCK_GROWTH_SQL,
    PostgresTransaction,
    SpaceNumber,
    StatementPlan,
    add_spaces,
    has_vectors,
)
from recollect.stores.writes import Append, Clear, Delete, Drop, Embed, Put, Touch, Write

# The statement that reads the rows on which the writes of a kind depend, in the order in which they are planned: items
# of a space count up the same number as entries, which may ask for a number of their own.
_BATCHES = {SELECT_ENTRIES: PostgresLogBatch, SELECT_ITEMS: PostgresRecordBatch, SELECT_TASKS: PostgresTaskBatch}


class TenantBatch(NamedTuple):
    """The writes of one tenant, and the statements that read the rows on which they depend."""

    tenant: str
    writes: Sequence[Write]
    reads: Sequence[SqlStatement]


def split_by_tenant(writes: Sequence[Write]) -> list[TenantBatch]:
    """Return one batch per tenant. The reads of the first are sent with the begin of the transaction."""
    tenants: dict[str, list[Write]] = {}
    for write in writes:
        tenants.setdefault(write.space.tenant, []).append(write)
    return [TenantBatch(tenant, of_tenant, _build_reads(tenant, of_tenant)) for tenant, of_tenant in tenants.items()]


def _build_reads(tenant: str, writes: Sequence[Write]) -> list[SqlStatement]:
    keys: dict[str, dict[tuple[str, str], None]] = {}
    for write in writes:
        space, (select, ids) = build_space_handle(write.space), _get_row_ids(write)
        keys.setdefault(select, {}).update({(space, build_handle(id)): None for id in ids})
    reads = []
    for select, pairs in keys.items():
        spaces, names = [space for space, _ in pairs], [name for _, name in pairs]
        reads.append(SqlStatement(select, {"tenant": escape_text(tenant), "spaces": spaces, "names": names}))
    return reads


def _get_row_ids(write: Write) -> tuple[str, Iterable[str]]:
    """Return the statement that reads the rows on which a write depends, and their ids. No entry has the id ''."""
    match write:
        case Put():
            return SELECT_ITEMS, (write.item.id,)
        case Touch():
            return SELECT_ITEMS, write.ids
        case Delete() | Embed():
            return SELECT_ITEMS, (write.id,)
        case Append():
            return SELECT_ENTRIES, (write.entry.id,)
        case Clear() | Drop():
            return SELECT_ENTRIES, ("",)
        case _:
            return SELECT_TASKS, (write.task,)


async def plan_writes(
    work: PostgresTransaction, batches: Sequence[TenantBatch], results: Sequence[Rows]
) -> StatementPlan:
    """Return the statements of all writes. Raise the error of the first write that is refused.

    The results are those of the first batch.
    """
    plan = StatementPlan(work.now)
    for number, batch in enumerate(batches):
        if number:
            await work.switch_tenant(batch.tenant)
            results = await work.connection.run_pipeline(batch.reads)
        rows = {read.text: found for read, found in zip(batch.reads, results, strict=True)}
        if any(map(has_vectors, batch.writes)) and plan.models.active is None:
            plan.models = PostgresModels.parse(rows[SELECT_ITEMS][0][-1])
            if plan.models.active is None:  # lock out others that would bind the store
                await work.execute(LOCK_GROWTH_SQL)
                plan.models = await load_models(work)
        numbers = {row[0]: SpaceNumber(row[1], row[2]) for found in results for row in found if row[1] is not None}
        spaces = {build_space_handle(write.space): write.space for write in batch.writes}
        if missing := {handle: space for handle, space in spaces.items() if handle not in numbers}:
            numbers |= await add_spaces(work, missing)
        _plan_batch(plan, batch.writes, numbers, rows)
    return plan


def _plan_batch(
    plan: StatementPlan, writes: Sequence[Write], numbers: Mapping[str, SpaceNumber], rows: Mapping[str, Rows]
) -> None:
    """Apply the writes of one tenant in their order."""
    stored: dict[tuple[str, str], dict[str, Sequence[Any]]] = defaultdict(dict)
    for select, found in rows.items():
        for space, _, _, handle, *row in found:
            if handle is not None:
                stored[select, space][handle] = row
    parts: dict[tuple[str, str], Any] = {}
    for write in writes:
        key = select, handle = _get_row_ids(write)[0], build_space_handle(write.space)
        if key not in parts:
            parts[key] = _BATCHES[select](plan, write.space, numbers[handle], stored[key])
        parts[key].apply(write)
    for kind in _BATCHES:
        for (select, _), part in parts.items():
            if select == kind:
                part.add_to_plan()
