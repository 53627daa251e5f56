"""Random contents of stores, places to keep them in, and all that a store says of what it holds."""

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

from recollect.stores.base import Checkpoint, Log, Records, Step, Tasks
from recollect.stores.connect import NEEDS, Place, Stores
from recollect.stores.ops import Append, Clear, Delete, Drop, Entry, Journal, Put, Save, Touch
from recollect.stores.where import Where
from recollect.testing import ManualClock
from recollect.testing.samples import SECOND, START
from recollect.values import MemoryItem, Scope, Space, Tier
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

# Migrations go by the machine's clock. What happens here is long over by it, or will not be in its lifetime.
AGES = timedelta(days=90 * 365)
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
ends = maybe_moments | st.just(START + AGES)
seconds = st.sampled_from([SECOND, 3 * SECOND, AGES])
stored: st.SearchStrategy[Tier] = st.sampled_from(
    ["semantic", "quarantine", "procedural", "lifecycle", "conversation", "conversation"]
)
logged: st.SearchStrategy[Tier] = st.sampled_from(["conversation", "conversation", "episodic", "working"])
shelves = st.builds(Scope.space, scopes, stored)
logs = st.builds(Scope.space, scopes, logged)
task_spaces = st.builds(lambda scope: scope.space("checkpoints"), scopes)
tasks = st.sampled_from(["t", "u", "\x00", "é/🦜"])
places = st.integers(1, 12)


@st.composite
def kept(draw: st.DrawFn, scope: Scope, tier: Tier) -> Put:
    """An item with everything that an item can have."""
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
shelved = st.tuples(scopes, stored).flatmap(lambda of: st.lists(kept(*of), min_size=1, max_size=5))
said = st.builds(
    lambda space, some: [replace(one, space=space) for one in some], logs, st.lists(appends, min_size=1, max_size=5)
)
jobs = st.builds(
    lambda space, some, state: [Save(space=space, task=task, state=state) for task in some],
    task_spaces,
    st.lists(tasks, min_size=2, unique=True),
    texts,
)
writes = st.one_of(
    shelved,
    shelved,
    said,
    said,
    jobs,
    st.builds(lambda *given: [Touch(*given)], shelves, st.lists(names, max_size=3).map(tuple), moments),
    st.builds(lambda *given: [Delete(*given)], shelves, names),
    st.builds(lambda *given: [Drop(*given)], logs, st.lists(st.integers(1, 6), max_size=3).map(tuple)),
    st.builds(lambda space: [Clear(space)], logs),
    st.builds(lambda write, space, task: [replace(write, space=space, task=task)], task_writes, task_spaces, tasks),
    st.builds(
        lambda **given: [Save(**given)],
        space=task_spaces, task=tasks, state=texts, ttl=st.none() | seconds, status=st.none() | statuses,
    ),
)  # fmt: skip
"""Batches of one space each: what spans owners or stores is refused by some."""

Line = tuple[Any, ...]
# Whoever holds a task saves its state and notes its steps; some leases outlive everybody.
held = st.tuples(
    st.just("held"),
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
    held,
    st.tuples(st.just("clock"), st.integers(-2, 3)),
)
contents: st.SearchStrategy[list[Line]] = st.lists(lines, min_size=4, max_size=20)


@dataclass
class Places:
    """Servers, and a directory for files; a place that it names holds nothing."""

    directory: Path
    databases: Sequence[str]
    redis_server: RedisServer
    redis_cluster: RedisCluster
    numbers: itertools.count[int]

    def empty(self, kind: str, side: int) -> Place:
        """A new place; those on the same server differ by their side."""
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


kinds = st.sampled_from(["file", "postgres", *KINDS, "file", "redis"])  # oftener those that take less time
pairs = st.tuples(kinds, kinds).filter(lambda pair: pair != ("cluster", "cluster"))  # of which there is one


async def fill(stores: Stores, clock: ManualClock, told: Sequence[Line]) -> None:
    """Let it all happen; what a store refuses has not happened."""
    for line in told:
        match line:
            case ("clock", moved):
                clock.forward(timedelta(seconds=moved))
            case ("write", some):
                await outcome(_for(stores, some[0]).write(*some))
            case ("held", space, task, ttl, notes, back):
                await _hold(stores.tasks(), (space, task), ttl, notes, back)


async def touch(stores: Stores) -> None:
    """Everything is looked at once more."""
    for store in (stores.records("semantic"), stores.records("procedural")):
        for count in await store.spaces():
            found = await store.find(Where(count.space), limit=1_000)
            await store.write(Touch(count.space, tuple(item.id for item in found), START))


async def _hold(store: Tasks, name: tuple[Space, str], ttl: timedelta, notes: Sequence[Any], back: bool) -> None:
    space, task = name
    lease = await outcome(store.claim(space, task, "worker \x00", ttl, plan_hash="p"))
    if isinstance(lease, tuple):
        return
    for step, status, said in notes:
        await store.write(
            Save(space=space, task=task, state=f"[{step!r}]", fence=lease.fence),
            Journal(
                space=space, task=task, step=step, status=status, fence=lease.fence, attempts=2, idempotency_key=step,
                input_sha=said, result=said, error=None if status == "completed" else said,
            ),
        )  # fmt: skip
    if back:
        await store.release(lease)


def _for(stores: Stores, write: Any) -> Any:
    space: Space = write.space
    if space.tier == "checkpoints":
        return stores.tasks()
    if isinstance(write, Append | Clear | Drop):
        return stores.log("conversation" if space.tier == "conversation" else "episodic")
    return stores.records("procedural" if space.tier == "procedural" else "semantic")


async def holdings(stores: Stores) -> dict[str, Any]:
    """Everything that stores say of what they hold, but for what each counts by itself: versions, places, leases."""
    told: dict[str, Any] = {}
    tenants = sorted({name for store in stores.every for name in await store.tenants()})
    for tier in NEEDS:
        for tenant in tenants:
            if NEEDS[tier] is Records:
                told |= await _items(stores.records(tier), tenant)
            elif NEEDS[tier] is Log:
                told |= await _entries(stores.log(tier), tenant)
            else:
                told |= await _tasks(stores.tasks(), tenant)
    return {"tenants": tenants, **told}


async def _items(store: Records, tenant: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for count in await store.spaces(tenant):
        found = await store.find(Where(count.space), limit=1_000)
        whole = await store.whole(count.space, *(item.id for item in found))
        told[f"items of {count.space}"] = [count.items, count.newest, [_put(put) for put in whole]]
        told[f"said in {count.space}"] = await store.speakers(count.space)
    return told


def _put(put: Put) -> tuple[MemoryItem, list[str], object, object]:
    vectors = None if put.vectors is None else put.vectors.tolist()
    return replace(put.item, version=1), sorted(put.terms or ()), put.model, vectors


async def _entries(log: Log, tenant: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for owner in await log.owners(tenant):
        told[f"logs of {owner}"] = await log.logs(owner, hidden=True), await log.logs(owner)
        for space in await log.logs(owner, hidden=True):
            told[f"log {space}"] = await log.read(space, hidden=True), await log.recent(space, limit=1_000)
    return told


async def _tasks(store: Tasks, tenant: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for space in await store.task_spaces(tenant):
        found = {task.id for task in await store.tasks(space)}
        found |= {task.id for task in await store.expired(space, START + 2 * AGES)}
        for id in sorted(found):
            task = await store.task(space, id, hidden=True)
            assert task is not None
            free = replace(task, owner=None, renewed_at=None, lease_ttl=None)
            kept: list[Checkpoint] = await store.checkpoints(space, id, hidden=True)
            steps: list[Step] = await store.steps(space, id, hidden=True)
            told[f"task {id!r} of {space}"] = free, kept, steps
    return told


async def counters(stores: Stores) -> dict[Space, int]:
    """How far each log has counted."""
    told: dict[Space, int] = {}
    for log in (stores.log("conversation"), stores.log("episodic")):
        for tenant in TENANTS:
            told |= await log.counted(tenant)
    return told
