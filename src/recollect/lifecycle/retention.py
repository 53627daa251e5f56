"""Retention: decay of importance, expiry, forgetting and caps, for facts, episodes and tasks."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from recollect.errors import Conflict
from recollect.lifecycle.context import LifecycleRun
from recollect.lifecycle.report import ActionKind, LifecycleAction
from recollect.settings import Settings
from recollect.stores.filters import Where
from recollect.stores.overlay import iter_pages
from recollect.stores.writes import Delete, Drop, DropTask, Put, Task
from recollect.tiers.contradiction import is_merged_copy
from recollect.types import MemoryItem, Space
from recollect.validation import format_count

MIN_IMPORTANCE_CHANGE = 0.01
"""Smaller changes are not written. They add up, since decay is always computed from the last write."""

IMPORTANCE_FLOOR = 0.05
"""Importance does not decay below this."""

_MIN_USES_TO_KEEP = 2
_WRITE_BATCH_SIZE = 500
# Time without use before a fact can be forgotten.
_FORGET_AFTER = timedelta(days=30)
_EPISODE_PAGE_SIZE = 500
_TASK_PAGE_SIZE = 100


def get_purge_grace(settings: Settings) -> timedelta:
    """Return how long expired data is kept, since clocks may disagree."""
    return timedelta(seconds=settings.purge_grace_seconds)


def decay_importance(item: MemoryItem, half_life: timedelta, now: datetime) -> float:
    """Return the importance of an item at `now`, never below the floor. Keyed and pinned items do not decay."""
    span = now - find_decay_start(item)
    above_floor = item.importance - IMPORTANCE_FLOOR
    if not is_cappable(item) or above_floor <= 0 or span <= timedelta():
        return item.importance
    return IMPORTANCE_FLOOR + above_floor * math.exp2(-(span / extend_half_life(half_life, item.access_count)))


def is_significant_change(item: MemoryItem, importance: float) -> bool:
    return abs(item.importance - importance) >= MIN_IMPORTANCE_CHANGE


def find_decay_start(item: MemoryItem) -> datetime:
    """Return the time of the last decay, access or arrival."""
    times = (item.created_at, item.learned_at, item.last_accessed, item.decayed_at)
    return max(time for time in times if time is not None)


def extend_half_life(half_life: timedelta, accesses: int) -> timedelta:
    """Return the half-life of an item: 2 half-lives for 1 access, 3 for 3 accesses, nearly 8 for 100."""
    return half_life * (1.0 + math.log2(1 + accesses))


def explain_expiry(item: MemoryItem, settings: Settings, now: datetime) -> str | None:
    """Return why an item has expired, with a grace period for clocks that disagree; None if it has not."""
    grace, max_age = get_purge_grace(settings), settings.tier("semantic").ttl_seconds
    if item.expires_at is not None and item.expires_at + grace <= now:
        return f"expired on {item.expires_at:%Y-%m-%d}"
    if max_age is None or item.pinned or item.created_at + timedelta(seconds=max_age) + grace > now:
        return None
    return f"older than the maximum age of {format_count(timedelta(seconds=max_age).days, 'day')}"


def explain_forgetting(item: MemoryItem, settings: Settings, now: datetime) -> str | None:
    """Return why an item may be forgotten; None if it has to stay, like keyed, pinned and recently used items."""
    # An imported item is as old as its arrival, not as its content.
    times = (item.created_at, item.learned_at, item.last_accessed)
    last_use = max(time for time in times if time is not None)
    if not is_cappable(item) or last_use + _FORGET_AFTER > now:
        return None
    if is_merged_copy(item):
        age = now - (item.valid_to or item.created_at)
        since = f"{format_count(age.days, 'day')} ago"
        return f"merged into {item.superseded_by}, {since}" if age >= _FORGET_AFTER else None
    if item.importance >= settings.forget_below or item.access_count >= _MIN_USES_TO_KEEP:
        return None
    usage = "never used" if item.access_count == 0 else "used once"
    return f"importance {item.importance:.2f}, {usage}, not touched for {format_count((now - last_use).days, 'day')}"


def is_cappable(item: MemoryItem) -> bool:
    return item.key is None and not item.pinned


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """The new importance of an item; without one, its deletion."""

    kind: ActionKind
    item: MemoryItem
    reason: str
    importance: float | None = None

    def build_write(self, run: LifecycleRun) -> Put | Delete:
        if self.importance is None:
            return Delete(run.fact_space, self.item.id, expect=self.item.version)
        decayed = replace(self.item, importance=self.importance, decayed_at=run.now)
        return Put(item=decayed, expect=self.item.version)


def decide_retention(item: MemoryItem, settings: Settings, now: datetime) -> RetentionDecision | None:
    """Return what to do with an item; None if it stays as it is."""
    if expired := explain_expiry(item, settings, now):
        return RetentionDecision("expired", item, expired)
    importance = decay_importance(item, timedelta(days=settings.half_life_days), now)
    if forgotten := explain_forgetting(replace(item, importance=importance), settings, now):
        return RetentionDecision("forgotten", item, forgotten)
    # A copy is represented by the item that it was merged into.
    if is_merged_copy(item) or not is_significant_change(item, importance):
        return None
    return RetentionDecision("decayed", item, f"importance {item.importance:.2f} → {importance:.2f}", importance)


async def sweep_facts(run: LifecycleRun) -> None:
    """Decay, expire and forget facts, page by page, then enforce the cap."""
    settings = run.context.settings
    max_items = settings.tier("semantic").max_items
    done = 0
    async for page in iter_pages(run.overlay, Where(run.fact_space)):
        decisions = [decision for item in page if (decision := decide_retention(item, settings, run.now))]
        await _apply_decisions(run, decisions)
        done += len(page)
        run.report.examined += len(page)
        run.report_progress("sweep", done, max(run.compared_count, done))
    if max_items is not None:
        await _enforce_cap(run, max_items)


async def _apply_decisions(run: LifecycleRun, decisions: Sequence[RetentionDecision]) -> None:
    """Apply decisions together; after a conflict, read each item again and decide on its current version."""
    if not decisions or await _write_decisions(run, decisions):
        return
    for decision in decisions:
        for item in await run.overlay.get(run.fact_space, decision.item.id):
            if decision.kind == "capped":
                retry = replace(decision, item=item) if is_cappable(item) else None
            else:
                retry = decide_retention(item, run.context.settings, run.now)
            if retry is not None and not await _write_decisions(run, [retry]):
                run.report.add_note(f"item {item.id} is being changed by another process; left for the next run")


async def _write_decisions(run: LifecycleRun, decisions: Sequence[RetentionDecision]) -> bool:
    """Write decisions in one transaction; return False if an item was changed meanwhile."""
    try:
        await run.overlay.write(*(decision.build_write(run) for decision in decisions))
    except Conflict:
        return False
    for decision in decisions:
        run.report.add(decision.kind, [LifecycleAction(decision.item.id, "semantic", decision.reason)])
    run.dropped_count += sum(decision.importance is None for decision in decisions)
    return True


async def _enforce_cap(run: LifecycleRun, max_items: int) -> None:
    """Drop the least important facts above the cap, of equals the least recently used; only ids are held in memory."""
    count = 0
    candidates: list[tuple[float, float, str]] = []
    async for page in iter_pages(run.overlay, Where(run.fact_space)):
        count += len(page)
        candidates += [
            (-item.importance, -(item.last_accessed or item.created_at).timestamp(), item.id)
            for item in page
            if is_cappable(item)
        ]
    ids = [id for *_, id in heapq.nlargest(count - max_items, candidates)]
    reason = f"among the least important of more than {max_items:,}"
    for start in range(0, len(ids), _WRITE_BATCH_SIZE):
        items = await run.overlay.get(run.fact_space, *ids[start : start + _WRITE_BATCH_SIZE])
        await _apply_decisions(run, [RetentionDecision("capped", item, reason) for item in items])


async def drop_expired_episodes(run: LifecycleRun) -> None:
    """Drop episodes a grace period after they expired, and those above a lowered cap, if they were read."""
    log, grace = run.context.episodic, get_purge_grace(run.context.settings)
    max_items = run.context.settings.tier("episodic").max_items
    spaces = await log.logs(run.scope.space("episodic"), hidden=True)
    for number, space in enumerate(spaces, 1):
        read_up_to = run.log_positions.get(space, 0)
        live: list[tuple[int, str]] = []
        after = 0
        while page := await log.read(space, after=after, limit=_EPISODE_PAGE_SIZE, hidden=True):
            after = page[-1].seq
            expired = [
                (entry.seq, entry.id, f"expired on {entry.expires_at:%Y-%m-%d at %H:%M} UTC")
                for entry in page
                if entry.seq <= read_up_to and entry.expires_at is not None and entry.expires_at + grace <= run.now
            ]
            live += [(entry.seq, entry.id) for entry in page if entry.expires_at is None or entry.expires_at > run.now]
            await _drop_entries(run, space, "expired", expired)
        if max_items is not None:
            reason = f"one of more than {max_items:,} in its session"
            surplus = [(seq, id, reason) for seq, id in live[:-max_items] if seq <= read_up_to]
            for start in range(0, len(surplus), _EPISODE_PAGE_SIZE):
                await _drop_entries(run, space, "capped", surplus[start : start + _EPISODE_PAGE_SIZE])
        run.report_progress("expire", number, len(spaces))


async def _drop_entries(
    run: LifecycleRun, space: Space, kind: ActionKind, entries: Sequence[tuple[int, str, str]]
) -> None:
    if entries and not run.is_dry:
        await run.context.episodic.write(Drop(space, tuple(seq for seq, _, _ in entries)))
    run.report.add(kind, (LifecycleAction(id, "episodic", reason) for _, id, reason in entries))


async def drop_expired_tasks(run: LifecycleRun) -> None:
    """Drop tasks with their checkpoints and journal a grace period after they expired, unless they were resumed."""
    space = run.scope.space("checkpoints")
    before = run.now - get_purge_grace(run.context.settings)
    last: Task | None = None
    while page := await run.context.tasks.expired(space, before, limit=_TASK_PAGE_SIZE, after=last):
        last = page[-1]
        are_dropped = run.is_dry or await _drop_tasks(run, page, before)
        for task in page if are_dropped else [task for task in page if await _drop_tasks(run, [task], before)]:
            reason = f"expired on {task.expires_at:%Y-%m-%d at %H:%M} UTC; it was {task.status}"
            run.report.add("expired", [LifecycleAction(task.id, "checkpoints", reason)])
        run.report.examined += len(page)


async def _drop_tasks(run: LifecycleRun, tasks: Sequence[Task], before: datetime) -> bool:
    """Drop tasks in one transaction; return False if one of them was resumed meanwhile."""
    space = run.scope.space("checkpoints")
    try:
        await run.context.tasks.write(*(DropTask(space, task.id, expired_by=before) for task in tasks))
    except Conflict:
        return False
    return True
