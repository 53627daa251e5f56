"""Consolidation: near-duplicate facts are merged into the best of them. Merges are planned first, then applied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

import numpy as np

from recollect.errors import Conflict
from recollect.language.near_duplicates import MIN_DUPLICATE_COSINE, normalize_text
from recollect.models.embedding import Embedding, Matrix
from recollect.stores.base import Records
from recollect.stores.filters import Condition, Where
from recollect.stores.overlay import iter_pages
from recollect.stores.writes import Put, Touch, Write
from recollect.tiers.indexing import split_batches, split_passages
from recollect.types import MemoryItem, Progress, ProgressCallback, Space

_BATCH_SIZE = 500
# Keyed facts supersede each other, and turns are a record of a dialogue.
_MERGEABLE_CONDITIONS = (Condition("key", "eq", None), Condition("session", "eq", None))
# No rule distinguishes more accesses.
_MAX_COPIED_ACCESSES = 10


@dataclass(frozen=True, slots=True)
class ItemMerge:
    """Items that say the same: the survivor supersedes the others, which stay as its history."""

    survivor: str
    merged: tuple[str, ...]
    reason: str
    seen_versions: Mapping[str, int] = field(repr=False)
    """The version of each item when the merge was planned. If one has changed, the merge is skipped."""


@dataclass(frozen=True, slots=True)
class SkippedMerge:
    """A merge that was planned and not applied."""

    merge: ItemMerge
    reason: str


@dataclass(frozen=True, slots=True)
class ConsolidationReport:
    """Result of a consolidation."""

    merged: tuple[ItemMerge, ...]
    examined: int
    skipped: tuple[SkippedMerge, ...] = ()


async def plan_consolidation(
    store: Records, embedding: Embedding, space: Space, now: datetime, *, progress: ProgressCallback | None = None
) -> ConsolidationReport:
    """Return the merges of a space, without writing anything; only items whose hashes are equal are read twice."""
    families, examined = await _find_families(store, space, now, progress)
    merges: list[ItemMerge] = []
    for batch in split_batches(families, len, _BATCH_SIZE):
        found = await store.get(space, *(id for family in batch for id in family))
        items = {item.id: item for item in found if _is_open(item, now)}
        merges += await _find_merges([[items[id] for id in family if id in items] for family in batch], embedding)
    return ConsolidationReport(tuple(merges), examined)


async def apply_merges(store: Records, space: Space, merges: Iterable[ItemMerge], now: datetime) -> ConsolidationReport:
    """Apply merges, each completely or not at all; skip a merge if one of its items has changed."""
    planned, skipped = tuple(merges), list[SkippedMerge]()
    for batch in split_batches(planned, lambda merge: len(merge.seen_versions), _BATCH_SIZE):
        skipped += await _apply_batch(store, space, batch, now)
    left_out = {skip.merge.survivor for skip in skipped}
    return ConsolidationReport(tuple(merge for merge in planned if merge.survivor not in left_out), 0, tuple(skipped))


async def find_survivor(store: Records, space: Space, item: MemoryItem, now: datetime) -> MemoryItem | None:
    """Return the current item that a merged item counts as; None if it was not merged or the survivor is gone."""
    if item.superseded_by is None or item.key is not None or item.turn is not None:
        return None
    gist, seen, current = normalize_text(item.content).gist, {item.id}, item
    while current.superseded_by is not None and current.superseded_by not in seen:
        found = await store.get(space, current.superseded_by)
        # An item with another gist replaced it, so it was not a merge.
        if not found or found[0].key is not None or normalize_text(found[0].content).gist != gist:
            return None
        current = found[0]
        seen.add(current.id)
    return current if _is_open(current, now) else None


async def find_merged_items(store: Records, space: Space, item: MemoryItem) -> list[MemoryItem]:
    """Return the items that were merged into this one, directly or through other items."""
    family = {item.id, *item.derived_from}
    return [merged for merged in await store.get(space, *item.derived_from) if merged.superseded_by in family]


def combine_items(survivor: MemoryItem, others: Sequence[MemoryItem]) -> MemoryItem:
    """Return the survivor of a merge with what it takes from the others: metadata only if they are trusted as much."""
    foremost = max((survivor, *others), key=lambda item: item.importance)
    trusted = [other.metadata for other in reversed(others) if other.trust >= survivor.trust]
    metadata = {key: value for given in (*trusted, survivor.metadata) for key, value in given.items()}
    starts = [item.valid_from for item in (survivor, *others) if item.valid_from is not None]
    origins = dict.fromkeys(id for item in (survivor, *others) for id in (item.id, *item.derived_from))
    return replace(
        survivor,
        metadata=MappingProxyType(metadata) if metadata else survivor.metadata,
        importance=foremost.importance,
        decayed_at=foremost.decayed_at,
        valid_from=min(starts) if survivor.valid_from is not None else None,
        pinned=survivor.pinned or any(other.pinned for other in others),
        derived_from=tuple(id for id in origins if id != survivor.id),
    )


async def _find_families(
    store: Records, space: Space, now: datetime, progress: ProgressCallback | None
) -> tuple[list[list[str]], int]:
    """Return the ids of items with equal hashes, and the number of items."""
    where = Where(space, live_at=now, conditions=_MERGEABLE_CONDITIONS)
    total = sum(count.items for count in await store.spaces(space.tenant) if count.space == space) if progress else 0
    examined = 0
    first_ids: dict[int, str] = {}
    families: dict[int, list[str]] = {}
    async for page in iter_pages(store, where):
        hashes = await asyncio.to_thread(lambda items: [hash(_family_key(item)) for item in items], page)
        for item, family in zip(page, hashes, strict=True):
            first_id = first_ids.setdefault(family, item.id)
            if first_id != item.id:
                families.setdefault(family, [first_id]).append(item.id)
        examined += len(page)
        if progress is not None:
            progress(Progress("consolidating", examined, max(total, examined)))
    return list(families.values()), examined


def _family_key(item: MemoryItem) -> tuple[Any, ...]:
    """Return the gist of an item, with what gives it another meaning: `I` has a source, and `tomorrow` a day."""
    text = normalize_text(item.content)
    day = item.created_at.date()
    period = {"day": day, "month": day.replace(day=1), "always": None}[text.validity]
    source = item.source if text.is_personal else None
    return item.scope.agent, item.valid_to, item.expires_at, source, period, text.gist


def _is_open(item: MemoryItem, now: datetime) -> bool:
    return item.superseded_by is None and item.key is None and item.turn is None and item.live_at(now)


async def _find_merges(families: Sequence[Sequence[MemoryItem]], embedding: Embedding) -> list[ItemMerge]:
    """Return the merges of items with equal gists. Items that differ in their words are also compared by cosine."""
    split = await asyncio.to_thread(lambda: [classes for family in families for classes in _group_by_words(family)])
    texts = [items[0].content for classes in split if len(classes) > 1 for items in classes]
    vectors = dict(zip(texts, await embedding.embed(texts), strict=True)) if texts else {}
    merges = []
    for classes in split:
        rows = np.stack([vectors[items[0].content] for items in classes]) if len(classes) > 1 else None
        merges += [
            _build_merge(items, cosine) for items, cosine in _join_similar_classes(classes, rows) if len(items) > 1
        ]
    return merges


def _group_by_words(items: Sequence[MemoryItem]) -> list[list[list[MemoryItem]]]:
    """Return the families of the items, each as classes of items with equal words, the best item and class first."""
    families: dict[tuple[Any, ...], dict[tuple[str, ...], list[MemoryItem]]] = {}
    # The survivor is the most trusted, then the most important, then the oldest item.
    for item in sorted(items, key=lambda item: (-item.trust, -item.importance, item.created_at, item.id)):
        family, words = _family_key(item), normalize_text(item.content).words
        if len(split_passages(item.content)) > 1:
            family += words
        families.setdefault(family, {}).setdefault(words, []).append(item)
    return [list(classes.values()) for classes in families.values()]


def _join_similar_classes(
    classes: list[list[MemoryItem]], vectors: Matrix | None
) -> Iterator[tuple[list[MemoryItem], float | None]]:
    """Yield the items of classes that are near the first class left, with the lowest cosine among them."""
    if vectors is None:
        yield classes[0], None
        return
    left = np.arange(len(classes))
    while len(left):
        cosines = vectors[left] @ vectors[left[0]]
        near = cosines >= MIN_DUPLICATE_COSINE
        near[0] = True
        items = [item for at in left[near] for item in classes[at]]
        yield items, float(cosines[near].min()) if near.sum() > 1 else None
        left = left[~near]


def _build_merge(items: list[MemoryItem], cosine: float | None) -> ItemMerge:
    survivor, *others = items
    how = "in the same words" if cosine is None else f"but for spelling and light words (cosine {cosine:.2f})"
    return ItemMerge(
        survivor.id,
        tuple(other.id for other in others),
        f"{len(others)} more {'item says' if len(others) == 1 else 'items say'} the same {how}",
        MappingProxyType({item.id: item.version for item in items}),
    )


async def _apply_batch(store: Records, space: Space, merges: Sequence[ItemMerge], now: datetime) -> list[SkippedMerge]:
    """Apply merges in one transaction; after a conflict, each in its own. Return those that were not applied."""
    found = await store.get(space, *(id for merge in merges for id in merge.seen_versions))
    items = {item.id: item for item in found if _is_open(item, now)}
    versions = {(id, item.version) for id, item in items.items()}
    unchanged, skipped = list[ItemMerge](), list[SkippedMerge]()
    for merge in merges:
        if versions.issuperset(merge.seen_versions.items()):
            unchanged.append(merge)
        else:
            skipped.append(SkippedMerge(merge, "one of its items was changed or forgotten meanwhile"))
    try:
        if unchanged:
            await store.write(*(write for merge in unchanged for write in _build_writes(merge, items, now)))
    except Conflict as conflict:
        if len(merges) == 1:
            return [SkippedMerge(merges[0], str(conflict))]
        for merge in unchanged:
            skipped += await _apply_batch(store, space, [merge], now)
    return skipped


def _build_writes(merge: ItemMerge, items: Mapping[str, MemoryItem], now: datetime) -> Iterator[Write]:
    survivor, others = items[merge.survivor], [items[id] for id in merge.merged]
    yield Put(item=combine_items(survivor, others), expect=survivor.version)
    for other in others:
        yield Put(item=replace(other, superseded_by=survivor.id, valid_to=now), expect=other.version)
    space = survivor.scope.space(survivor.tier)
    last_accessed = max((other.last_accessed for other in others if other.last_accessed), default=None)
    if last_accessed is not None:
        for _ in range(min(sum(other.access_count for other in others), _MAX_COPIED_ACCESSES)):
            yield Touch(space, (survivor.id,), last_accessed)
