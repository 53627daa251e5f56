"""What a scope and its store hold, in figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from recollect.clock import from_micros, to_micros
from recollect.inference.ledger import Spent
from recollect.stores.base import Log, Records, Tasks
from recollect.stores.connect import Stores
from recollect.stores.where import Condition, Where
from recollect.tiers.episodic import KINDS
from recollect.tiers.messages import ROLES
from recollect.tiers.working import WorkingMemory
from recollect.values import Scope, Space, Tier

_PAGE = 1000
# What conversations are found by lives there too, and so do notes; they are not counted: both are made of the rest.
_KEPT_AS_ITEMS: tuple[Tier, ...] = ("semantic", "procedural")
_FIRST_STEP = 86_400_000_000  # a day, in microseconds


@dataclass(frozen=True, slots=True)
class TierStats:
    """What one tier holds of this scope: of its user or agent, in all of their sessions."""

    items: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    sessions: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """`items` and `newest` are the facts of this scope; `bytes` is the size of the whole store.

    `spaces` and `all_items` are everybody's, and None unless they were asked for: how much others keep is theirs.
    `spent` is what each model elsewhere has cost since this memory was opened, by all of its scopes together.
    """

    items: int
    newest: datetime | None
    spaces: int | None
    all_items: int | None
    model: str | None
    bytes: int
    tiers: Mapping[str, TierStats] = field(default_factory=dict)
    spent: tuple[Spent, ...] = ()


async def stats_of(
    scope: Scope,
    stores: Stores,
    working: WorkingMemory,
    spent: tuple[Spent, ...] = (),
    *,
    everybody: bool = False,
) -> Stats:
    records = stores.records("semantic")
    counts = await records.spaces() if everybody else []
    spaces = [count for count in counts if count.space.tier in _KEPT_AS_ITEMS]
    model = await records.model()
    facts = await _records(records, scope.space("semantic"))
    holding = {id(store): store for store in (records, stores.records("procedural"))}
    return Stats(
        items=facts.items,
        newest=facts.newest,
        spaces=len(spaces) if everybody else None,
        all_items=sum(count.items for count in spaces) if everybody else None,
        model=model.name if model else None,
        bytes=sum([await store.size() for store in holding.values()]),
        tiers={
            "working": TierStats(len(working.items)),
            "conversation": await _log(stores.log("conversation"), scope, "conversation", ROLES),
            "episodic": await _log(stores.log("episodic"), scope, "episodic", KINDS),
            "semantic": facts,
            "procedural": await _records(stores.records("procedural"), scope.space("procedural")),
            "checkpoints": await _tasks(stores.tasks(), scope.space("checkpoints")),
        },
        spent=spent,
    )


async def _records(store: Records, space: Space) -> TierStats:
    for count in await store.spaces(space.tenant):
        if count.space == space and count.newest is not None:
            return TierStats(count.items, await _oldest(store, space, count.newest), count.newest)
    return TierStats()


async def _oldest(store: Records, space: Space, newest: datetime) -> datetime:
    """Stores list the newest first: reach back in growing steps, then in shrinking ones, a few dozen looks in all."""
    oldest, step, growing = to_micros(newest), _FIRST_STEP, True
    while step:
        earlier = Condition("created_at", "lte", oldest - step)
        found = await store.find(Where(space, conditions=(earlier,)), limit=1)
        if found:
            oldest = to_micros(found[0].created_at)
            step = step * 2 if growing else step
        else:
            step, growing = step // 2, False
    return from_micros(oldest)


async def _log(log: Log, scope: Scope, tier: Literal["conversation", "episodic"], kinds: tuple[str, ...]) -> TierStats:
    found = TierStats()
    for space in await log.logs(scope.space(tier)):
        after, held = 0, 0
        while page := await log.read(space, after=after, limit=_PAGE):
            after = page[-1].seq
            moments = [entry.at for entry in page if entry.kind in kinds]  # summaries are nobody's words
            held += len(moments)
            if moments:
                found = replace(
                    found,
                    oldest=min((*moments, found.oldest or moments[0])),
                    newest=max((*moments, found.newest or moments[0])),
                )
        found = replace(found, items=found.items + held, sessions=found.sessions + (held > 0))
    return found


async def _tasks(store: Tasks, space: Space) -> TierStats:
    count, last = 0, None
    oldest: datetime | None = None
    newest: datetime | None = None
    while page := await store.tasks(space, limit=_PAGE, after=last):
        count, last = count + len(page), page[-1].id
        oldest = min(oldest or page[0].created_at, *(task.created_at for task in page))
        newest = max(newest or page[0].updated_at, *(task.updated_at for task in page))
    return TierStats(count, oldest, newest)
