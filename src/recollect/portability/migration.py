"""Migration of everything in a store to another: copied space by space, resumable, and compared by hash at the end."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, cast

from recollect.clock import system_clock
from recollect.durable.failpoints import reach_failpoint
from recollect.erasure.selection import iter_task_ids
from recollect.errors import BadInput, Conflict, StoreCorrupt, StoreUnavailable
from recollect.portability.safe_file import encode_line
from recollect.settings import Settings, mask_password
from recollect.stores.base import Log, Records, SpaceTrace, Tasks
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


@dataclass(frozen=True, slots=True)
class MovedSpace:
    """A space: its items, how many this run copied, and the SHA-256 of both sides; a dry run has neither."""

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
    locations = [resolve_locations(location, settings, tiers) for location in (source, target)]
    _check_locations(*locations)
    names = [", ".join(dict.fromkeys(map(mask_password, urls.values()))) for urls in locations]
    if dry_run:  # it must not create files
        locations[1] = {tier: "memory://" if _is_missing(url) else url for tier, url in locations[1].items()}
    async with AsyncExitStack() as opened:
        stores = []
        for urls in locations:
            stores.append(await open_stores(cast(Mapping[str, str], urls), settings, system_clock, tiers=tiers))
            opened.push_async_callback(stores[-1].close)
        old, new = stores
        tenants = await _select_tenants(old, new, tiers, tenant)
        notes = await _check_erasures(old)
        parts = [part for name in tenants for tier in tiers for part in await _list_parts(tier, name, old, new)]
        model = await _bind_model(old, new, tiers, dry_run=dry_run)
        report_done = _start_stage(progress, "looking", len(parts))
        moved = []
        for part in parts:
            await part.check()
            moved.append(MovedSpace(part.space, await part.count()))
            report_done(1)
        if not dry_run:
            moved = await _copy_parts(parts, sum(space.held for space in moved), progress)
        notes += chain.from_iterable(part.notes for part in parts)
        return MigrationReport(names[0], names[1], model, tuple(moved), tuple(notes), dry_run)


def _check_locations(source: Mapping[Tier, str], target: Mapping[Tier, str]) -> None:
    if not target:
        raise BadInput("the target names no tier; pass a URL, or a mapping of tiers to URLs")
    if "memory://" in target.values():
        raise BadInput("the target is memory://, which stores nothing; pass a file or a server")
    for tier, url in source.items():
        if url == target[tier]:
            raise BadInput(f"{mask_password(url)} is the source and the target of the {tier} tier; name another target")
    for url in source.values():
        if _is_missing(url):
            raise StoreUnavailable(f"there is no store at {parse_local_path(url)}; check the path of the source")
        if url == "memory://":
            raise BadInput("the source is memory://, which is empty when it is opened; pass a file or a server")


def _is_missing(url: str) -> bool:
    path = parse_local_path(url)
    return path is not None and not path.exists()


async def _select_tenants(
    source: TierStores, target: TierStores, tiers: Collection[Tier], tenant: str | None
) -> list[str]:
    """Return the tenants to copy, also those with empty logs, whose positions other stores refer to."""
    logs = [source.log(tier) for tier in tiers if TIER_PROTOCOLS[tier] is Log]
    with_logs = {space.tenant for log in logs for space in await log.last_seqs()}
    tenants = await _list_tenants(source) | with_logs
    if tenant is not None:
        if tenant not in tenants:
            raise BadInput(f"the source holds nothing of a tenant {tenant!r}; name another, or omit `tenant`")
        return [tenant]
    if others := sorted(await _list_tenants(target) - tenants):
        raise Conflict(
            f"the target holds the tenant {others[0]!r}, which the source does not; name an empty target, or the "
            "one tenant to copy"
        )
    return sorted(tenants)


async def _list_tenants(stores: TierStores) -> set[str]:
    return {name for store in stores.all_stores for name in await store.tenants()}


async def _check_erasures(source: TierStores) -> list[str]:
    """Refuse to copy data that is being erased. Return notes about receipts, which stay with the source."""
    notes = []
    for store in source.all_stores:
        rows = await store.ledger() if isinstance(store, ErasureStore) else []
        if any(row.phase == "entered" for row in rows):
            raise Conflict(
                "an erasure in the source is not complete, so erased data would be copied; complete it with "
                "`recollect lifecycle` first"
            )
        if rows:
            notes.append(
                f"{len(rows):,} erasures were made in the source; their receipts are verified there. Keep its "
                "erasure ledger as long as you need the receipts, and delete older backups."
            )
    return notes


async def _list_parts(tier: Tier, tenant: str, source: TierStores, target: TierStores) -> list[MigrationPart]:
    """List the spaces of a tier; raise `Conflict` if only the target holds data in one."""
    part_type, is_used = _PART_TYPES[TIER_PROTOCOLS[tier]]
    stores, stored_tiers = (source.get_store(tier), target.get_store(tier)), TIERS_STORED_WITH[tier]
    traces = [await store.trace_spaces(tenant) for store in stores]
    known, present = [
        {trace.space: trace.last_seq or 0 for trace in found if trace.space.tier in stored_tiers and is_used(trace)}
        for found in traces
    ]
    for space in present.keys() - known.keys():
        part = part_type(space, stores[1], stores[1])
        if await part.count():
            raise part.build_conflict("something")
    return [part_type(space, *stores, last_seq, present.get(space, 0)) for space, last_seq in known.items()]


async def _bind_model(source: TierStores, target: TierStores, tiers: Collection[Tier], *, dry_run: bool) -> str | None:
    """Bind the target to the source's embedding model before the first vector is written; return its name."""
    name: str | None = None
    for tier in tiers:
        if TIER_PROTOCOLS[tier] is Records and (model := await source.records(tier).model()) is not None:
            name = model.name
            if not dry_run or await target.records(tier).model() is not None:
                await target.records(tier).bind_model(model)
    return name


async def _copy_parts(
    parts: Sequence[MigrationPart], total: int, progress: ProgressCallback | None
) -> list[MovedSpace]:
    """Copy all parts, then compare them."""
    report_done = _start_stage(progress, "copying", total)
    copied = [await part.copy(report_done) for part in parts]
    report_done = _start_stage(progress, "comparing", total)
    moved = []
    for part, count in zip(parts, copied, strict=True):
        held, sha256 = await part.hash_store(part.source, report_done)
        found, found_sha256 = await part.hash_store(part.target)
        if (held, sha256) != (found, found_sha256):
            raise StoreCorrupt(
                f"{part.space} has {held} items in the source ({sha256[:12]}) and {found} in the target "
                f"({found_sha256[:12]}); stop all writers of both, empty the target, and migrate again"
            )
        moved.append(MovedSpace(part.space, held, count, sha256))
    return moved


def _start_stage(progress: ProgressCallback | None, stage: str, total: int) -> ReportDone:
    done = 0

    def report_done(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(Progress(stage, done, max(total, done)))

    report_done(0)
    return report_done


@dataclass
class MigrationPart(ABC):
    """A space of one tier in both stores. A resumed run compares them, so no progress is stored."""

    space: Space
    source: Any
    target: Any
    last_seq: int = 0
    target_last_seq: int = 0
    notes: list[str] = field(default_factory=list)

    @abstractmethod
    def iterate_pages(self, store: Any) -> AsyncIterator[list[Any]]:
        """Yield everything in the space, in the same order for equal data."""

    @abstractmethod
    async def load_values(self, store: Any, page: list[Any]) -> Sequence[Any]:
        """Return one value for each item of the page; equal data gives equal values."""

    @abstractmethod
    async def check(self) -> None:
        """Raise `Conflict` if the target holds something that the source does not."""

    @abstractmethod
    async def build_writes(self, page: list[Any]) -> list[list[Write]]:
        """Return the writes of each item of the page that the target lacks."""

    async def copy(self, report_done: ReportDone) -> int:
        """Write what the target lacks, in atomic batches; return the number of items written."""
        copied = 0
        async for page in self.iterate_pages(self.source):
            missing = await self.build_writes(page)
            for batch in split_batches(missing, _measure_writes, _MAX_BATCH_CHARACTERS, MAX_BATCH_SIZE):
                reach_failpoint("migrate.before")
                await self.target.write(*chain.from_iterable(batch))
                reach_failpoint("migrate.after")
                copied += len(batch)
            report_done(len(page))
        return copied

    async def count(self) -> int:
        """Return the number of items in the source."""
        return sum([len(page) async for page in self.iterate_pages(self.source)])

    async def hash_store(self, store: Any, report_done: ReportDone = lambda _: None) -> tuple[int, str]:
        """Return the number of items in a store, and a SHA-256 over them."""
        digest, count = hashlib.sha256(), 0
        async for page in self.iterate_pages(store):
            values = await self.load_values(store, page)
            digest.update(b"".join(map(encode_line, values)))
            count += len(values)
            report_done(len(page))
        return count, digest.hexdigest()

    def build_conflict(self, what: str) -> Conflict:
        return Conflict(
            f"the target holds {what} in {self.space}, and the source does not hold the same; name an empty target, or "
            "one that an earlier run of this migration has begun"
        )


class EntriesPart(MigrationPart):
    """The log of one session, with positions and hidden entries."""

    async def iterate_pages(self, store: Log) -> AsyncIterator[list[Entry]]:
        after = 0
        while page := await store.read(self.space, after=after, limit=MAX_BATCH_SIZE, hidden=True):
            yield page
            after = page[-1].seq

    async def load_values(self, store: Log, page: list[Entry]) -> Sequence[Entry]:
        return page

    async def check(self) -> None:
        pages = self.iterate_pages(self.source)
        source = (entry async for page in pages for entry in page)
        async for page in self.iterate_pages(self.target):
            for entry in page:
                if await anext(source, None) != entry:
                    raise self.build_conflict(f"the entry {entry.id!r} at position {entry.seq}")
        following = await anext(source, None)
        if following is not None and following.seq <= self.target_last_seq:
            raise Conflict(
                f"the target has used positions up to {self.target_last_seq} in {self.space}, where the entry "
                f"{following.id!r} has the position {following.seq}; copy the conversation before the facts or with "
                "them, to an empty target"
            )

    async def build_writes(self, page: list[Entry]) -> list[list[Write]]:
        present = await self.target.read(self.space, after=page[0].seq - 1, limit=len(page), hidden=True)
        self.target_last_seq = max(self.target_last_seq, page[-1].seq)
        missing = page[len(present) :]  # `check` has found the target to hold the first entries of the source
        return [[Append(space=self.space, entry=entry, durable=True, seq=entry.seq)] for entry in missing]

    async def copy(self, report_done: ReportDone) -> int:
        copied = await super().copy(report_done)
        if self.target_last_seq < self.last_seq:
            # Advance the target's counter by an entry that is deleted in the same transaction.
            mark = Entry(id=_COUNTER_ID, kind="counter", content=_COUNTER_ID, at=_EPOCH)
            await self.target.write(
                Append(space=self.space, entry=mark, durable=True, seq=self.last_seq),
                Drop(self.space, (self.last_seq,)),
            )
        return copied


class ItemsPart(MigrationPart):
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

    async def check(self) -> None:
        # Access counts change between attempts, and do not restart the migration.
        changing: dict[str, Any] = {"version": 1, "access_count": 0, "last_accessed": None}
        async for page in self.iterate_pages(self.target):
            known = {item.id: item for item in await self.source.get(self.space, *(item.id for item in page))}
            for item in page:
                if item.id not in known or replace(known[item.id], **changing) != replace(item, **changing):
                    raise self.build_conflict(f"the item {item.id!r}")

    async def build_writes(self, page: list[MemoryItem]) -> list[list[Write]]:
        present = {item.id: item for item in await self.target.get(self.space, *(item.id for item in page))}
        missing = [
            item.id
            for item in page
            if item.id not in present or replace(present[item.id], version=item.version) != item
        ]
        full = await self.source.get_full(self.space, *missing)
        # Deleted first, because a put does not change the access counts of an item.
        return [
            [*([Delete(self.space, put.item.id)] if put.item.id in present else []), replace(put, expect=0)]
            for put in full
        ]


class TasksPart(MigrationPart):
    """The tasks of one agent, expired ones too, with versions and journals; pages hold their ids."""

    async def iterate_pages(self, store: Tasks) -> AsyncIterator[list[str]]:
        ids = sorted({id async for id in iter_task_ids(store, self.space)})
        for start in range(0, len(ids), MAX_BATCH_SIZE):
            yield ids[start : start + MAX_BATCH_SIZE]

    async def load_values(self, store: Tasks, page: list[str]) -> Sequence[Restore]:
        return [task for id in page if (task := await self._load_task(store, id, [])) is not None]

    async def _load_task(self, store: Tasks, id: str, notes: list[str]) -> Restore | None:
        """Load a task with its intact versions and steps, without its lease. Note what is left out."""
        task = await store.task(self.space, id, hidden=True)
        if task is None:
            return None
        if task.owner is not None:
            notes.append(f"task {id!r} of {self.space} was leased by {task.owner!r}; its lease was not copied")
        intact = []
        for version in await store.checkpoints(self.space, id, hidden=True):
            if version.intact:
                intact.append(version)
            else:
                notes.append(f"version {version.version} of task {id!r} of {self.space} is corrupt and was not copied")
        free = replace(task, owner=None, renewed_at=None, lease_ttl=None)
        return Restore(self.space, free, tuple(intact), tuple(await store.steps(self.space, id, hidden=True)))

    async def check(self) -> None:
        async for page in self.iterate_pages(self.target):
            for id in page:
                if await self._load_task(self.source, id, []) != await self._load_task(self.target, id, []):
                    raise self.build_conflict(f"the task {id!r}")

    async def build_writes(self, page: list[str]) -> list[list[Write]]:
        missing = [id for id in page if await self.target.task(self.space, id, hidden=True) is None]
        tasks = [await self._load_task(self.source, id, self.notes) for id in missing]
        return [[task] for task in tasks if task is not None]


_PART_TYPES: Mapping[type, tuple[type[MigrationPart], Callable[[SpaceTrace], bool]]] = {
    Records: (ItemsPart, lambda trace: trace.items > 0),
    Log: (EntriesPart, lambda trace: trace.last_seq is not None),
    Tasks: (TasksPart, lambda trace: trace.has_tasks),
}
"""The part of each protocol, and whether a space needs one. An empty log does, because of its last position."""


def _measure_writes(writes: Sequence[Write]) -> int:
    """Return the approximate size of an item with its vectors, of an entry, or of a task with its journal."""
    match writes[-1]:
        case Put(item=item, vectors=vectors):
            return len(item.content) + (0 if vectors is None else vectors.size)
        case Append(entry=entry):
            return len(entry.content)
        case Restore(checkpoints=versions, steps=steps):
            results = sum(len(step.result or "") + len(step.error or "") for step in steps)
            return results + sum(len(version.state) for version in versions)
        case _:
            return 0
