"""Migration of everything in a store to another: copied space by space, resumable, and compared by hash at the end."""

from __future__ import annotations

import asyncio
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar, cast

from recollect.clock import system_clock
from recollect.durable.failpoints import reach_failpoint
from recollect.erasure.selection import iter_task_ids
from recollect.errors import BadInput, Conflict, StoreCorrupt, StoreUnavailable
from recollect.settings import Settings, mask_password
from recollect.stores.base import Log, Records, Store, Tasks
from recollect.stores.codec import pack_vectors
from recollect.stores.erasure import ErasureStore
from recollect.stores.factory import (
    TIER_PROTOCOLS,
    StoreLocation,
    TierStores,
    open_stores,
    parse_local_path,
    resolve_locations,
)
from recollect.stores.filters import Where
from recollect.stores.overlay import iter_pages
from recollect.stores.writes import Append, Delete, Drop, Entry, Put, Restore, Write
from recollect.tiers.indexing import split_batches
from recollect.types import MemoryItem, Progress, ProgressCallback, Space, Tier

TIERS_STORED_WITH: Mapping[Tier, tuple[Tier, ...]] = {
    "conversation": ("conversation",),
    "episodic": ("episodic", "working"),
    "procedural": ("procedural",),
    "semantic": ("semantic", "quarantine", "conversation", "lifecycle"),
    "checkpoints": ("checkpoints",),
}
"""The tiers in the store of each tier, in the order of migration: logs come before what is derived from them.

The store of facts also holds the indexed turns and the lifecycle's notes; the store of episodes holds current tasks.
"""

# One durable commit for 256 writes; a crash loses at most one batch of work.
MAX_BATCH_SIZE = 256
_MAX_BATCH_CHARACTERS = 4_000_000

# Summaries and lifecycle notes refer to positions, so a new entry must not get a position that was used before.
_COUNTER_ID = "recollect: the place of the next entry"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


ReportDone = Callable[[int], None]
"""Called with the number of items that were done since the last call."""

StoreT = TypeVar("StoreT", bound=Store)
PageT = TypeVar("PageT")


@dataclass(frozen=True, slots=True)
class MovedSpace:
    """A space: its number of items, how many of them this run copied, and the SHA-256 of both sides.

    A dry run copies and hashes nothing.
    """

    space: Space
    held: int
    copied: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """The spaces that were copied. `notes` say what was not copied on purpose."""

    source: str
    target: str
    model: str | None
    moved: tuple[MovedSpace, ...]
    notes: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def held(self) -> int:
        return sum(space.held for space in self.moved)

    @property
    def copied(self) -> int:
        return sum(space.copied for space in self.moved)


async def migrate_store(
    source: StoreLocation | None,
    target: StoreLocation,
    *,
    tenant: str | None = None,
    dry_run: bool = False,
    progress: ProgressCallback | None = None,
    settings: Settings | None = None,
) -> MigrationReport:
    """Copy everything in a store to another, and compare both. After a crash, run it again to continue.

    Locations are as in `AgentMemory.open`; the source None is the one in the settings. A target mapping without
    `"default"` copies only the tiers that it names. Write to neither store meanwhile. Leases are not copied. Raises
    `Conflict` before the first write if the target holds data of these tenants that the source does not.
    """
    settings = settings if settings is not None else await asyncio.to_thread(Settings.load)
    is_whole = not isinstance(target, Mapping) or "default" in target
    tiers = tuple(tier for tier in TIERS_STORED_WITH if is_whole or tier in cast(Mapping[str, str], target))
    source_urls, target_urls = resolve_locations(source, settings, tiers), resolve_locations(target, settings, tiers)
    _check_locations(source_urls, target_urls)
    async with AsyncExitStack() as opened:
        stores = []
        for urls in (source_urls, _replace_missing(target_urls) if dry_run else target_urls):
            stores.append(await open_stores(cast(Mapping[str, str], urls), settings, system_clock, tiers=tiers))
            opened.push_async_callback(stores[-1].close)
        migration = _Migration(stores[0], stores[1], tiers, progress)
        model = await migration.prepare(tenant, dry_run=dry_run)
        moved = migration.plan() if dry_run else await migration.run()
        names = [
            ", ".join(dict.fromkeys(mask_password(url) for url in urls.values())) for urls in (source_urls, target_urls)
        ]
        return MigrationReport(names[0], names[1], model, tuple(moved), tuple(migration.notes), dry_run)


def _check_locations(source: Mapping[Tier, str], target: Mapping[Tier, str]) -> None:
    if not target:
        raise BadInput("the target names no tier; pass a URL, or a mapping of tiers to URLs")
    if "memory://" in target.values():
        raise BadInput("the target is memory://, which stores nothing; pass a file or a server")
    for tier, url in source.items():
        if url == target[tier]:
            raise BadInput(f"{mask_password(url)} is the source and the target of the {tier} tier; name another target")
    for url in source.values():
        path = parse_local_path(url)
        if path is not None and not path.exists():
            raise StoreUnavailable(f"there is no store at {path}; check the path of the source")
        if url == "memory://":
            raise BadInput("the source is memory://, which is empty when it is opened; pass a file or a server")


def _replace_missing(urls: Mapping[Tier, str]) -> dict[Tier, str]:
    """Replace locations that do not exist by memory://, because a dry run must not create files."""
    missing = [tier for tier, url in urls.items() if (path := parse_local_path(url)) is not None and not path.exists()]
    return {tier: "memory://" if tier in missing else url for tier, url in urls.items()}


class _Migration:
    """One migration between two sets of stores."""

    def __init__(
        self, source: TierStores, target: TierStores, tiers: Collection[Tier], progress: ProgressCallback | None
    ) -> None:
        self._source = source
        self._target = target
        self._tiers = tiers
        self._progress = progress
        self._parts: list[MigrationPart[Any, Any]] = []
        self._counts: list[int] = []
        self.notes: list[str] = []

    async def prepare(self, tenant: str | None, *, dry_run: bool) -> str | None:
        """Collect the spaces and check that the target can take them. Return the name of the embedding model."""
        tenants = await self._list_source_tenants()
        if tenant is not None:
            if tenant not in tenants:
                raise BadInput(f"the source holds nothing of a tenant {tenant!r}; name another, or omit `tenant`")
            tenants = [tenant]
        elif others := sorted(set(await _list_tenants(self._target)) - set(tenants)):
            raise Conflict(
                f"the target holds the tenant {others[0]!r}, which the source does not; name an empty target, or the "
                "one tenant to copy"
            )
        await self._check_erasures()
        for name in tenants:
            await self._add_tenant(name)
        model = await self._bind_model(dry_run=dry_run)
        report_done = self._start_stage("looking", len(self._parts))
        for part in self._parts:
            await part.check()
            self._counts.append(await part.count())
            report_done(1)
        return model

    def plan(self) -> list[MovedSpace]:
        return [MovedSpace(part.space, count) for part, count in zip(self._parts, self._counts, strict=True)]

    async def run(self) -> list[MovedSpace]:
        report_done = self._start_stage("copying", sum(self._counts))
        copied = [await part.copy(report_done) for part in self._parts]
        report_done = self._start_stage("comparing", sum(self._counts))
        moved = []
        for part, count in zip(self._parts, copied, strict=True):
            held, sha256 = await part.hash_store(part.source, report_done)
            target_held, target_sha256 = await part.hash_store(part.target)
            if (held, sha256) != (target_held, target_sha256):
                raise StoreCorrupt(
                    f"{part.space} has {held} items in the source ({sha256[:12]}) and {target_held} in the target "
                    f"({target_sha256[:12]}); stop all writers of both, empty the target, and migrate again"
                )
            moved.append(MovedSpace(part.space, held, count, sha256))
        return moved

    async def _list_source_tenants(self) -> list[str]:
        """List the tenants of the source, also those with empty logs, whose positions other stores refer to."""
        logs = [self._source.log(tier) for tier in self._tiers if TIER_PROTOCOLS[tier] is Log]
        with_logs = [space.tenant for log in logs for space in await log.last_seqs()]
        return sorted({*await _list_tenants(self._source), *with_logs})

    async def _check_erasures(self) -> None:
        """Refuse to copy data that is being erased. Receipts stay with the source, where they are verified."""
        for store in self._source.all_stores:
            rows = await store.ledger() if isinstance(store, ErasureStore) else []
            if any(row.phase == "entered" for row in rows):
                raise Conflict(
                    "an erasure in the source is not complete, so erased data would be copied; complete it with "
                    "`recollect lifecycle` first"
                )
            if rows:
                self.notes.append(
                    f"{len(rows):,} erasures were made in the source; their receipts are verified there. Keep its "
                    "erasure ledger as long as you need the receipts, and delete older backups."
                )

    async def _add_tenant(self, tenant: str) -> None:
        """Add the spaces of a tenant; a space that only the target holds is a conflict."""
        for tier in self._tiers:
            parts = await self._list_parts(tier, tenant, self._source)
            known = {part.space for part in parts}
            for part in await self._list_parts(tier, tenant, self._target):
                if part.space not in known and await part.count():
                    raise part.build_conflict("something")
            self._parts += parts

    async def _list_parts(self, tier: Tier, tenant: str, stores: TierStores) -> list[MigrationPart[Any, Any]]:
        """List the spaces of a tier in `stores` as parts from there to the target."""
        tiers, target = TIERS_STORED_WITH[tier], self._target
        if TIER_PROTOCOLS[tier] is Records:
            records = stores.records(tier)
            spaces = [count.space for count in await records.spaces(tenant)]
            return [ItemsPart(space, records, target.records(tier)) for space in spaces if space.tier in tiers]
        if TIER_PROTOCOLS[tier] is Log:
            log = stores.log(tier)
            last_seqs = sorted((await log.last_seqs(tenant)).items(), key=lambda entry: str(entry[0]))
            target_seqs = await target.log(tier).last_seqs(tenant)
            return [
                EntriesPart(space, log, target.log(tier), (last, target_seqs.get(space, 0)))
                for space, last in last_seqs
                if space.tier in tiers
            ]
        spaces = await stores.tasks().task_spaces(tenant)
        return [TasksPart(space, stores.tasks(), target.tasks(), self.notes) for space in spaces if space.tier in tiers]

    async def _bind_model(self, *, dry_run: bool) -> str | None:
        """Bind the target to the source's embedding model before the first vector is written."""
        name: str | None = None
        for tier in self._tiers:
            if TIER_PROTOCOLS[tier] is not Records:
                continue
            model, target = await self._source.records(tier).model(), self._target.records(tier)
            if model is not None:
                name = model.name
                if not dry_run or await target.model() is not None:
                    await target.bind_model(model)
        return name

    def _start_stage(self, stage: str, total: int) -> ReportDone:
        done = 0

        def report_done(count: int) -> None:
            nonlocal done
            done += count
            if self._progress is not None:
                self._progress(Progress(stage, done, max(total, done)))

        report_done(0)
        return report_done


async def _list_tenants(stores: TierStores) -> list[str]:
    return sorted({name for store in stores.all_stores for name in await store.tenants()})


class MigrationPart(ABC, Generic[StoreT, PageT]):
    """A space of one tier in both stores.

    A resumed run compares what the target holds with the source, so no progress is stored.
    """

    def __init__(self, space: Space, source: StoreT, target: StoreT) -> None:
        self.space = space
        self.source = source
        self.target = target

    @abstractmethod
    def iterate_pages(self, store: StoreT) -> AsyncIterator[list[PageT]]:
        """Yield everything in the space, in the same order for equal data."""

    @abstractmethod
    async def load_values(self, store: StoreT, page: list[PageT]) -> Sequence[Any]:
        """Return one value for each item of the page; equal data gives equal values."""

    @abstractmethod
    async def check(self) -> None:
        """Raise `Conflict` if the target holds something that the source does not."""

    @abstractmethod
    async def copy(self, report_done: ReportDone) -> int:
        """Write what the target lacks, in atomic batches; return the number of items written."""

    async def count(self) -> int:
        """Return the number of items in the source."""
        return sum([len(page) async for page in self.iterate_pages(self.source)])

    async def hash_store(self, store: StoreT, report_done: ReportDone = lambda _: None) -> tuple[int, str]:
        """Return the number of items in a store, and a SHA-256 over them."""
        digest, count = hashlib.sha256(), 0
        async for page in self.iterate_pages(store):
            values = await self.load_values(store, page)
            for value in values:
                line = json.dumps(value, default=_encode_plain, sort_keys=True, ensure_ascii=False)
                digest.update(line.encode() + b"\n")
            count += len(values)
            report_done(len(page))
        return count, digest.hexdigest()

    def build_conflict(self, what: str) -> Conflict:
        return Conflict(
            f"the target holds {what} in {self.space}, and the source does not hold the same; name an empty target, or "
            "one that an earlier run of this migration has begun"
        )


class EntriesPart(MigrationPart[Log, Entry]):
    """The log of one session, with positions and hidden entries."""

    def __init__(self, space: Space, source: Log, target: Log, last_seqs: tuple[int, int]) -> None:
        super().__init__(space, source, target)
        # The highest positions in the source, and in the target before the migration.
        self._source_last_seq, self._target_last_seq = last_seqs

    async def iterate_pages(self, store: Log, after: int = 0) -> AsyncIterator[list[Entry]]:
        while page := await store.read(self.space, after=after, limit=MAX_BATCH_SIZE, hidden=True):
            yield page
            after = page[-1].seq

    async def load_values(self, store: Log, page: list[Entry]) -> Sequence[Entry]:
        return page

    async def _iterate_entries(self, store: Log) -> AsyncIterator[Entry]:
        async for page in self.iterate_pages(store):
            for entry in page:
                yield entry

    async def check(self) -> None:
        source = self._iterate_entries(self.source)
        async for entry in self._iterate_entries(self.target):
            if await anext(source, None) != entry:
                raise self.build_conflict(f"the entry {entry.id!r} at position {entry.seq}")
        following = await anext(source, None)
        if following is not None and following.seq <= self._target_last_seq:
            raise Conflict(
                f"the target has used positions up to {self._target_last_seq} in {self.space}, where the entry "
                f"{following.id!r} has the position {following.seq}; copy the conversation before the facts or with "
                "them, to an empty target"
            )

    async def copy(self, report_done: ReportDone) -> int:
        present = [entry.seq async for entry in self._iterate_entries(self.target)]
        after, copied = present[-1] if present else 0, 0
        last_seq = max(self._target_last_seq, after)
        report_done(len(present))
        async for page in self.iterate_pages(self.source, after):
            for batch in split_batches(page, lambda entry: len(entry.content), _MAX_BATCH_CHARACTERS, MAX_BATCH_SIZE):
                await _write_batch(
                    self.target, [Append(space=self.space, entry=entry, durable=True, seq=entry.seq) for entry in batch]
                )
                copied += len(batch)
                last_seq = batch[-1].seq
            report_done(len(page))
        if last_seq < self._source_last_seq:
            # Advance the target's counter by an entry that is deleted in the same transaction.
            mark = Entry(id=_COUNTER_ID, kind="counter", content=_COUNTER_ID, at=_EPOCH)
            await self.target.write(
                Append(space=self.space, entry=mark, durable=True, seq=self._source_last_seq),
                Drop(self.space, (self._source_last_seq,)),
            )
        return copied


class ItemsPart(MigrationPart[Records, MemoryItem]):
    """A space of facts, procedures or notes, with vectors, terms and access counts."""

    def iterate_pages(self, store: Records) -> AsyncIterator[list[MemoryItem]]:
        return iter_pages(store, Where(self.space))

    async def load_values(self, store: Records, page: list[MemoryItem]) -> Sequence[Any]:
        puts = await store.get_full(self.space, *(item.id for item in page))
        vectors = [None if put.vectors is None else pack_vectors(put.vectors).tobytes().hex() for put in puts]
        return [
            (replace(put.item, version=1), sorted(put.terms or ()), put.model, rows)
            for put, rows in zip(puts, vectors, strict=True)
        ]

    async def _get_items(self, store: Records, page: list[MemoryItem]) -> dict[str, MemoryItem]:
        return {item.id: replace(item, version=1) for item in await store.get(self.space, *(item.id for item in page))}

    async def check(self) -> None:
        async for page in self.iterate_pages(self.target):
            known = await self._get_items(self.source, page)
            for item in page:
                # Access counts change between attempts, and do not restart the migration.
                if item.id not in known or _strip_access(known[item.id]) != _strip_access(item):
                    raise self.build_conflict(f"the item {item.id!r}")

    async def copy(self, report_done: ReportDone) -> int:
        copied = 0
        async for page in self.iterate_pages(self.source):
            present = await self._get_items(self.target, page)
            missing = [item.id for item in page if present.get(item.id) != replace(item, version=1)]
            full = await self.source.get_full(self.space, *missing)
            for puts in split_batches(full, _measure_item, _MAX_BATCH_CHARACTERS, MAX_BATCH_SIZE):
                # Deleted first, because a put does not change the access counts of an item.
                deletions = [Delete(put.space, put.item.id) for put in puts if put.item.id in present]
                await _write_batch(self.target, [*deletions, *(replace(put, expect=0) for put in puts)])
                copied += len(puts)
            report_done(len(page))
        return copied


def _strip_access(item: MemoryItem) -> MemoryItem:
    return replace(item, version=1, access_count=0, last_accessed=None)


def _measure_item(put: Put) -> int:
    return len(put.item.content) + (0 if put.vectors is None else put.vectors.size)


class TasksPart(MigrationPart[Tasks, str]):
    """The tasks of one agent, expired ones too, with versions and journals; pages hold their ids."""

    def __init__(self, space: Space, source: Tasks, target: Tasks, notes: list[str] | None = None) -> None:
        super().__init__(space, source, target)
        self._notes = notes

    async def iterate_pages(self, store: Tasks) -> AsyncIterator[list[str]]:
        ids = sorted({id async for id in iter_task_ids(store, self.space)})
        for start in range(0, len(ids), MAX_BATCH_SIZE):
            yield ids[start : start + MAX_BATCH_SIZE]

    async def load_values(self, store: Tasks, page: list[str], notes: list[str] | None = None) -> Sequence[Restore]:
        return [task for id in page if (task := await self._load_task(store, id, notes)) is not None]

    async def _load_task(self, store: Tasks, id: str, notes: list[str] | None) -> Restore | None:
        """Load a task with its intact versions and steps, without its lease. Note what is left out."""
        task = await store.task(self.space, id, hidden=True)
        if task is None:
            return None
        versions = await store.checkpoints(self.space, id, hidden=True)
        if notes is not None:
            if task.owner is not None:
                notes.append(f"task {id!r} of {self.space} was leased by {task.owner!r}; its lease was not copied")
            notes += [
                f"version {version.version} of task {id!r} of {self.space} is corrupt and was not copied"
                for version in versions
                if not version.intact
            ]
        free = replace(task, owner=None, renewed_at=None, lease_ttl=None)
        intact = tuple(version for version in versions if version.intact)
        return Restore(self.space, free, intact, tuple(await store.steps(self.space, id, hidden=True)))

    async def check(self) -> None:
        async for page in self.iterate_pages(self.target):
            for id in page:
                if await self._load_task(self.source, id, None) != await self._load_task(self.target, id, None):
                    raise self.build_conflict(f"the task {id!r}")

    async def copy(self, report_done: ReportDone) -> int:
        present = {id async for page in self.iterate_pages(self.target) for id in page}
        copied = 0
        async for page in self.iterate_pages(self.source):
            missing = [id for id in page if id not in present]
            tasks = await self.load_values(self.source, missing, self._notes)
            for batch in split_batches(tasks, _measure_task, _MAX_BATCH_CHARACTERS, MAX_BATCH_SIZE):
                await _write_batch(self.target, batch)
                copied += len(batch)
            report_done(len(page))
        return copied


def _measure_task(restore: Restore) -> int:
    states = sum(len(version.state) for version in restore.checkpoints)
    return states + sum(len(step.result or "") + len(step.error or "") for step in restore.steps)


def _encode_plain(value: Any) -> Any:
    """Encode a value as JSON for a hash."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value / timedelta(microseconds=1)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(value)


async def _write_batch(store: Store, writes: Sequence[Write]) -> None:
    reach_failpoint("migrate.before")
    await store.write(*writes)
    reach_failpoint("migrate.after")
