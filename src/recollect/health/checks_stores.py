"""Checks of the stores: versions, indexes, disks and servers. Known vulnerabilities are in a dated table."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import metadata, resources
from typing import Any

from recollect.errors import RecollectError, SchemaTooNew, SchemaTooOld, StoreCorrupt
from recollect.health.context import OPEN_FIRST_FIX, CheckContext, Checklist, FixFunction, StoreTarget, check_each_store
from recollect.health.report import CheckResult, make_failure, make_pass, make_warning
from recollect.stores.base import Log, Records
from recollect.stores.health import RepairTarget, ResourceUsage, StoreStats
from recollect.stores.writes import Model
from recollect.types import Scope
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

_DATA_DAMAGED = make_warning("not checked: the data itself is damaged", "see disk.integrity")

CHECKS = Checklist()


@dataclass(frozen=True, slots=True)
class Advisory:
    """A published vulnerability of a version that is in use."""

    component: str
    version: str
    cve: str
    summary: str
    fixed_in: str
    """The first fixed version of the same branch, or of the next; empty if there is none."""

    @property
    def fix(self) -> str:
        if not self.fixed_in:
            return f"restrict access to {self.component}: no release fixed {self.cve} on {TABLE_DATE}"
        return f"upgrade {self.component} to {self.fixed_in} or newer"


@cache
def _load_table() -> Mapping[str, Any]:
    text = resources.files(__package__).joinpath("advisories.json").read_text("utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


TABLE_DATE = str(_load_table()["as_of"])


def find_advisories(versions: Mapping[str, str]) -> tuple[dict[str, str], list[Advisory]]:
    """Return the checked versions, including installed packages of the table, and their advisories."""
    checked = {**versions, **_list_installed_versions()}
    found = [
        Advisory(name, version, entry["cve"], entry["what"], _find_fixed_version(entry, version))
        for entry in _load_table()["holes"]
        for name, version in checked.items()
        if entry["component"] == name and _is_affected(entry, version)
    ]
    return checked, found


def _list_installed_versions() -> dict[str, str]:
    """Return the versions of the packages of the table that are installed."""
    found = {}
    for name in dict.fromkeys(entry["component"] for entry in _load_table()["holes"] if entry.get("package")):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _is_affected(entry: Mapping[str, Any], version: str) -> bool:
    parsed = _parse_version(version)
    if parsed < _parse_version(entry.get("since", "0")):
        return False
    if "last" in entry:
        return parsed <= _parse_version(entry["last"])
    for fixed in entry["fixed"]:
        if _is_same_branch(fixed, parsed):
            return parsed < _parse_version(fixed)
    return parsed < max(map(_parse_version, entry["fixed"]))


def _find_fixed_version(entry: Mapping[str, Any], version: str) -> str:
    parsed = _parse_version(version)
    fixed: list[str] = entry.get("fixed", [])
    same_branch = [candidate for candidate in fixed if _is_same_branch(candidate, parsed)]
    later = [candidate for candidate in fixed if parsed < _parse_version(candidate)]
    return next(iter((*same_branch, *later)), "")


def _is_same_branch(fixed: str, version: tuple[int, ...]) -> bool:
    """Return True if all numbers but the last of the fixed version agree."""
    branch = _parse_version(fixed)[:-1]
    return version[: len(branch)] == branch


def _parse_version(version: str) -> tuple[int, ...]:
    """Return the leading numbers: `9.1.2.post2` is 9, 1, 2."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else (0,)


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
    versions: dict[str, str] = {}
    for target in context.targets:
        versions |= target.stats.versions if target.stats is not None else {}
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
            detail = f"the clocks of the server and this machine differ by {skew.total_seconds():,.1f} s"
            return CheckResult("fail" if skew > _FAIL_CLOCK_SKEW else "warn", detail, _CLOCK_FIX)
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
    opened = [target for target in context.targets if target.store is not None]
    errors = [str(target.error) for target in opened if isinstance(target.error, StoreCorrupt)]
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
        detail = f"the write-ahead log has grown to {format_size(stats.log_bytes)}"
        fix = f"recollect doctor --fix --store {target.location}; a long-running reader prevents its truncation"
        return CheckResult("fail" if stats.log_bytes > _HUGE_LOG else "warn", detail, fix)
    return make_pass(f"the write-ahead log takes {format_size(stats.log_bytes)}")


@CHECKS.add_store_check("disk.unused", "Little space is unused", "no store here reports its unused space")
def check_unused_space(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """Unused pages are copied with every backup and read by every scan."""
    if stats.unused_ratio is None:
        return None
    share = f"{stats.unused_ratio:.0%} of {format_size(stats.bytes)} is unused"
    if stats.unused_ratio > _MAX_UNUSED_SHARE and stats.bytes > _MIN_VACUUM_BYTES:
        fix = "run VACUUM, and check that autovacuum is on"
        if target.file is not None and stats.encrypted:  # the sqlite3 command cannot open it
            copy = f"recollect migrate --from {target.file} --to NEW_FILE"
            fix = f"stop the programs that use it, run {copy}, and use NEW_FILE"
        elif target.file is not None:
            fix = f"with every program that uses it stopped: sqlite3 {target.file} vacuum"
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
        fix = f"raise the server's limit of {fullest.resource}, or use less"
        is_full = _compute_share(fullest) > _FAIL_USED
        return CheckResult("fail" if is_full else "warn", f"{_format_usage(fullest)} in use", fix)
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


# --- Indexes ---


@CHECKS.add("index.model", "The embedding model matches the store")
async def check_embedding_model(context: CheckContext) -> CheckResult:
    """Vectors of two models cannot be compared: a store that is opened with another model refuses to work."""
    embedding = context.embedding
    if embedding is None:
        error = context.bad_embedding or RecollectError("there is no embedding model")
        return make_failure(str(error), "recollect setup, or set RECOLLECT_EMBEDDER")

    async def inspect(target: StoreTarget, stats: StoreStats) -> CheckResult | None:
        if not isinstance(target.store, Records):
            return None
        stored = await target.store.model()
        if stored is None:
            return make_pass(f"no vectors are stored yet; the model is {embedding.name}")
        if stored.name == embedding.name:
            await embedding.resolve_dimension(stored.dim)
        if stored != Model(embedding.name, embedding.dim, embedding.fingerprint):
            return make_failure(
                f"the store has vectors of {stored.name} ({stored.dim}), but the model is "
                f"{embedding.name} ({embedding.dim})",
                f"recollect reembed {embedding.name} --store {target.location}, or RECOLLECT_EMBEDDER={stored.name}",
            )
        return make_pass(f"the store has vectors of this model: {stored.name}, {stored.dim} dimensions")

    return await check_each_store(context, inspect, "no store here holds vectors")


@CHECKS.add_store_check("index.vectors", "Every item has its vectors", "no store here holds vectors")
async def check_vectors(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """An item without vectors is never found by its meaning. A vector without an item may be data that was deleted."""
    if not isinstance(target.store, Records):
        return None
    report = await context.get_integrity_report(target)
    if report.missing_vectors is None:
        return _DATA_DAMAGED if report.faults else None
    model = context.embedding.name if context.embedding is not None else context.settings.embedder
    fix = f"recollect reembed {model} --store {target.location}"
    if report.missing_vectors:
        return make_failure(f"{format_count(report.missing_vectors, 'item has', 'items have')} no vector", fix)
    if report.orphaned_vectors:
        count = format_count(report.orphaned_vectors, "vector belongs", "vectors belong")
        return make_failure(f"{count} to no item", fix)
    return make_pass("every fact and procedure has its vectors, and every vector has its item")


async def rebuild_full_text_index(context: CheckContext) -> None:
    for target in context.targets:
        if target.store is not None and target.stats is not None:
            report = await context.get_integrity_report(target)
            if report.missing_terms or report.orphaned_terms:
                await target.store.repair("words")


@CHECKS.add_store_check(
    "index.words", "The full-text index is complete", "no store here has a full-text index", fix=rebuild_full_text_index
)
async def check_full_text_index(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """Names, numbers and codes are found by the full-text index only."""
    if not isinstance(target.store, Records):
        return None
    report = await context.get_integrity_report(target)
    if report.missing_terms is None:
        return _DATA_DAMAGED if report.faults else None
    if report.missing_terms or report.orphaned_terms:
        missing = format_count(report.missing_terms, "item is", "items are")
        stale = format_count(report.orphaned_terms or 0, "index entry is", "index entries are")
        return make_failure(
            f"{missing} missing from the full-text index, and {stale} stale",
            f"recollect doctor --fix --store {target.location}",
        )
    return make_pass("every item is in the full-text index, and no index entry is stale")


async def update_turn_index(context: CheckContext) -> None:
    store = context.get_target("conversation").store
    if context.turn_index is not None and isinstance(store, Log):
        for owner in await _list_owners(store):
            await context.turn_index.catch_up(owner)


@CHECKS.add("index.turns", "Conversations are indexed", fix=update_turn_index)
async def check_turn_index(context: CheckContext) -> CheckResult:
    """Conversations are indexed in the background. If that was interrupted, searches miss the latest turns."""
    index, target = context.get_target("semantic"), context.get_target("conversation")
    if index.error is not None:
        return make_warning(index.not_checked_reason, OPEN_FIRST_FIX)
    if target.error is not None or not isinstance(target.store, Log):
        return make_warning(target.not_checked_reason, OPEN_FIRST_FIX)
    if context.turn_index is None:
        return make_warning("not checked: there is no embedding model", "recollect setup")
    owners = await _list_owners(target.store)
    missing = [count for owner in owners if (count := await context.turn_index.count_behind(owner))]
    if missing:
        entries = format_count(sum(missing), "entry", "entries")
        return make_warning(
            f"{entries} of {format_count(len(missing), 'conversation owner')} are not indexed yet",
            f"recollect lifecycle --all-users --store {target.location}",
        )
    if not owners:
        return make_pass("there are no conversations yet")
    return make_pass(f"the conversations of {format_count(len(owners), 'owner')} are indexed")


async def _list_owners(log: Log) -> list[Scope]:
    return [
        Scope(tenant, owner.user, owner.agent)
        for tenant in await log.tenants()
        for owner in await log.owners(tenant)
        if owner.tier == "conversation"
    ]


@CHECKS.add_store_check(
    "index.nearest", "Large spaces have a vector index", "vectors are searched exactly, without an index"
)
def check_hnsw_indexes(context: CheckContext, target: StoreTarget, stats: StoreStats) -> CheckResult | None:
    """Without a valid index, every search reads all vectors of the space."""
    if stats.vector_indexes is None:
        return None
    large, invalid = stats.vector_indexes
    if invalid:
        return make_warning(
            f"{format_count(invalid, 'large space')} of {large:,} have no valid HNSW index",
            "recall once in each: the index is built in the background, and an invalid one is rebuilt",
        )
    return make_pass(f"{format_count(large, 'space is', 'spaces are')} large enough for an HNSW index, and indexed")
