"""A store in a PostgreSQL database with pgvector, shared by many machines."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from recollect.clock import Clock, from_micros, to_micros
from recollect.errors import StoreClosed, Unsupported
from recollect.stores import health
from recollect.stores.base import SpaceTrace, get_space_names
from recollect.stores.erasure import ErasureSelection
from recollect.stores.health import IntegrityReport, ProgressCallback, StoreStats
from recollect.stores.postgres import codec, logs, records, tasks, transactions
from recollect.stores.postgres.connections import Rows, SqlStatement, split_url
from recollect.stores.postgres.erasure import LEDGER_LOCKS, Deletion, PostgresErasure
from recollect.stores.postgres.migrations import list_migrations
from recollect.stores.postgres.search import HNSW_INDEX_IS_VALID_SQL, HNSW_MIN_ITEMS, PostgresSearch
from recollect.stores.postgres.transactions import PostgresServer, PostgresTransaction
from recollect.stores.validation import validate_writes
from recollect.stores.writes import Append, Clear, Delete, Drop, Embed, Put, Touch, Write

# Validation takes 30 µs per item; a larger batch would block the event loop for too long.
_MAX_VALIDATED_INLINE = 64
_ONE_WEEK = timedelta(days=7)
_STUCK_SECONDS = 60
_TURN_ON = "alter system set {} = on"

# In the spaces of other tiers, `next_seq` counts items or fences.
_TRACE_SPACES = """
    select s.tenant, s.tier, s.owner, s.agent, s.session, r.items, r.newest,
        exists (select 1 from recollect.entries e where e.tenant = s.tenant and e.space = s.id),
        case when s.next_seq > 0 and s.tier in ('conversation', 'episodic', 'working') then s.next_seq end,
        exists (select 1 from recollect.tasks t where t.tenant = s.tenant and t.space = s.id)
    from recollect.spaces s
    cross join lateral (
        select count(*) as items, max(created_at) as newest from recollect.records r
        where r.tenant = s.tenant and r.space = s.id
    ) r
    where %(tenant)s::text is null or s.tenant = %(tenant)s
"""

# Statistics.

_GET_SERVER_SETTINGS = f"""
    select current_setting('server_version'), (select extversion from pg_extension where extname = 'vector'),
        current_setting('fsync'), current_setting('full_page_writes'),
        {codec.CLOCK_MICROS_SQL}, (select value::int from recollect.meta where name = 'schema'),
        (select rolsuper or rolbypassrls from pg_roles where rolname = current_user),
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
        (select count(*) from pg_stat_activity where backend_type = 'client backend')
"""  # noqa: S608 - of constants
_GET_CONTENT_STATS = f"""
    select least(r.oldest, e.oldest, t.oldest), greatest(r.newest, e.newest, t.newest), ({records.GET_TOTAL_SIZE}),
        (select coalesce(sum(items), 0)::bigint from recollect.spaces), r.recent, r.superseded
    from (
        select min(created_at) as oldest, max(created_at) as newest,
            count(*) filter (where created_at >= %(since)s) as recent,
            count(*) filter (where valid_to is not null and superseded_by is not null) as superseded
        from recollect.records
    ) r, (select min(at) as oldest, max(at) as newest from recollect.entries) e,
        (select min(created_at) as oldest, max(updated_at) as newest from recollect.tasks) t
"""  # noqa: S608 - of constants
_GET_DEAD_ROWS = """
    select coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint
    from pg_stat_user_tables where schemaname = 'recollect'
"""
_COUNT_STUCK_SESSIONS = """
    select count(*) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
        and (state like 'idle in transaction%%' or wait_event_type = 'Lock')
        and state_change < clock_timestamp() - make_interval(secs => %(seconds)s)
"""
_COUNT_HNSW_INDEXES = f"""
    select count(*), count(*) filter (where {HNSW_INDEX_IS_VALID_SQL} is not true)
    from recollect.spaces s
    where s.items >= %(large)s and s.tier in ('semantic', 'procedural', 'conversation')
"""  # noqa: S608 - of constants

# Integrity.

_FIND_MISCOUNTED_SPACES = """
    select s.tenant, s.tier, s.owner, s.agent, s.session, s.items, s.words, count(r.place),
        coalesce(sum(r.length), 0)::bigint
    from recollect.spaces s
    left join recollect.records r on r.tenant = s.tenant and r.space = s.id group by s.tenant, s.id
    having s.items <> count(r.place) or s.words <> coalesce(sum(r.length), 0)
"""
_COUNT_STRAY_VECTORS = """
    select count(*) from recollect.vectors v where not exists (
        select 1 from recollect.records r where r.tenant = v.tenant and r.space = v.space and r.place = v.place
    )
"""
# Facts and procedures have all their vectors. Turns may be stored with their terms only.
_COUNT_MISSING_VECTORS = f"""
    select count(*) from recollect.records r join recollect.spaces s on s.tenant = r.tenant and s.id = r.space
    where s.tier in ('semantic', 'procedural') and r.passages <> (
        select count(*) from recollect.vectors v
        where v.tenant = r.tenant and v.space = r.space and v.place = r.place
            and v.generation = {codec.ACTIVE_GENERATION_SQL} and vector_dims(v.data)::text = {codec.ACTIVE_DIM_SQL}
    )
"""  # noqa: S608 - of constants
_COUNT_TERM_MISMATCHES = """
    select count(*) filter (where r.place is not null), count(*) filter (where r.place is null)
    from (
        select tenant, space, place, sum(count) as words, min(length) as shortest, max(length) as longest
        from recollect.postings group by tenant, space, place
    ) p
    full join recollect.records r on r.tenant = p.tenant and r.space = p.space and r.place = p.place
    where coalesce(p.words, 0) <> coalesce(r.length, -1) or p.shortest <> r.length or p.longest <> r.length
"""
_LIST_CHECKPOINTS = "select task, version, state, sha256 from recollect.checkpoints"


class PostgresStore(PostgresSearch, logs.PostgresLog, tasks.PostgresTasks, PostgresErasure):
    """A store of all protocols in one database. Open it with `PostgresStore.open` and use it in that event loop."""

    def __init__(self, server: PostgresServer, receipts: Path | None = None) -> None:
        PostgresSearch.__init__(self, server)
        PostgresErasure.__init__(self, server, receipts)

    @classmethod
    async def open(
        cls, url: str, *, connections: int = 8, clock: Clock | None = None, migrates: bool = True
    ) -> PostgresStore:
        """Open the database of a URL, and migrate it. Without a clock, the server's time is used.

        With `migrates=False`, an older schema raises `SchemaTooOld`.

        `?receipts=PATH` in the URL names a file outside of the server in which receipts of erasures are kept.
        """
        address, receipts = split_url(url)
        server = await PostgresServer.open(address, connections=connections, clock=clock, migrates=migrates)
        return cls(server, receipts)

    async def close(self) -> None:
        with suppress(StoreClosed):  # if it was closed before
            await self._flush_accesses()
        if self._index_task is not None:
            self._index_task.cancel()  # the build continues on the server, or is repeated later
            await asyncio.wait([self._index_task])
        await self._server.close()

    async def write(self, *writes: Write) -> None:
        if not writes:
            return
        is_large = len(writes) > _MAX_VALIDATED_INLINE
        validated = await asyncio.to_thread(validate_writes, writes) if is_large else validate_writes(writes)
        # Only accesses may be lost in a crash of the server.
        durable = not all(isinstance(write, Touch) for write in validated)
        batches, locks = split_by_tenant(validated), transactions.build_locks(validated)
        tenant, _, reads = batches[0]
        async with self._server.begin_write(tenant, locks, *reads, durable=durable) as work:
            plan = await plan_writes(work, batches, work.first_results)
            await work.commit(plan)

    async def wipe(self, id: str, doomed: ErasureSelection) -> None:
        await self._flush_accesses()
        selection = replace(doomed, writes=tuple(validate_writes(doomed.writes)))
        locks = LEDGER_LOCKS | transactions.build_locks(selection.writes, selection.spaces)
        async with self._server.begin_write(None, locks, transactions.FORCE_REPLAN) as work:
            work.connection.abort_after(None)  # it may take any time
            deletion = Deletion(work)
            await deletion.collect(selection)
            if selection.writes:
                plan = await plan_writes(work, split_by_tenant(selection.writes))
                await work.connection.run_pipeline(plan.build_statements(work))
            await deletion.finish(id, selection)

    async def trace_spaces(self, tenant: str | None = None) -> list[SpaceTrace]:
        async with self._server.begin_read(tenant) as work:
            rows = await work.fetch_rows(_TRACE_SPACES, {"tenant": codec.escape_text(tenant)})
        traces = [
            SpaceTrace(codec.decode_space(row[:5]), row[5], codec.decode_timestamp(row[6]), *row[7:]) for row in rows
        ]
        return sorted(traces, key=lambda trace: get_space_names(trace.space))

    async def backup(self, path: str) -> None:
        raise Unsupported(
            f"Recollect does not back up a PostgreSQL server; for a copy at {path}, run: "
            f"pg_dump --format=custom --file={path} URL"
        )

    async def read_stats(self) -> StoreStats:
        async with self._server.begin_read(None) as work:
            [settings] = await work.fetch_rows(_GET_SERVER_SETTINGS)
            since = to_micros(work.now - _ONE_WEEK)
            [[oldest, newest, *contents]] = await work.fetch_rows(_GET_CONTENT_STATS, {"since": since})
            [[dead, live]] = await work.fetch_rows(_GET_DEAD_ROWS)
            [[stuck]] = await work.fetch_rows(_COUNT_STUCK_SESSIONS, {"seconds": _STUCK_SECONDS})
            [[large, broken]] = await work.fetch_rows(_COUNT_HNSW_INDEXES, {"large": HNSW_MIN_ITEMS})
        version, pgvector, *durability, micros, schema, bypasses_row_security, most, used = settings
        risks = tuple(
            health.DurabilityRisk(f"{name} is off: a power failure can destroy the database", _TURN_ON.format(name))
            for name, value in zip(("fsync", "full_page_writes"), durability, strict=True)
            if value == "off"
        )
        return StoreStats(
            engine="PostgreSQL",
            versions={"PostgreSQL": str(version).split()[0], "pgvector": str(pgvector)},
            durability="a crash of its processes" if risks else "power loss",
            durability_risks=risks,
            schema=(schema, list_migrations()[-1][0]),
            now=from_micros(micros),
            oldest=codec.decode_timestamp(oldest),
            newest=codec.decode_timestamp(newest),
            **dict(zip(("bytes", "items", "recent_items", "superseded"), contents, strict=True)),
            unused_ratio=dead / (dead + live) if dead + live else 0.0,
            blocked_by=f"{stuck} sessions hold or wait for a lock for over {_STUCK_SECONDS} s" if stuck else "",
            resource_usage=(health.ResourceUsage("connections", used, most),),
            vector_indexes=(large, broken),
            bypasses_row_security=bool(bypasses_row_security),
        )

    async def check_integrity(self, tell: ProgressCallback = health.ignore_progress) -> IntegrityReport:
        async with self._server.begin_read(None) as work:
            tell("vectors")
            [[missing_vectors]] = await work.fetch_rows(_COUNT_MISSING_VECTORS)
            [[stray_vectors]] = await work.fetch_rows(_COUNT_STRAY_VECTORS)
            tell("words")
            [[missing_terms, stray_terms]] = await work.fetch_rows(_COUNT_TERM_MISMATCHES)
            tell("counts and checksums")
            miscounted = await work.fetch_rows(_FIND_MISCOUNTED_SPACES)
            checkpoints = await work.fetch_rows(_LIST_CHECKPOINTS)
        faults = [
            f"{'/'.join(map(codec.unescape_text, row[:5]))} counts {row[5]} items with {row[6]} words, and has "
            f"{row[7]} with {row[8]}"
            for row in miscounted
        ]
        faults.extend(
            f"version {version} of task {codec.unescape_text(task)!r} does not match its checksum"
            for task, version, state, checksum in checkpoints
            if not tasks.is_intact(state, checksum)
        )
        return IntegrityReport(
            faults=tuple(faults),
            missing_vectors=missing_vectors,
            orphaned_vectors=stray_vectors,
            missing_terms=missing_terms,
            orphaned_terms=stray_terms,
        )


# Batches, each in one transaction.

# The statement that reads the rows on which the writes of a kind depend, in the order in which they are planned: items
# of a space count up the same number as entries, which may ask for a number of their own.
_BATCHES: Mapping[str, Callable[..., Any]] = {
    logs.SELECT_ENTRIES: logs.PostgresLogBatch,
    records.SELECT_ITEMS: records.PostgresRecordBatch,
    tasks.SELECT_TASKS: tasks.PostgresTaskBatch,
}


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
        space, (select, ids) = codec.build_space_handle(write.space), _get_row_ids(write)
        keys.setdefault(select, {}).update({(space, codec.build_handle(id)): None for id in ids})
    reads = []
    for select, pairs in keys.items():
        spaces, names = [space for space, _ in pairs], [name for _, name in pairs]
        reads.append(SqlStatement(select, {"tenant": codec.escape_text(tenant), "spaces": spaces, "names": names}))
    return reads


def _get_row_ids(write: Write) -> tuple[str, Iterable[str]]:
    """Return the statement that reads the rows on which a write depends, and their ids. No entry has the id ''."""
    match write:
        case Put():
            return records.SELECT_ITEMS, (write.item.id,)
        case Touch():
            return records.SELECT_ITEMS, write.ids
        case Delete() | Embed():
            return records.SELECT_ITEMS, (write.id,)
        case Append():
            return logs.SELECT_ENTRIES, (write.entry.id,)
        case Clear() | Drop():
            return logs.SELECT_ENTRIES, ("",)
        case _:
            return tasks.SELECT_TASKS, (write.task,)


async def plan_writes(
    work: PostgresTransaction, batches: Sequence[TenantBatch], first: Sequence[Rows] | None = None
) -> transactions.StatementPlan:
    """Return the statements of all writes; `first` are the rows of the first batch, if they were read already.

    Raise the error of the first write that is refused.
    """
    plan = transactions.StatementPlan(work.now)
    for batch in batches:
        await work.switch_tenant(batch.tenant)
        results, first = first or await work.connection.run_pipeline(batch.reads), None
        rows = {read.text: found for read, found in zip(batch.reads, results, strict=True)}
        if any(map(transactions.has_vectors, batch.writes)) and plan.models.active is None:
            plan.models = codec.PostgresModels.parse(rows[records.SELECT_ITEMS][0][-1])
            if plan.models.active is None:  # lock out others that would bind the store
                await work.execute(transactions.LOCK_GROWTH_SQL)
                plan.models = await records.load_models(work)
        numbers = {row[0]: (row[1], row[2]) for found in results for row in found if row[1] is not None}
        spaces = {codec.build_space_handle(write.space): write.space for write in batch.writes}
        if missing := {handle: space for handle, space in spaces.items() if handle not in numbers}:
            numbers |= await transactions.add_spaces(work, missing)
        _plan_batch(plan, batch.writes, numbers, rows)
    return plan


def _plan_batch(
    plan: transactions.StatementPlan,
    writes: Sequence[Write],
    numbers: Mapping[str, tuple[int, int]],
    rows: Mapping[str, Rows],
) -> None:
    """Apply the writes of one tenant in their order."""
    stored: dict[tuple[str, str], dict[str, Sequence[Any]]] = defaultdict(dict)
    for select, found in rows.items():
        for space, _, _, handle, *row in found:
            if handle is not None:
                stored[select, space][handle] = row
    parts: dict[tuple[str, str], Any] = {}
    for write in writes:
        key = select, handle = _get_row_ids(write)[0], codec.build_space_handle(write.space)
        if key not in parts:
            parts[key] = _BATCHES[select](plan, write.space, numbers[handle], stored[key])
        parts[key].apply(write)
    for kind in _BATCHES:
        for (select, _), part in parts.items():
            if select == kind:
                part.add_to_plan()
