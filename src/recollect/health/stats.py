"""Statistics of a scope and its stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from recollect.clock import from_micros, to_micros
from recollect.engine import list_vector_stores
from recollect.models.usage import ModelUsage
from recollect.stores.base import Log, Records, Tasks
from recollect.stores.factory import TierStores
from recollect.stores.filters import Condition, Where
from recollect.tiers.episodic import EPISODE_KINDS
from recollect.tiers.log_entries import read_all_entries
from recollect.tiers.messages import ROLES
from recollect.tiers.working import WorkingMemory
from recollect.types import Scope, Space, Tier

_PAGE_SIZE = 1000
# Turn index items and lifecycle notes are derived data, and are not counted.
_ITEM_TIERS: tuple[Tier, ...] = ("semantic", "procedural")
_FIRST_STEP_MICROSECONDS = 86_400_000_000  # one day


@dataclass(frozen=True, slots=True)
class TierStats:
    """The size of one tier for the user or agent of the scope, over all sessions."""

    items: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    sessions: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of a memory.

    `items` and `newest` are the facts of this scope. `bytes` is the size of the stores of facts and procedures, for all
    users. `spaces` and `all_items` count the data of all users, and are None unless they were requested. `spent` is the
    cost of each remote model since the memory was opened, over all its scopes.
    """

    items: int
    newest: datetime | None
    spaces: int | None
    all_items: int | None
    model: str | None
    bytes: int
    tiers: Mapping[str, TierStats] = field(default_factory=dict)
    spent: tuple[ModelUsage, ...] = ()


async def collect_stats(
    scope: Scope,
    stores: TierStores,
    working: WorkingMemory,
    spent: tuple[ModelUsage, ...] = (),
    *,
    whole_store: bool = False,
) -> Stats:
    records = stores.records("semantic")
    counts = await records.spaces() if whole_store else []
    spaces = [count for count in counts if count.space.tier in _ITEM_TIERS]
    model = await records.model()
    facts = await _count_records(records, scope.space("semantic"))
    return Stats(
        items=facts.items,
        newest=facts.newest,
        spaces=len(spaces) if whole_store else None,
        all_items=sum(count.items for count in spaces) if whole_store else None,
        model=model.name if model else None,
        bytes=sum([await store.size() for store in list_vector_stores(stores)]),
        tiers={
            "working": TierStats(len(working.items)),
            "conversation": await _count_entries(stores.log("conversation"), scope, "conversation", ROLES),
            "episodic": await _count_entries(stores.log("episodic"), scope, "episodic", EPISODE_KINDS),
            "semantic": facts,
            "procedural": await _count_records(stores.records("procedural"), scope.space("procedural")),
            "checkpoints": await _count_tasks(stores.tasks(), scope.space("checkpoints")),
        },
        spent=spent,
    )


async def _count_records(store: Records, space: Space) -> TierStats:
    for count in await store.spaces(space.tenant):
        if count.space == space and count.newest is not None:
            return TierStats(count.items, await _find_oldest(store, space, count.newest), count.newest)
    return TierStats()


async def _find_oldest(store: Records, space: Space, newest: datetime) -> datetime:
    """Return the oldest time by exponential, then binary search: stores list the newest items first."""
    oldest, step, growing = to_micros(newest), _FIRST_STEP_MICROSECONDS, True
    while step:
        earlier = Condition("created_at", "lte", oldest - step)
        found = await store.find(Where(space, conditions=(earlier,)), limit=1)
        if found:
            oldest = to_micros(found[0].created_at)
            step = step * 2 if growing else step
        else:
            step, growing = step // 2, False
    return from_micros(oldest)


async def _count_entries(
    log: Log, scope: Scope, tier: Literal["conversation", "episodic"], kinds: tuple[str, ...]
) -> TierStats:
    items = sessions = 0
    times: list[datetime] = []
    for space in await log.logs(scope.space(tier)):
        session_times = [entry.at for entry in await read_all_entries(log, space) if entry.kind in kinds]
        items, sessions = items + len(session_times), sessions + bool(session_times)
        times += (min(session_times), max(session_times)) if session_times else ()
    return TierStats(items, min(times, default=None), max(times, default=None), sessions)


async def _count_tasks(store: Tasks, space: Space) -> TierStats:
    count, last = 0, None
    times: list[datetime] = []
    while page := await store.tasks(space, limit=_PAGE_SIZE, after=last):
        count, last = count + len(page), page[-1].id
        times += (min(task.created_at for task in page), max(task.updated_at for task in page))
    return TierStats(count, min(times, default=None), max(times, default=None))
