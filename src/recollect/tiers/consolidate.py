"""Items that say the same become one: first it is planned which, then each merge is written whole."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

import numpy as np

from recollect.errors import Conflict
from recollect.inference.base import Embedding, Matrix
from recollect.stores.base import Records
from recollect.stores.ops import Put, Touch, Write
from recollect.stores.where import Condition, Where
from recollect.tiers.duplicates import ALIKE, wording
from recollect.tiers.indexing import passages
from recollect.values import MemoryItem, Space

Progress = Callable[[int, int], None]

_PAGE = 1000
_TOGETHER = 500

# A keyed fact has its own way of being replaced, and a turn is the record of what somebody said, word for word.
_MERGEABLE = (Condition("key", "eq", None), Condition("session", "eq", None))

# Enough for every rule that asks whether something was ever used.
_MOST_ACCESSES = 10


@dataclass(frozen=True, slots=True)
class Merge:
    """Items that say the same: the survivor stands for the others, which stay as its history."""

    survivor: str
    merged: tuple[str, ...]
    reason: str
    seen: Mapping[str, int] = field(repr=False)
    """The version of each item when it was read: what has changed since is not merged."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A merge that was planned and not made."""

    merge: Merge
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a consolidation would do."""

    merges: tuple[Merge, ...]
    examined: int


@dataclass(frozen=True, slots=True)
class ConsolidationReport:
    """What a consolidation did."""

    merged: tuple[Merge, ...]
    examined: int
    skipped: tuple[Skipped, ...] = ()


async def plan_consolidation(
    store: Records, embedding: Embedding, space: Space, now: datetime, *, progress: Progress | None = None
) -> Plan:
    """What could be merged, without writing anything.

    Reads the space once in pages and keeps a number and an id of each item; only items whose numbers are alike are
    read again. So the time grows with the items, however many of them share a pattern.
    """
    families, examined = await _families(store, space, now, progress)
    merges: list[Merge] = []
    for some in _in_parts(families, _TOGETHER, size=len):
        found = await store.get(space, *(id for family in some for id in family))
        items = {item.id: item for item in found if _is_open(item, now)}
        merges += await _merges([[items[id] for id in family if id in items] for family in some], embedding)
    return Plan(tuple(merges), examined)


async def apply(store: Records, space: Space, merges: Iterable[Merge], now: datetime) -> ConsolidationReport:
    """Make the merges, each whole or not at all; one whose items have changed since it was planned is skipped."""
    merged: list[Merge] = []
    skipped: list[Skipped] = []
    for some in _in_parts(merges, _TOGETHER, size=lambda merge: len(merge.seen)):
        done, left = await _applied(store, space, some, now)
        merged += done
        skipped += left
    return ConsolidationReport(tuple(merged), 0, tuple(skipped))


async def survivor_of(store: Records, space: Space, item: MemoryItem, now: datetime) -> MemoryItem | None:
    """The item that a merged one counts as today; None when it was not merged, or there is none any more."""
    if item.superseded_by is None or item.key is not None or item.turn is not None:
        return None
    said, passed, current = wording(item.content).gist, {item.id}, item
    while current.superseded_by is not None and current.superseded_by not in passed:
        found = await store.get(space, current.superseded_by)
        # What was superseded by something else than a merge has been replaced, not repeated.
        if not found or found[0].key is not None or wording(found[0].content).gist != said:
            return None
        current = found[0]
        passed.add(current.id)
    return current if _is_open(current, now) else None


async def copies_of(store: Records, space: Space, item: MemoryItem) -> list[MemoryItem]:
    """The items that were merged into this one, at first hand or through others."""
    family = {item.id, *item.derived_from}
    return [one for one in await store.get(space, *item.derived_from) if one.superseded_by in family]


async def _families(
    store: Records, space: Space, now: datetime, progress: Progress | None
) -> tuple[list[list[str]], int]:
    """The ids of items that may say the same, and how many items were looked at."""
    where = Where(space, live_at=now, conditions=_MERGEABLE)
    total = sum(count.items for count in await store.spaces(space.tenant) if count.space == space) if progress else 0
    ids: list[str] = []
    numbers = array("Q")
    last: MemoryItem | None = None
    while page := await store.find(where, limit=_PAGE, after=last):
        last = page[-1]
        numbers.extend(await asyncio.to_thread(_numbers, page))
        ids.extend(item.id for item in page)
        if progress is not None:
            progress(len(ids), max(total, len(ids)))
    return await asyncio.to_thread(_together, ids, numbers), len(ids)


def _together(ids: Sequence[str], numbers: array[int]) -> list[list[str]]:
    """The ids that have a number in common."""
    keys = np.array(numbers, np.uint64)
    order = np.argsort(keys, kind="stable")
    _, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
    return [
        [ids[at] for at in order[start : start + count]]
        for start, count in zip(starts[counts > 1], counts[counts > 1], strict=True)
    ]


def _numbers(items: Sequence[MemoryItem]) -> list[int]:
    """A number for each item, the same for those that may say the same."""
    return [
        int.from_bytes(hashlib.blake2b(repr(_family(item)).encode(), digest_size=8).digest(), "big") for item in items
    ]


def _family(item: MemoryItem) -> tuple[Any, ...]:
    """What items have in common that may be one: what they say in short, and all that could make it another thing.

    A filter by agent must find what it found before. What ends on Friday is not what goes on. `I` depends on who
    says it, and `tomorrow` on when.
    """
    said = wording(item.content)
    day = item.created_at.date()
    when = {"day": day, "month": day.replace(day=1), "always": None}[said.holds_for]
    who = item.source if said.is_personal else None
    return item.scope.agent, item.valid_to, item.expires_at, who, when, said.gist


def _is_open(item: MemoryItem, now: datetime) -> bool:
    return item.superseded_by is None and item.key is None and item.turn is None and item.live_at(now)


async def _merges(families: Sequence[Sequence[MemoryItem]], embedding: Embedding) -> list[Merge]:
    """The merges among items that may say the same; the embedder is asked where the words alone do not tell."""
    alike = await asyncio.to_thread(lambda: [kin for family in families for kin in _kin(family)])
    texts = [items[0].content for classes in alike if len(classes) > 1 for items in classes]
    vectors = dict(zip(texts, await embedding.embed(texts), strict=True)) if texts else {}
    merges = []
    for classes in alike:
        rows = np.stack([vectors[items[0].content] for items in classes]) if len(classes) > 1 else None
        merges += [_merge(items, cosine) for items, cosine in _united(classes, rows) if len(items) > 1]
    return merges


def _kin(items: Sequence[MemoryItem]) -> list[list[list[MemoryItem]]]:
    """Those of one family, in classes of the same words, the best of each first and the best class first.

    Two families whose numbers happen to be alike are parted here. What is too long to be embedded at once is only
    the same in the same words.
    """
    families: dict[tuple[Any, ...], dict[tuple[str, ...], list[MemoryItem]]] = {}
    for item in sorted(items, key=_rank):
        family, words = _family(item), wording(item.content).words
        if len(passages(item.content)) > 1:
            family += words
        families.setdefault(family, {}).setdefault(words, []).append(item)
    return [list(classes.values()) for classes in families.values()]


def _rank(item: MemoryItem) -> tuple[float, float, datetime, str]:
    """Who survives: what is trusted most, then what matters most, then the oldest."""
    return -item.trust, -item.importance, item.created_at, item.id


def _united(classes: list[list[MemoryItem]], vectors: Matrix | None) -> Iterator[tuple[list[MemoryItem], float | None]]:
    """The classes put together with the first one that they are near to, and the least cosine among those."""
    if vectors is None:
        yield classes[0], None
        return
    left = np.arange(len(classes))
    while len(left):
        cosines = vectors[left] @ vectors[left[0]]
        near = cosines >= ALIKE
        near[0] = True
        items = [item for at in left[near] for item in classes[at]]
        yield items, float(cosines[near].min()) if near.sum() > 1 else None
        left = left[~near]


def _merge(items: list[MemoryItem], cosine: float | None) -> Merge:
    survivor, *others = items
    how = "in the same words" if cosine is None else f"but for spelling and light words (cosine {cosine:.2f})"
    return Merge(
        survivor.id,
        tuple(other.id for other in others),
        f"{len(others)} more {'item says' if len(others) == 1 else 'items say'} the same {how}",
        MappingProxyType({item.id: item.version for item in items}),
    )


async def _applied(
    store: Records, space: Space, merges: Sequence[Merge], now: datetime
) -> tuple[list[Merge], list[Skipped]]:
    """Several merges in one transaction; when one of them is refused, each on its own."""
    items = {item.id: item for item in await store.get(space, *(id for merge in merges for id in merge.seen))}
    unchanged: list[Merge] = []
    skipped: list[Skipped] = []
    for merge in merges:
        if _as_seen(merge, items, now):
            unchanged.append(merge)
        else:
            skipped.append(Skipped(merge, "one of its items was changed or forgotten meanwhile"))
    if not unchanged:
        return [], skipped
    try:
        await store.write(*(write for merge in unchanged for write in _writes(merge, items, now)))
    except Conflict as conflict:
        if len(merges) == 1:
            return [], [Skipped(merges[0], str(conflict))]
        results = [await _applied(store, space, [merge], now) for merge in unchanged]
        return [one for done, _ in results for one in done], [*skipped, *(one for _, left in results for one in left)]
    return unchanged, skipped


def _as_seen(merge: Merge, items: Mapping[str, MemoryItem], now: datetime) -> bool:
    return all(
        id in items and items[id].version == version and _is_open(items[id], now) for id, version in merge.seen.items()
    )


def _writes(merge: Merge, items: Mapping[str, MemoryItem], now: datetime) -> Iterator[Write]:
    survivor, others = items[merge.survivor], [items[id] for id in merge.merged]
    yield Put(item=standing_for(survivor, others), expect=survivor.version)
    for other in others:
        yield Put(item=replace(other, superseded_by=survivor.id, valid_to=now), expect=other.version)
    space = survivor.scope.space(survivor.tier)
    read = max((other.last_accessed for other in others if other.last_accessed), default=None)
    if read is not None:
        for _ in range(min(sum(other.access_count for other in others), _MOST_ACCESSES)):
            yield Touch(space, (survivor.id,), read)


def standing_for(survivor: MemoryItem, others: Sequence[MemoryItem]) -> MemoryItem:
    """The survivor as it stands for others too.

    Its text and its source are its own, so its trust is its own too: being repeated by somebody less trusted makes a
    statement neither better nor worse. For the same reason metadata comes only from others that are trusted as much,
    or a web page could write into what the user said. What the survivor says itself goes before what they say.
    """
    foremost = max((survivor, *others), key=lambda item: item.importance)
    filled = {k: v for other in reversed(others) if other.trust >= survivor.trust for k, v in other.metadata.items()}
    starts = [item.valid_from for item in (survivor, *others) if item.valid_from is not None]
    origins = dict.fromkeys(
        (*survivor.derived_from, *(id for other in others for id in (other.id, *other.derived_from)))
    )
    return replace(
        survivor,
        metadata=MappingProxyType({**filled, **survivor.metadata}) if filled else survivor.metadata,
        importance=foremost.importance,
        decayed_at=foremost.decayed_at,
        valid_from=min(starts) if survivor.valid_from is not None else None,
        pinned=survivor.pinned or any(other.pinned for other in others),
        derived_from=tuple(id for id in origins if id != survivor.id),
    )


def _in_parts(things: Iterable[Any], limit: int, *, size: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Things in lists of about so much in all; what is larger alone comes alone."""
    some: list[Any] = []
    held = 0
    for thing in things:
        if some and held + size(thing) > limit:
            yield some
            some, held = [], 0
        some.append(thing)
        held += size(thing)
    if some:
        yield some
