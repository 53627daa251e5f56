"""Checks of the embedding model, the vectors, the full-text index, the turn index and the vector indexes."""

from __future__ import annotations

from recollect.errors import RecollectError
from recollect.health.context import (
    OPEN_FIRST_FIX,
    CheckContext,
    Checklist,
    StoreTarget,
    check_each_store,
)
from recollect.health.report import CheckResult, make_failure, make_pass, make_warning
from recollect.stores.base import Log, Records
from recollect.stores.health import StoreStats
from recollect.stores.writes import Model
from recollect.types import Scope
from recollect.validation import format_count

_DATA_DAMAGED = make_warning("not checked: the data itself is damaged", "see disk.integrity")

CHECKS = Checklist()


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
