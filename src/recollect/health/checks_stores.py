"""Checks of the stores, their disks and their servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from recollect.errors import SchemaTooNew, SchemaTooOld, StoreCorrupt
from recollect.health.advisories import TABLE_DATE, find_advisories
from recollect.health.context import CheckContext, Checklist, FixFunction, StoreTarget, check_each_store
from recollect.health.report import CheckResult, make_failure, make_pass, make_warning
from recollect.stores.health import RepairTarget, ResourceUsage, StoreStats
from recollect.validation import format_count, format_size

_MIB, _GIB = 1 << 20, 1 << 30

# This code is newer, so a clock that says an earlier time is wrong.
_EARLIEST_PLAUSIBLE_TIME = datetime(2025, 1, 1, tzinfo=UTC)
_WARN_CLOCK_SKEW, _FAIL_CLOCK_SKEW = timedelta(seconds=2), timedelta(seconds=60)
_MAX_AHEAD = timedelta(minutes=2)
_CLOCK_FIX = "timedatectl set-ntp true"

_LOW_SPACE, _CRITICAL_SPACE = 256 * _MIB, 64 * _MIB
_LARGE_LOG, _HUGE_LOG = 64 * _MIB, _GIB
# In a smaller file, unused space does not matter.
_MIN_VACUUM_BYTES, _MAX_UNUSED_SHARE = 64 * _MIB, 0.25
_MAX_FAULT_LENGTH = 160
_RESTORE_FIX = (
    "stop what writes to it, then recollect restore BACKUP --to NEW_FILE --receipts OLD_FILE.erasures.jsonl; "
    "see docs/howto/operate.md"
)

_WARN_USED, _FAIL_USED = 0.8, 0.95

CHECKS = Checklist()


# --- Stores ---


@CHECKS.add("store.opens", "Every store opens")
async def check_stores_open(context: CheckContext) -> CheckResult:
    """Nothing can be remembered or recalled in a store that does not open."""
    errors = [str(target.error) for target in context.targets if target.error is not None and not _is_damaged(target)]
    if errors:
        return make_failure("; ".join(errors), "fix the reported error, then run recollect doctor")
    return make_pass(f"{', '.join(target.name for target in context.targets)}: open and answering")


@CHECKS.add("store.schema", "The schema is current")
async def check_schema(context: CheckContext) -> CheckResult:
    """An older release cannot open a newer store. This matters when the program is rolled back."""
    fix = "pip install --upgrade recollect-memory"
    errors = [str(target.error) for target in context.targets if isinstance(target.error, SchemaTooNew)]
    if errors:
        return make_failure("; ".join(errors), fix)
    older = [target for target in context.targets if isinstance(target.error, SchemaTooOld)]
    if older:
        fix = f"stop every program that uses it, then open it: recollect stats --store {older[0].location}"
        return make_warning("; ".join(str(target.error) for target in older), fix)

    def inspect(target: StoreTarget, stats: StoreStats) -> CheckResult | None:
        if stats.schema is None:
            return None
        found, newest = stats.schema
        if found > newest:
            return make_failure(f"it has schema {found}, and this release supports up to {newest}", fix)
        if found < newest:
            return make_warning(f"it has schema {found}, and the newest is {newest}", "open it once with this release")
        backups = " and ".join(str(file) for file in stats.files if ".before-schema-" in file.name)
        return make_pass(f"schema {found}, the newest{backups and f'; delete {backups} if you need no way back'}")

    return await check_each_store(context, inspect, "each record carries the version of its own format")


@CHECKS.add_store_check("store.durability", "Data survives a restart", "there is no store")
def check_durability(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult:
    """Users expect that acknowledged writes are there tomorrow."""
    tiers = ", ".join(target.tiers)
    if stats.durability == "nothing":
        return make_failure(f"{tiers}: lost when the process ends", "store them in a file or on a server")
    # Weak settings of a server are reported by store.persistence.
    return make_pass(f"{tiers}: survive {stats.durability}")


@CHECKS.add_store_check(
    "store.persistence", "Servers persist acknowledged writes", "a memory:// store persists nothing"
)
def check_persistence(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """A setting of the server decides whether a power failure loses nothing, a second of writes, or everything."""
    risks = stats.durability_risks
    if stats.durability == "nothing":
        return None
    if not risks:
        return make_pass(f"{stats.engine} persists acknowledged writes")
    make_result = make_failure if any(risk.is_severe for risk in risks) else make_warning
    return make_result("; ".join(risk.problem for risk in risks), "; ".join(risk.fix for risk in risks))


@CHECKS.add("store.versions", "No version has a known vulnerability")
async def check_versions(context: CheckContext) -> CheckResult:
    """Published vulnerabilities are exploited within days."""
    versions = {
        name: version
        for target in context.targets
        if target.stats is not None
        for name, version in target.stats.versions.items()
    }
    checked, advisories = find_advisories(versions)
    if advisories:
        return make_warning(
            "; ".join(f"{found.component} {found.version}: {found.cve}, {found.summary}" for found in advisories),
            "; ".join(dict.fromkeys(found.fix for found in advisories)),
        )
    names = ", ".join(f"{name} {version}" for name, version in checked.items())
    return make_pass(f"no known vulnerability of {names}, in the table of {TABLE_DATE}")


@CHECKS.add("store.clock", "The clock is correct")
async def check_clock(context: CheckContext) -> CheckResult:
    """Leases, lifetimes and validity depend on the clock. A wrong clock hides data."""
    now = context.now
    if now < _EARLIEST_PLAUSIBLE_TIME:
        return make_failure(f"the clock of this machine says {now:%Y-%m-%d}", f"set the clock: {_CLOCK_FIX}")

    def inspect(target: StoreTarget, stats: StoreStats) -> CheckResult:
        skew = abs(stats.now - now) if stats.now is not None else timedelta()
        if skew > _WARN_CLOCK_SKEW:
            make_result = make_failure if skew > _FAIL_CLOCK_SKEW else make_warning
            return make_result(
                f"the clocks of the server and this machine differ by {skew.total_seconds():,.1f} s", _CLOCK_FIX
            )
        if stats.newest is not None and stats.newest > now + _MAX_AHEAD:
            ahead = timedelta(seconds=round((stats.newest - now).total_seconds()))
            return make_warning(f"its newest data is {ahead} ahead of the clock of this machine", _CLOCK_FIX)
        return make_pass(f"the clock says {now:%Y-%m-%d %H:%M} UTC, and agrees with the store")

    return await check_each_store(context, inspect, "there is no store")


def _is_damaged(target: StoreTarget) -> bool:
    """Return True if store.schema or disk.integrity reports the error of the store."""
    return isinstance(target.error, SchemaTooNew | SchemaTooOld) or (
        target.store is not None and isinstance(target.error, StoreCorrupt)
    )


# --- Disk ---


@CHECKS.add("disk.integrity", "The data is intact")
async def check_integrity(context: CheckContext) -> CheckResult:
    """Backups of a damaged store are damaged, too. If damage is found early, a recent backup is intact."""
    errors = [
        str(target.error)
        for target in context.targets
        if target.store is not None and isinstance(target.error, StoreCorrupt)
    ]
    if errors:
        return make_failure("; ".join(errors), _RESTORE_FIX)

    async def inspect(target: StoreTarget, stats: StoreStats) -> CheckResult:
        faults = (await context.get_integrity_report(target)).faults
        if faults:
            first = " ".join(faults[0].split())[:_MAX_FAULT_LENGTH]
            return make_failure(f"{format_count(len(faults), 'fault')}, the first: {first}", _RESTORE_FIX)
        return make_pass("all pages, counts and checksums are correct")

    return await check_each_store(context, inspect, "there is no store")


@CHECKS.add_store_check("disk.space", "The disk has free space", "the disk belongs to a server and its administrator")
async def check_disk_space(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """On a full disk nothing can be written, and no copy can be made."""
    if not stats.files:
        return None
    free = await asyncio.to_thread(context.free_bytes, stats.files[0])
    sizes = f"{format_size(free)} free, and the store takes {format_size(stats.bytes)}"
    fix = f"free space in {stats.files[0].parent}, or move the store to a larger disk"
    if free < _CRITICAL_SPACE:
        return make_failure(sizes, fix)
    if free < _LOW_SPACE or free < stats.bytes:
        return make_warning(f"{sizes}: too little for a copy of the store", fix)
    return make_pass(sizes)


def repair_stores(part: RepairTarget, is_needed: Callable[[StoreStats], bool]) -> FixFunction:
    """Return a fix that repairs a part of each store that needs it."""

    async def repair(context: CheckContext) -> None:
        for target in context.targets:
            if target.store is not None and target.stats is not None and is_needed(target.stats):
                await target.store.repair(part)

    return repair


@CHECKS.add_store_check(
    "disk.ballast",
    "Disk space is reserved for deletions",
    "only SQLite files have a reserve file",
    fix=repair_stores("ballast", lambda stats: stats.has_reserve is False),
)
def check_ballast(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """On a full disk, deletions are written to the reserved space."""
    if stats.has_reserve is None:
        return None
    if not stats.has_reserve:
        return make_warning("the reserve file is missing", f"recollect doctor --fix --store {target.location}")
    return make_pass("1 MiB is reserved for deletions on a full disk")


@CHECKS.add_store_check(
    "disk.log",
    "The write-ahead log is short",
    "servers truncate their own logs",
    fix=repair_stores("log", lambda stats: (stats.log_bytes or 0) > _LARGE_LOG),
)
def check_write_ahead_log(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """Every read searches the log, and the log takes disk space."""
    if stats.log_bytes is None:
        return None
    if stats.log_bytes > _LARGE_LOG:
        make_result = make_failure if stats.log_bytes > _HUGE_LOG else make_warning
        return make_result(
            f"the write-ahead log has grown to {format_size(stats.log_bytes)}",
            f"recollect doctor --fix --store {target.location}; a long-running reader prevents its truncation",
        )
    return make_pass(f"the write-ahead log takes {format_size(stats.log_bytes)}")


@CHECKS.add_store_check("disk.unused", "Little space is unused", "no store here reports its unused space")
def check_unused_space(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """Unused pages are copied with every backup and read by every scan."""
    if stats.unused_ratio is None:
        return None
    share = f"{stats.unused_ratio:.0%} of {format_size(stats.bytes)} is unused"
    if stats.unused_ratio > _MAX_UNUSED_SHARE and stats.bytes > _MIN_VACUUM_BYTES:
        fix = "run VACUUM, and check that autovacuum is on"
        if target.file is not None:
            fix = f"with every program that uses it stopped: sqlite3 {target.file} vacuum"
            if stats.encrypted:  # the sqlite3 command cannot open it
                fix = (
                    f"stop the programs that use it, run recollect migrate --from {target.file} --to NEW_FILE, "
                    "and use NEW_FILE"
                )
        return make_warning(share, fix)
    return make_pass(share)


@CHECKS.add_store_check("disk.locks", "No transaction blocks writers", "no other process can open these stores")
def check_locks(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """A program that does not end its transaction blocks all writers."""
    if stats.blocked_by is None:
        return None
    if stats.blocked_by:
        fix = "find the session in pg_stat_activity, and end it with pg_terminate_backend"
        if target.file is not None:
            fix = f"find the process with: fuser {target.file}"
        return make_warning(stats.blocked_by, fix)
    return make_pass("no open transaction blocks writers")


# --- Capacity ---


@CHECKS.add_store_check("capacity.server", "Servers have connections and memory left", "no store is on a shared server")
def check_server_capacity(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """A server without connections or memory refuses requests."""
    if not stats.resource_usage:
        return None
    fullest = max(stats.resource_usage, key=_compute_share)
    unlimited = [usage for usage in stats.resource_usage if not usage.limit]
    if _compute_share(fullest) > _WARN_USED:
        make_result = make_failure if _compute_share(fullest) > _FAIL_USED else make_warning
        return make_result(
            f"{_format_usage(fullest)} in use", f"raise the server's limit of {fullest.resource}, or use less"
        )
    if unlimited:
        return make_warning(
            f"{unlimited[0].resource} has no limit: the system kills the server when it runs out",
            "CONFIG SET maxmemory to less than the memory of the machine",
        )
    return make_pass(f"{', '.join(map(_format_usage, stats.resource_usage))} in use")


@CHECKS.add_store_check(
    "capacity.cache", "The vectors of a scope fit into the cache", "the server caches vectors itself"
)
def check_vector_cache(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """Reading vectors from disk for each search takes a hundred times as long."""
    if stats.largest_space is None:
        return None
    cache = context.settings.cache_mib << 20
    sizes = f"the vectors of the largest scope take {format_size(stats.largest_space)} of {format_size(cache)}"
    if stats.largest_space > cache:
        enough = -(-stats.largest_space // _MIB) * 2
        return make_warning(f"{sizes}: each search reads them from disk", f"RECOLLECT_CACHE_MIB={enough}")
    return make_pass(sizes)


def _compute_share(usage: ResourceUsage) -> float:
    return usage.used / usage.limit if usage.limit else 0.0


def _format_usage(usage: ResourceUsage) -> str:
    format_value = format_size if usage.resource == "memory" else "{:,}".format
    limit = f" of {format_value(usage.limit)}" if usage.limit else ""
    return f"{format_value(usage.used)}{limit} {usage.resource}"
