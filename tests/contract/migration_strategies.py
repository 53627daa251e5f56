"""Random contents of stores, locations for them, and readers of all their data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import redis
from hypothesis import strategies as st

from recollect.stores.base import Log, Records, Tasks
from recollect.stores.factory import TIER_PROTOCOLS, StoreLocation, TierStores
from recollect.stores.filters import Where
from recollect.stores.search import EvidenceQuery
from recollect.stores.writes import Append, Checkpoint, Clear, Delete, Drop, Entry, Journal, Put, Save, Step, Touch
from recollect.testing import ManualClock
from recollect.testing.factories import SECOND, START
from recollect.types import MemoryItem, Scope, Space, Tier
from tests.contract.test_congruence import (
    maybe_moments,
    metadata,
    moments,
    names,
    outcome,
    puts,
    statuses,
    task_writes,
    tenths,
)
from tests.servers.postgres import EMPTY
from tests.servers.redis import RedisCluster, RedisServer

# Migrations use the system clock; times here are far in the past or in the future of it.
FAR_FUTURE = timedelta(days=90 * 365)
KINDS = ("file", "postgres", "redis", "cluster", "chroma")
LOGS_AND_TASKS: tuple[Tier, ...] = ("conversation", "episodic", "checkpoints")
TENANTS = ("acme", "globex", "é/ü 🦜")
SCOPES = [
    Scope("acme", "ada"),
    Scope("acme", "ada", "other", "s/é"),
    Scope("globex", "ada"),
    Scope("é/ü 🦜", "bob", session="s"),
]
TEXTS = [
    "apple",
    "\x00",
    "a\x00b\n\r\u2028",
    "👩‍👩‍👧 \u202e漢字",
    "x" * 5_000,
    "\\u0000 \\ \" ' %s",
    "\U0010ffff\ufeff\ufffe",
]

scopes = st.sampled_from(SCOPES)
texts = st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
ends = maybe_moments | st.just(START + FAR_FUTURE)
seconds = st.sampled_from([SECOND, 3 * SECOND, FAR_FUTURE])
stored: st.SearchStrategy[Tier] = st.sampled_from(
    ["semantic", "quarantine", "procedural", "lifecycle", "conversation", "conversation"]
)
logged: st.SearchStrategy[Tier] = st.sampled_from(["conversation", "conversation", "episodic", "working"])
item_spaces = st.builds(Scope.space, scopes, stored)
logs = st.builds(Scope.space, scopes, logged)
task_spaces = st.builds(lambda scope: scope.space("checkpoints"), scopes)
tasks = st.sampled_from(["t", "u", "\x00", "é/🦜"])
places = st.integers(1, 12)


@st.composite
def full_puts(draw: st.DrawFn, scope: Scope, tier: Tier) -> Put:
    """Draw a put of an item with all fields."""
    put: Put = draw(puts())
    item = replace(
        put.item,
        tier=tier,
        scope=scope,
        content=draw(texts) + "x",
        expires_at=draw(ends),
        superseded_by=draw(st.none() | names),
        derived_from=tuple(draw(st.lists(names, max_size=2))),
        pinned=draw(st.booleans()),
        decayed_at=draw(maybe_moments),
        learned_at=draw(maybe_moments),
    )
    return replace(put, item=item, expect=None)


entries = st.builds(
    Entry, id=names, kind=texts, content=texts, at=moments, metadata=metadata, importance=tenths, expires_at=ends
)
appends = st.builds(
    Append, space=logs, entry=entries, cap=st.sampled_from([None, None, None, 2]), seq=st.just(0) | places
)
item_batches = st.tuples(scopes, stored).flatmap(lambda of: st.lists(full_puts(*of), min_size=1, max_size=5))
entry_batches = st.builds(
    lambda space, some: [replace(one, space=space) for one in some], logs, st.lists(appends, min_size=1, max_size=5)
)
save_batches = st.builds(
    lambda space, some, state: [Save(space=space, task=task, state=state) for task in some],
    task_spaces,
    st.lists(tasks, min_size=2, unique=True),
    texts,
)
writes = st.one_of(
    item_batches,
    item_batches,
    entry_batches,
    entry_batches,
    save_batches,
    st.builds(lambda *given: [Touch(*given)], item_spaces, st.lists(names, max_size=3).map(tuple), moments),
    st.builds(lambda *given: [Delete(*given)], item_spaces, names),
    st.builds(lambda *given: [Drop(*given)], logs, st.lists(st.integers(1, 6), max_size=3).map(tuple)),
    st.builds(lambda space: [Clear(space)], logs),
    st.builds(lambda write, space, task: [replace(write, space=space, task=task)], task_writes, task_spaces, tasks),
    st.builds(
        lambda **given: [Save(**given)],
        space=task_spaces, task=tasks, state=texts, ttl=st.none() | seconds, status=st.none() | statuses,
    ),
)  # fmt: skip
# Each batch has one space: some stores refuse batches across owners.

Line = tuple[Any, ...]
# The worker with the lease saves the state and journals the steps; some leases never expire.
lease_work = st.tuples(
    st.just("lease"),
    task_spaces,
    tasks,
    seconds,
    st.lists(st.tuples(names, st.sampled_from(["started", "completed", "failed"]), st.none() | texts), max_size=3),
    st.booleans(),
)
lines = st.one_of(
    st.tuples(st.just("write"), writes),
    st.tuples(st.just("write"), writes),
    st.tuples(st.just("write"), writes),
    lease_work,
    st.tuples(st.just("clock"), st.integers(-2, 3)),
)
contents: st.SearchStrategy[list[Line]] = st.lists(lines, min_size=4, max_size=20)


@dataclass
class MigrationLocations:
    """Servers and a directory, in which it creates empty locations."""

    directory: Path
    databases: Sequence[str]
    redis_server: RedisServer
    redis_cluster: RedisCluster
    numbers: itertools.count[int]

    def empty(self, kind: str, side: int) -> StoreLocation:
        """Return an empty location; `side` separates two locations on one server."""
        number = next(self.numbers)
        file = str(self.directory / f"{number}.db")
        match kind:
            case "postgres":
                with psycopg.connect(self.databases[side], autocommit=False) as connection:
                    connection.execute(EMPTY)
                return self.databases[side]
            case "redis":
                url = self.redis_server.url.removesuffix("/0") + f"/{side + 1}"
                with redis.Redis.from_url(url) as client:
                    client.flushdb()
                return {"default": file, **dict.fromkeys(LOGS_AND_TASKS, url)}
            case "cluster":
                self.redis_cluster.flush()
                return {"default": file, **dict.fromkeys(LOGS_AND_TASKS, self.redis_cluster.url)}
            case "chroma":
                url = f"chroma:{self.directory / f'{number}.chroma'}"
                return {"default": file, "semantic": url, "procedural": url}
        return file


kinds = st.sampled_from(["file", "postgres", *KINDS, "file", "redis"])  # fast backends are drawn more often
backend_pairs = st.tuples(kinds, kinds).filter(lambda pair: pair != ("cluster", "cluster"))  # there is only one cluster


async def fill(stores: TierStores, clock: ManualClock, history: Sequence[Line]) -> None:
    """Replay the history; writes that a store refuses have no effect."""
    for line in history:
        match line:
            case ("clock", moved):
                clock.forward(timedelta(seconds=moved))
            case ("write", some):
                await outcome(_get_store(stores, some[0]).write(*some))
            case ("lease", space, task, ttl, notes, back):
                await _work_with_lease(stores.tasks(), (space, task), ttl, notes, back)


async def touch(stores: TierStores) -> None:
    """Touch all items once."""
    for store in (stores.records("semantic"), stores.records("procedural")):
        for count in await store.spaces():
            found = await store.find(Where(count.space), limit=1_000)
            await store.write(Touch(count.space, tuple(item.id for item in found), START))


async def _work_with_lease(
    store: Tasks, name: tuple[Space, str], ttl: timedelta, notes: Sequence[Any], back: bool
) -> None:
    space, task = name
    lease = await outcome(store.claim(space, task, "worker \x00", ttl, plan_hash="p"))
    if isinstance(lease, tuple):
        return
    for step, status, text in notes:
        await store.write(
            Save(space=space, task=task, state=f"[{step!r}]", fence=lease.fence),
            Journal(
                space=space, task=task, step=step, status=status, fence=lease.fence, attempts=2, idempotency_key=step,
                input_sha=text, result=text, error=None if status == "completed" else text,
            ),
        )  # fmt: skip
    if back:
        await store.release(lease)


def _get_store(stores: TierStores, write: Any) -> Any:
    space: Space = write.space
    if space.tier == "checkpoints":
        return stores.tasks()
    if isinstance(write, Append | Clear | Drop):
        return stores.log("conversation" if space.tier == "conversation" else "episodic")
    return stores.records("procedural" if space.tier == "procedural" else "semantic")


async def read_contents(stores: TierStores) -> dict[str, Any]:
    """Return all data of the stores, except for versions, positions and leases."""
    data: dict[str, Any] = {}
    tenants = sorted({name for store in stores.all_stores for name in await store.tenants()})
    for tier in TIER_PROTOCOLS:
        for tenant in tenants:
            if TIER_PROTOCOLS[tier] is Records:
                data |= await _items(stores.records(tier), tenant)
            elif TIER_PROTOCOLS[tier] is Log:
                data |= await _entries(stores.log(tier), tenant)
            else:
                data |= await _tasks(stores.tasks(), tenant)
    return {"tenants": tenants, **data}


async def _items(store: Records, tenant: str) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for count in await store.spaces(tenant):
        found = await store.find(Where(count.space), limit=1_000)
        whole = await store.get_full(count.space, *(item.id for item in found))
        data[f"items of {count.space}"] = [count.items, count.newest, [_put(put) for put in whole]]
        asked = EvidenceQuery(Where(count.space), None, (), limit=1, reach=0)
        data[f"said in {count.space}"] = await store.gather(asked, lambda found, lookup: found.speakers)
    return data


def _put(put: Put) -> tuple[MemoryItem, list[str], object, object]:
    vectors = None if put.vectors is None else put.vectors.tolist()
    return replace(put.item, version=1), sorted(put.terms or ()), put.model, vectors


async def _entries(log: Log, tenant: str) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for owner in await log.owners(tenant):
        data[f"logs of {owner}"] = await log.logs(owner, hidden=True), await log.logs(owner)
        for space in await log.logs(owner, hidden=True):
            data[f"log {space}"] = await log.read(space, hidden=True), await log.recent(space, limit=1_000)
    return data


async def _tasks(store: Tasks, tenant: str) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for space in await store.task_spaces(tenant):
        found = {task.id for task in await store.tasks(space)}
        found |= {task.id for task in await store.expired(space, START + 2 * FAR_FUTURE)}
        for id in sorted(found):
            task = await store.task(space, id, hidden=True)
            assert task is not None
            free = replace(task, owner=None, renewed_at=None, lease_ttl=None)
            kept: list[Checkpoint] = await store.checkpoints(space, id, hidden=True)
            steps: list[Step] = await store.steps(space, id, hidden=True)
            data[f"task {id!r} of {space}"] = free, kept, steps
    return data


async def read_counters(stores: TierStores) -> dict[Space, int]:
    """Return the last sequence number of each log."""
    data: dict[Space, int] = {}
    for log in (stores.log("conversation"), stores.log("episodic")):
        for tenant in TENANTS:
            data |= await log.last_seqs(tenant)
    return data
