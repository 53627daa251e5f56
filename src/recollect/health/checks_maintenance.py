"""Checks of backups, the lifecycle, erasures, the quarantine, growth and long-running tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta

from recollect.clock import from_micros
from recollect.erasure.ledger import find_chain_faults, read_receipt_file, update_receipt_file
from recollect.errors import StoreCorrupt
from recollect.health.context import OPEN_FIRST_FIX, CheckContext, Checklist, StoreTarget
from recollect.health.report import CheckResult, make_failure, make_pass, make_warning
from recollect.stores.base import Records, Store, Tasks
from recollect.stores.erasure import ErasureRecord, ErasureStore
from recollect.stores.health import StoreStats
from recollect.stores.writes import Task, TaskStatus
from recollect.tiers.lifecycle_notes import CLOCK_NOTE
from recollect.types import Space
from recollect.validation import format_count, format_size

_DAY, _WEEK = timedelta(days=1), timedelta(days=7)
# Fewer items do not show a trend.
_MIN_ITEMS = 1000
_WARN_BEFORE_FULL, _FAIL_BEFORE_FULL = timedelta(days=30), timedelta(days=7)
_MAX_HISTORY_SHARE = 0.5
# The lifecycle may run per user or for all users. The notes of this many users are enough to tell when it ran.
_MAX_SPACES_READ = 1000

_TASK_PAGE_SIZE = 500
_RUNNING_STATUSES: tuple[TaskStatus, ...] = ("running", "compensating")
# A worker takes over an expired lease within seconds.
_ABANDONED_AFTER, _MAX_LEASE = timedelta(minutes=5), timedelta(days=1)

_NO_TASKS = "there is no store of tasks"

CHECKS = Checklist()


# --- Maintenance ---


@CHECKS.add_store_check("upkeep.backup", "The backup is recent", "backups are made by the server's own tools")
def check_backup(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """A disk failure loses everything that was stored since the last backup."""
    if not stats.uses_backup_method:
        return None
    fix = f"recollect backup NEW_FILE --store {target.location}"
    if stats.newest is None:
        return make_pass("the store is empty")
    if stats.last_backup_at is None:
        return make_warning("no backup found", fix)
    age = context.now - stats.last_backup_at
    if age > _WEEK and stats.newest > stats.last_backup_at:
        return make_warning(f"the last backup is {age.days} days old, and data was added since", fix)
    return make_pass(f"the last backup was made at {stats.last_backup_at:%Y-%m-%d %H:%M} UTC")


@CHECKS.add("upkeep.lifecycle", "The lifecycle runs")
async def check_lifecycle(context: CheckContext) -> CheckResult:
    """It promotes, merges, decays and drops. Without it, memory grows and its results get worse."""
    target = context.get_target("semantic")
    if target.stats is None or not isinstance(target.store, Records):
        return make_warning(target.not_checked_reason, OPEN_FIRST_FIX)
    now, last = context.now, await _find_last_run(target.store)
    oldest = [other.stats.oldest for other in context.targets if other.stats is not None and other.stats.oldest]
    if not oldest or now - min(oldest) < _DAY:
        return make_pass("there is no data older than a day")
    fix = f"recollect lifecycle --all-users --store {target.location}, each night; or memory.lifecycle.start(3600)"
    if last is None:
        return make_warning("the lifecycle has never run", fix)
    if now - last > _WEEK:
        return make_warning(f"the lifecycle last ran {(now - last).days} days ago", fix)
    return make_pass(f"the lifecycle last ran at {last:%Y-%m-%d %H:%M} UTC")


async def _find_last_run(store: Records) -> datetime | None:
    spaces = [count.space for count in await store.spaces() if count.space.tier == "lifecycle"][:_MAX_SPACES_READ]
    notes = [note for space in spaces for note in await store.get(space, CLOCK_NOTE)]
    times = [at for note in notes if isinstance(at := note.metadata.get("at"), int)]
    return from_micros(max(times)) if times else None


async def rewrite_receipt_files(context: CheckContext) -> None:
    for store in context.list_stores(ErasureStore):  # type: ignore[type-abstract]
        result = await _check_receipt_file(store, await store.ledger())
        if result is not None and result.status == "warn":
            await update_receipt_file(store)


@CHECKS.add("upkeep.erasures", "Erasures are complete", fix=rewrite_receipt_files)
async def check_erasures(context: CheckContext) -> CheckResult:
    """A user was promised that no data is left, and a law may set a deadline."""
    stores = context.list_stores(ErasureStore)  # type: ignore[type-abstract]
    if context.unopened:
        return make_warning("; ".join(context.unopened), OPEN_FIRST_FIX)
    if not stores:
        return make_pass("not applicable: no store here has a ledger of erasures")
    pending: dict[str, ErasureRecord] = {}
    completed = 0
    file_warning: CheckResult | None = None
    for store in stores:
        rows = await store.ledger()
        faults = find_chain_faults([row.receipt for row in rows if row.receipt is not None])
        if faults:
            return make_failure(f"the chain of receipts is broken: {faults[0]}", "restore the store from a backup")
        file_result = await _check_receipt_file(store, rows)
        if file_result is not None and file_result.status == "fail":
            return file_result
        file_warning = file_warning or file_result
        pending |= {row.id: row for row in rows if row.phase != "complete"}
        completed = max(completed, sum(row.phase == "complete" for row in rows))
    if not pending:
        return file_warning or make_pass(f"{format_count(completed, 'erasure')} complete, none pending")
    age = max(context.now - min(row.requested_at for row in pending.values()), timedelta())
    count = format_count(len(pending), "erasure is", "erasures are")
    detail = f"{count} not complete, the oldest for {age.total_seconds() / 3600:,.1f} h"
    return CheckResult("fail" if age > _DAY else "warn", detail, "recollect lifecycle")


async def _check_receipt_file(store: ErasureStore, rows: Sequence[ErasureRecord]) -> CheckResult | None:
    """Return the problem of the receipt file beside a store; None if there is none."""
    path = store.receipts
    if path is None:
        return None
    fix = f"mv {path} ELSEWHERE, then recollect doctor --fix, which rewrites it from the ledger"
    try:
        file = await asyncio.to_thread(read_receipt_file, path)
    except StoreCorrupt as error:
        return make_failure(str(error), fix)
    if file is not None and rows and file.salt != await store.salt():
        return make_failure(f"{path} is the receipt file of another store", fix)
    ids = {erasure.id for erasure in file.erasures} if file is not None else set()
    missing = sum(row.id not in ids for row in rows)
    if not missing:
        return None
    return make_warning(
        f"{path} lacks {format_count(missing, 'erasure')}: a restored backup would contain the erased data again",
        "recollect doctor --fix",
    )


@CHECKS.add("upkeep.quarantine", "The quarantine is empty")
async def check_quarantine(context: CheckContext) -> CheckResult:
    """Texts that look like prompt injection wait for a review. Some of them may be wanted."""
    stores = context.list_stores(Records)  # type: ignore[type-abstract]
    spaces = [count for store in stores for count in await store.spaces()]
    waiting = sum(count.items for count in spaces if count.space.tier == "quarantine")
    if waiting:
        return make_warning(
            f"{format_count(waiting, 'text is', 'texts are')} in quarantine",
            "recollect quarantine list --user NAME, for each user, then approve or drop",
        )
    if context.unopened:
        return make_warning("; ".join(context.unopened), OPEN_FIRST_FIX)
    return make_pass("the quarantine is empty")


@CHECKS.add_store_check("upkeep.growth", "The disk has space for the growth", "the stores are empty")
async def check_growth(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """The day when the disk is full can be predicted a month before."""
    if stats.oldest is None and not stats.items:
        return None
    growth = f"{format_count(stats.recent_items, 'item')} of {stats.items:,} were added in the last 7 days"
    if not stats.files or stats.items < _MIN_ITEMS or not stats.recent_items:
        return make_pass(growth)
    weekly = stats.bytes / stats.items * stats.recent_items
    free = await asyncio.to_thread(context.free_bytes, stats.files[0])
    left = _WEEK * (free / weekly)
    if left > _WARN_BEFORE_FULL:
        return make_pass(f"{growth}, about {format_size(weekly)} a week")
    detail = f"{growth}: at {format_size(weekly)} a week the disk is full in {left.days} days"
    fix = "store less, shorten lifetimes, or move the store to a larger disk"
    return CheckResult("fail" if left < _FAIL_BEFORE_FULL else "warn", detail, fix)


@CHECKS.add_store_check("upkeep.history", "Past values are the smaller part", "the stores are empty")
def check_history(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """Each superseded value of a key is kept. A key that changes by the minute outnumbers all others."""
    if not stats.items:
        return None
    share = f"{stats.superseded:,} of {stats.items:,} items are past values"
    if stats.superseded / stats.items > _MAX_HISTORY_SHARE and stats.items >= _MIN_ITEMS:
        return make_warning(share, "find the keys that change often; give values that change by the minute expires_at")
    return make_pass(share)


# --- Tasks ---


@CHECKS.add_store_check("tasks.leases", "Leases of running tasks are renewed", _NO_TASKS, tier="checkpoints")
async def check_leases(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """A task whose worker has died waits until another worker takes it over."""
    now, abandoned, leased = context.now, 0, 0
    async for _, task in _iter_tasks(target.store, *_RUNNING_STATUSES):
        if task.owner is None or task.renewed_at is None or task.lease_ttl is None:
            continue
        leased += 1
        abandoned += now - (task.renewed_at + task.lease_ttl) > _ABANDONED_AFTER or task.lease_ttl > _MAX_LEASE
    if abandoned:
        return make_warning(
            f"the lease of {format_count(abandoned, 'task')} is not renewed",
            "recollect tasks list --status running, then run these tasks again, which takes over the lease",
        )
    return make_pass(f"{format_count(leased, 'task is', 'tasks are')} running, with renewed leases")


@CHECKS.add_store_check("tasks.poisoned", "No task has failed at every attempt", _NO_TASKS, tier="checkpoints")
async def check_poisoned_tasks(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """Such a task is not retried until it is retried by hand."""
    poisoned = [task async for _, task in _iter_tasks(target.store, "poisoned")]
    if poisoned:
        return make_failure(
            f"{format_count(len(poisoned), 'task')} failed at every attempt",
            "recollect tasks list --status poisoned, fix the cause, then recollect tasks retry ID",
        )
    return make_pass("no task has failed at every attempt")


@CHECKS.add_store_check("tasks.unknown", "Every step has a known outcome", _NO_TASKS, tier="checkpoints")
async def check_unknown_outcomes(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """A step that may have run must not be repeated without a check of its effects."""
    store, unknown = target.store, 0
    assert isinstance(store, Tasks)
    async for space, task in _iter_tasks(store, "ready", *_RUNNING_STATUSES):
        if task.owner is None:  # the owner of a lease resolves it
            unknown += any(step.status == "started" for step in await store.steps(space, task.id))
    if unknown:
        return make_warning(
            f"{format_count(unknown, 'task has', 'tasks have')} a step that was started, and its outcome is unknown",
            "recollect tasks show ID, look for its idempotency key, then checkpoints.skip or recollect tasks retry ID",
        )
    return make_pass("no step has an unknown outcome")


async def _iter_tasks(store: Store | None, *statuses: TaskStatus) -> AsyncIterator[tuple[Space, Task]]:
    assert isinstance(store, Tasks)
    for tenant in await store.tenants():
        for space in await store.task_spaces(tenant):
            for status in statuses:
                after: str | None = None
                while page := await store.tasks(space, status=status, limit=_TASK_PAGE_SIZE, after=after):
                    for task in page:
                        yield space, task
                    after = page[-1].id
