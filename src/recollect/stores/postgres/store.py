"""A store in a PostgreSQL database with pgvector, shared by many machines."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from recollect.clock import Clock, from_micros, to_micros
from recollect.errors import StoreClosed, Unsupported
from recollect.stores.base import SpaceTrace, get_space_names
from recollect.stores.erasure import ErasureSelection
from recollect.stores.health import (
    DurabilityRisk,
    IntegrityReport,
    ProgressCallback,
    ResourceUsage,
    StoreStats,
    ignore_progress,
)
from recollect.stores.postgres.batch import plan_writes, split_by_tenant
from recollect.stores.postgres.connections import split_url
from recollect.stores.postgres.erasure import LEDGER_LOCKS, PostgresErasure, delete_selection
from recollect.stores.postgres.logs import PostgresLog
from recollect.stores.postgres.migrations import list_migrations
from recollect.stores.postgres.records import ACTIVE_DIM_SQL, ACTIVE_GENERATION_SQL, GET_TOTAL_SIZE
from recollect.stores.postgres.row_codec import decode_space, decode_timestamp, escape_text, unescape_text
from recollect.stores.postgres.search import HNSW_INDEX_IS_VALID_SQL, HNSW_MIN_ITEMS, PostgresSearch
from recollect.stores.postgres.tasks import PostgresTasks, is_intact
from recollect.stores.postgres.transactions import FORCE_REPLAN, PostgresServer, build_locks
from recollect.stores.validation import validate_writes
from recollect.stores.writes import Touch, Write

# Validation takes 30 µs per item; a larger batch would block the event loop for too long.
_MAX_VALIDATED_INLINE = 64
_ONE_WEEK = timedelta(days=7)
_STUCK_SECONDS = 60

# In the spaces of other tiers, `next_seq` counts items or fences.
_TRACE_SPACES = """
    select s.tenant, s.tier, s.owner, s.agent, s.session, r.items, r.newest,
        exists (select 1 from recollect.entries e where e.tenant = s.tenant and e.space = s.id),
        case when s.next_seq > 0 and s.tier in ('conversation', 'episodic', 'working') then s.next_seq end,
        exists (select 1 from recollect.tasks t where t.tenant = s.tenant and t.space = s.id)
    from recollect.spaces s
    cross join lateral (
        select count(*) as items, max(created_at) as newest from recollect.records
        where tenant = s.tenant and space = s.id
    ) r
    where %(tenant)s::text is null or s.tenant = %(tenant)s
"""

# Statistics.

_GET_SERVER_SETTINGS = """
    select current_setting('server_version'), (select extversion from pg_extension where extname = 'vector'),
        current_setting('fsync'), current_setting('full_page_writes'),
        (extract(epoch from clock_timestamp()) * 1000000)::bigint,
        (select value::int from recollect.meta where name = 'schema'),
        (select rolsuper or rolbypassrls from pg_roles where rolname = current_user),
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
        (select count(*) from pg_stat_activity where backend_type = 'client backend')
"""
_GET_CONTENT_STATS = f"""
    select
        least(
            (select min(created_at) from recollect.records), (select min(at) from recollect.entries),
            (select min(created_at) from recollect.tasks)
        ),
        greatest(
            (select max(created_at) from recollect.records), (select max(at) from recollect.entries),
            (select max(updated_at) from recollect.tasks)
        ),
        ({GET_TOTAL_SIZE}),
        (select coalesce(sum(items), 0)::bigint from recollect.spaces),
        (select count(*) from recollect.records where created_at >= %(since)s),
        (select count(*) from recollect.records where valid_to is not null and superseded_by is not null)
"""  # noqa: S608 - of constants
_GET_DEAD_ROWS = """
    select coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint
    from pg_stat_user_tables where schemaname = 'recollect'
"""
_COUNT_STUCK_SESSIONS = """
    select count(*)
    from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
        and (state like 'idle in transaction%%' or wait_event_type = 'Lock')
        and state_change < clock_timestamp() - make_interval(secs => %(seconds)s)
"""
_COUNT_HNSW_INDEXES = f"""
    select count(*), count(*) filter (
        where {HNSW_INDEX_IS_VALID_SQL.format(generation=ACTIVE_GENERATION_SQL, dim=ACTIVE_DIM_SQL)} is not true
    )
    from recollect.spaces s
    where s.items >= %(large)s and s.tier in ('semantic', 'procedural', 'conversation')
"""  # noqa: S608 - of constants

# Integrity.

_FIND_MISCOUNTED_SPACES = """
    select s.tenant, s.tier, s.owner, s.agent, s.session, s.items, s.words, count(r.place),
        coalesce(sum(r.length), 0)::bigint
    from recollect.spaces s
    left join recollect.records r on r.tenant = s.tenant and r.space = s.id
    group by s.tenant, s.id
    having s.items <> count(r.place) or s.words <> coalesce(sum(r.length), 0)
"""
_COUNT_STRAY_VECTORS = """
    select count(*) from recollect.vectors v where not exists (
        select 1 from recollect.records r where r.tenant = v.tenant and r.space = v.space and r.place = v.place
    )
"""
# Facts and procedures have all their vectors. Turns may be stored with their terms only.
_COUNT_MISSING_VECTORS = f"""
    select count(*)
    from recollect.records r
    join recollect.spaces s on s.tenant = r.tenant and s.id = r.space
    where s.tier in ('semantic', 'procedural') and r.passages <> (
        select count(*)
        from recollect.vectors v
        where v.tenant = r.tenant and v.space = r.space and v.place = r.place and v.generation = {ACTIVE_GENERATION_SQL}
            and vector_dims(v.data)::text = {ACTIVE_DIM_SQL}
    )
"""  # noqa: S608 - of constants
_COUNT_TERM_MISMATCHES = """
    select count(*) filter (where r.place is not null), count(*) filter (where r.place is null)
    from (
        select tenant, space, place, sum(count) as words, min(length) as shortest, max(length) as longest
        from recollect.postings
        group by tenant, space, place
    ) p
    full join recollect.records r on r.tenant = p.tenant and r.space = p.space and r.place = p.place
    where coalesce(p.words, 0) <> coalesce(r.length, -1) or p.shortest <> r.length or p.longest <> r.length
"""
_LIST_CHECKPOINTS = "select task, version, state, sha256 from recollect.checkpoints"


class PostgresStore(PostgresSearch, PostgresLog, PostgresTasks, PostgresErasure):
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
        batches, locks = split_by_tenant(validated), build_locks(validated)
        first = batches[0].reads
        async with self._server.begin_write(batches[0].tenant, locks, first, durable=durable) as work:
            plan = await plan_writes(work, batches, work.first_results)
            await work.commit(plan)

    async def wipe(self, id: str, doomed: ErasureSelection) -> None:
        await self._flush_accesses()
        selection = replace(doomed, writes=tuple(validate_writes(doomed.writes)))
        locks = LEDGER_LOCKS | build_locks(selection.writes, selection.spaces)
        async with self._server.begin_write(None, locks, [FORCE_REPLAN], has_deadline=False) as work:
            await delete_selection(work, id, selection)

    async def trace_spaces(self, tenant: str | None = None) -> list[SpaceTrace]:
        async with self._server.begin_read(tenant) as work:
            rows = await work.fetch_rows(_TRACE_SPACES, {"tenant": escape_text(tenant)})
        traces = [SpaceTrace(decode_space(row[:5]), row[5], decode_timestamp(row[6]), *row[7:]) for row in rows]
        return sorted(traces, key=lambda trace: get_space_names(trace.space))

    async def backup(self, path: str) -> None:
        raise Unsupported(
            f"Recollect does not back up a PostgreSQL server; for a copy at {path}, run: "
            f"pg_dump --format=custom --file={path} URL"
        )

    async def read_stats(self) -> StoreStats:
        async with self._server.begin_read(None) as work:
            [settings] = await work.fetch_rows(_GET_SERVER_SETTINGS)
            [contents] = await work.fetch_rows(_GET_CONTENT_STATS, {"since": to_micros(work.now - _ONE_WEEK)})
            [[dead, live]] = await work.fetch_rows(_GET_DEAD_ROWS)
            [[stuck]] = await work.fetch_rows(_COUNT_STUCK_SESSIONS, {"seconds": _STUCK_SECONDS})
            [[large, broken]] = await work.fetch_rows(_COUNT_HNSW_INDEXES, {"large": HNSW_MIN_ITEMS})
        version, pgvector, *durability, micros, schema, bypasses_row_security, most, used = settings
        oldest, newest, size, items, recent_items, superseded = contents
        risks = tuple(
            DurabilityRisk(f"{name} is off: a power failure can destroy the database", f"alter system set {name} = on")
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
            oldest=decode_timestamp(oldest),
            newest=decode_timestamp(newest),
            bytes=size,
            items=items,
            recent_items=recent_items,
            superseded=superseded,
            unused_ratio=dead / (dead + live) if dead + live else 0.0,
            blocked_by=f"{stuck} sessions hold or wait for a lock for over {_STUCK_SECONDS} s" if stuck else "",
            resource_usage=(ResourceUsage("connections", used, most),),
            vector_indexes=(large, broken),
            bypasses_row_security=bool(bypasses_row_security),
        )

    async def check_integrity(self, tell: ProgressCallback = ignore_progress) -> IntegrityReport:
        async with self._server.begin_read(None) as work:
            tell("vectors")
            [[missing_vectors]] = await work.fetch_rows(_COUNT_MISSING_VECTORS)
            [[orphaned_vectors]] = await work.fetch_rows(_COUNT_STRAY_VECTORS)
            tell("words")
            [[missing_terms, orphaned_terms]] = await work.fetch_rows(_COUNT_TERM_MISMATCHES)
            tell("counts and checksums")
            miscounted = await work.fetch_rows(_FIND_MISCOUNTED_SPACES)
            checkpoints = await work.fetch_rows(_LIST_CHECKPOINTS)
        faults = [
            f"{'/'.join(map(unescape_text, row[:5]))} counts {row[5]} items with {row[6]} words, and has {row[7]} with "
            f"{row[8]}"
            for row in miscounted
        ]
        faults.extend(
            f"version {version} of task {unescape_text(task)!r} does not match its checksum"
            for task, version, state, checksum in checkpoints
            if not is_intact(state, checksum)
        )
        return IntegrityReport(
            faults=tuple(faults),
            missing_vectors=missing_vectors,
            orphaned_vectors=orphaned_vectors,
            missing_terms=missing_terms,
            orphaned_terms=orphaned_terms,
        )
