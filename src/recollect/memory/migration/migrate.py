"""The migration as a whole: what there is, what the target holds already, the copying and the comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import cast

from recollect.clock import system_clock
from recollect.errors import BadInput, Conflict, StoreCorrupt, StoreUnavailable
from recollect.memory.migration.entries import Entries
from recollect.memory.migration.items import Items
from recollect.memory.migration.part import Part, Tell, elsewhere
from recollect.memory.migration.report import MigrationReport, Moved, Progress
from recollect.memory.migration.tasks import Work
from recollect.settings import Settings, shown
from recollect.stores.base import Log, Records
from recollect.stores.connect import NEEDS, Place, Stores, connect, path_of, routed
from recollect.stores.erasing import Erasing
from recollect.values import Tier

WITH: Mapping[Tier, tuple[Tier, ...]] = {
    "conversation": ("conversation",),
    "episodic": ("episodic", "working"),
    "procedural": ("procedural",),
    "semantic": ("semantic", "quarantine", "conversation", "lifecycle"),
    "checkpoints": ("checkpoints",),
}
"""What is kept in the store of each tier: beside the facts what conversations are found by and the lifecycle's notes,
beside episodes the task at hand.

In this order they are moved: what was said comes before what was made of it.
"""


async def migrate_store(
    source: Place | None,
    target: Place,
    *,
    tenant: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    settings: Settings | None = None,
) -> MigrationReport:
    """Copy everything that a store holds into another, and compare both. After a crash, run it again: it goes on.

    Places are what `AgentMemory.open` takes; the source None is where the settings say. A mapping without `"default"`
    as the target moves the tiers that it names and leaves the others where they are. Write to neither store meanwhile.
    Leases are not moved. A target that holds anything of these tenants that the source does not is refused with
    `Conflict`, and nothing is written.
    """
    options = settings if settings is not None else await asyncio.to_thread(Settings.load)
    tiers = _moved_tiers(target)
    routes = routed(source, options, tiers), routed(target, options, tiers)
    _check_places(*routes)
    async with AsyncExitStack() as opened:
        stores = []
        for urls in (routes[0], _imagined(routes[1]) if dry_run else routes[1]):
            stores.append(await connect(cast(Mapping[str, str], urls), options, system_clock, tiers=tiers))
            opened.push_async_callback(stores[-1].close)
        migration = _Migration(stores[0], stores[1], tiers, progress)
        model = await migration.begin(tenant, dry_run=dry_run)
        moved = await migration.planned() if dry_run else await migration.run()
        names = [", ".join(dict.fromkeys(shown(url) for url in urls.values())) for urls in routes]
        return MigrationReport(names[0], names[1], model, tuple(moved), tuple(migration.notes), dry_run)


class _Migration:
    """From one set of stores to another."""

    def __init__(self, source: Stores, target: Stores, tiers: Collection[Tier], progress: Progress | None) -> None:
        self._source = source
        self._target = target
        self._tiers = tiers
        self._progress = progress
        self._parts: list[Part] = []
        self._held: list[int] = []
        self.notes: list[str] = []

    async def begin(self, tenant: str | None, *, dry_run: bool) -> str | None:
        """See what there is, and that the target can take it; the name of the model that made the vectors."""
        tenants = await self._everybody()
        if tenant is not None:
            if tenant not in tenants:
                raise BadInput(
                    f"the source holds nothing of a tenant {tenant!r}; name another, or none to move everybody"
                )
            tenants = [tenant]
        else:
            strangers = sorted(set(await _tenants(self._target)) - set(tenants))
            if strangers:
                raise Conflict(
                    f"the target holds the tenant {strangers[0]!r}, whom the source does not know; name an empty "
                    "target, or the one tenant to be moved"
                )
        await self._look_at_erasures()
        for one in tenants:
            await self._add(one)
        name = await self._model(dry_run=dry_run)
        tell = self._teller("looking", len(self._parts))
        for part in self._parts:
            await part.check()
            self._held.append(await part.held())
            tell(1)
        return name

    async def _everybody(self) -> list[str]:
        """The tenants of the source; those too of whom a log has counted and is empty: other stores know its places."""
        logs = [self._source.log(tier) for tier in self._tiers if NEEDS[tier] is Log]
        counted = [space.tenant for log in logs for space in await log.counted()]
        return sorted({*await _tenants(self._source), *counted})

    async def planned(self) -> list[Moved]:
        return [Moved(part.space, held) for part, held in zip(self._parts, self._held, strict=True)]

    async def run(self) -> list[Moved]:
        tell = self._teller("copying", sum(self._held))
        copied = [await part.copy(tell) for part in self._parts]
        tell = self._teller("comparing", sum(self._held))
        moved = []
        for part, count in zip(self._parts, copied, strict=True):
            here, there = await part.hashes(tell)
            if here != there:
                raise StoreCorrupt(
                    f"{part.space} has {here.count} in the source ({here.hex[:12]}) and {there.count} in the target "
                    f"({there.hex[:12]}): one of them was written to meanwhile; stop who does, empty the target, and "
                    "migrate again"
                )
            moved.append(Moved(part.space, here.count, count, here.hex))
        return moved

    async def _look_at_erasures(self) -> None:
        """Refuse to copy somebody who is being erased; receipts stay where their erasures were made and proved."""
        for store in self._source.every:
            rows = await store.ledger() if isinstance(store, Erasing) else []
            if any(row.phase == "entered" for row in rows):
                raise Conflict(
                    "an erasure in the source is not done yet, and what is to go would be copied; "
                    "end it first, with `recollect lifecycle` there"
                )
            if rows:
                self.notes.append(
                    f"{len(rows):,} erasures were made in the source and their receipts are verified there: keep its "
                    "ledger for as long as you have to show them, and no backup of it from before"
                )

    async def _add(self, tenant: str) -> None:
        """Every space of a tenant; one that the target alone holds is in the way."""
        for tier in self._tiers:
            found = await self._of(tier, tenant, self._source)
            known = {part.space for part in found}
            for part in await self._of(tier, tenant, self._target):
                if part.space not in known and await part.held():
                    raise elsewhere(part.space, "something")
            self._parts += found

    async def _of(self, tier: Tier, tenant: str, listed: Stores) -> list[Part]:
        """The parts of a tier that one of the sides lists, from that side to the target."""
        wanted, to = WITH[tier], self._target
        if NEEDS[tier] is Records:
            here = listed.records(tier)
            counts = [count.space for count in await here.spaces(tenant)]
            return [Items(space, here, to.records(tier)) for space in counts if space.tier in wanted]
        if NEEDS[tier] is Log:
            log = listed.log(tier)
            counted = sorted((await log.counted(tenant)).items(), key=lambda one: str(one[0]))
            reached = await to.log(tier).counted(tenant)
            return [
                Entries(space, log, to.log(tier), last, reached.get(space, 0))
                for space, last in counted
                if space.tier in wanted
            ]
        spaces = await listed.tasks().task_spaces(tenant)
        return [Work(space, listed.tasks(), to.tasks(), self.notes) for space in spaces if space.tier in wanted]

    async def _model(self, *, dry_run: bool) -> str | None:
        """The vectors are of one model, and the target is bound to it before the first arrives."""
        name: str | None = None
        for tier in self._tiers:
            if NEEDS[tier] is not Records:
                continue
            model, target = await self._source.records(tier).model(), self._target.records(tier)
            if model is not None:
                name = model.name
                if not dry_run or await target.model() is not None:
                    await target.adopt(model)
        return name

    def _teller(self, stage: str, total: int) -> Tell:
        done = 0

        def tell(more: int) -> None:
            nonlocal done
            done += more
            if self._progress is not None:
                self._progress(stage, done, max(total, done))

        tell(0)
        return tell


async def _tenants(stores: Stores) -> list[str]:
    return sorted({name for store in stores.every for name in await store.tenants()})


def _moved_tiers(target: Place) -> tuple[Tier, ...]:
    every = not isinstance(target, Mapping) or "default" in target
    return tuple(tier for tier in WITH if every or tier in cast(Mapping[str, str], target))


def _check_places(source: Mapping[Tier, str], target: Mapping[Tier, str]) -> None:
    if not target:
        raise BadInput("the target names no tier; give a URL, or a mapping of tiers to URLs")
    if "memory://" in target.values():
        raise BadInput("memory:// keeps nothing: what is moved there is gone at once; name a file or a server")
    for tier, url in source.items():
        if url == target[tier]:
            raise BadInput(f"{shown(url)} is the source and the target of the {tier} tier; name another target")
    _check_there(source.values())


def _check_there(urls: Iterable[str]) -> None:
    for url in urls:
        path = path_of(url)
        if path is not None and not path.exists():
            raise StoreUnavailable(f"there is no store at {path}; a source has to be there")
        if url == "memory://":
            raise BadInput("memory:// is empty when it is opened; there is nothing to move from it")


def _imagined(urls: Mapping[Tier, str]) -> dict[Tier, str]:
    """The same places, with a store in memory for what is not there: a dry run makes no file and no directory."""
    absent = [tier for tier, url in urls.items() if (path := path_of(url)) is not None and not path.exists()]
    return {tier: "memory://" if tier in absent else url for tier, url in urls.items()}
