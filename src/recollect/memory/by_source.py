"""A source taken back: everything that came from it, everything that was made of that, and what stood there before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recollect.errors import BadInput
from recollect.lifecycle.forget import ENDED_BY
from recollect.memory.turn_items import id_of, space_of
from recollect.recall.sources import site
from recollect.stores.base import Log, Records
from recollect.stores.connect import Stores
from recollect.stores.ops import Delete, Drop, Entry, Put
from recollect.stores.where import Where
from recollect.tiers import keyed
from recollect.tiers.entries import entire
from recollect.tiers.messages import ROLES
from recollect.tiers.procedure import changed, procedure_of
from recollect.tiers.rolled import covers
from recollect.values import MemoryItem, Scope, Space, Tier

_PAGE = 1000
_TOGETHER = 500

# Where a line of a log says whose words it holds.
_NAMES = ("source", "tool", "name", "url")


@dataclass(frozen=True, slots=True)
class SourceForgotten:
    """What was taken back: ids of facts, of procedures' versions and of lines of logs; and what holds again."""

    source: str
    items: tuple[str, ...] = ()
    procedures: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.items or self.procedures or self.entries)


async def forget_source(stores: Stores, scope: Scope, source: str) -> SourceForgotten:
    """Take back what came from a source, in all sessions of the scope's user and agent.

    A page is named by its address, and all of a site by its host. Lines of logs go first, then what was made of them:
    should this be interrupted, running it again finds the rest.
    """
    if not isinstance(source, str) or not source.strip():
        raise BadInput(f"a source is a name such as 'web', or an address, not {source!r:.80}")
    lines: list[str] = []
    tiers: tuple[Tier, ...] = ("conversation", "episodic")
    facts = stores.records("semantic")
    for tier in tiers:
        for space, entries in (await _lines_dropped(stores.log(tier), scope.space(tier), source)).items():
            lines += [entry.id for entry in entries]
            if tier == "conversation":  # what was said is searched there by items of its own
                await facts.write(*(Delete(space_of(scope), id_of(space, entry)) for entry in entries))
    items = [item async for item in _every(facts, scope.space("semantic"))]
    apart = [item async for item in _every(facts, scope.space("quarantine"))]
    gone = _gone([*items, *apart], source, set(lines))
    back = _restored([item for item in items if item.id not in gone], {item.id: item for item in items}, gone)
    await _write(facts, [item for item in (*items, *apart) if item.id in gone], back)
    versions = await _versions_dropped(stores.records("procedural"), scope.space("procedural"), source)
    return SourceForgotten(
        source, tuple(sorted(gone)), tuple(versions), tuple(lines), tuple(item.id for item in back if _holds(item))
    )


def _is_of(given: str | None, source: str) -> bool:
    return given is not None and source in (given, given.rstrip("/"), given.partition("#")[0], site(given))


def _gone(items: list[MemoryItem], source: str, lost: set[str]) -> set[str]:
    """The ids of what came from the source, and of what was made of that, however many hands it went through."""
    gone = {item.id for item in items if _is_of(item.source, source)}
    by_id = {item.id: item for item in items}
    while True:
        more = {item.id for item in items if item.id not in gone and _is_made_of(item, gone | lost, by_id)}
        if not more:
            return gone
        gone |= more


def _is_made_of(item: MemoryItem, lost: set[str], by_id: Mapping[str, MemoryItem]) -> bool:
    """Whether it was derived from something that is lost. What was merged into it only said the same."""
    for parent in item.derived_from:
        known = by_id.get(parent)
        if parent in lost and not (known is not None and known.superseded_by is not None and _is_kin(known, item)):
            return True
    return False


def _is_kin(merged: MemoryItem, item: MemoryItem) -> bool:
    return merged.superseded_by in (item.id, *item.derived_from)


def _restored(left: list[MemoryItem], by_id: Mapping[str, MemoryItem], gone: set[str]) -> list[MemoryItem]:
    """What is left, as it is without what is gone: not superseded by it, and not named as made with it."""
    changed_items = []
    for item in left:
        new = replace(item, derived_from=tuple(one for one in item.derived_from if one not in gone))
        heir: str | None = item.superseded_by
        seen: set[str] = set()
        while heir in gone and heir not in seen:
            seen.add(heir)
            heir = by_id[heir].superseded_by if heir in by_id else None
        if heir != item.superseded_by:
            follows = by_id.get(heir) if heir is not None else None
            about = {name: value for name, value in item.metadata.items() if name != ENDED_BY or heir is not None}
            new = replace(
                new,
                superseded_by=heir,
                valid_to=None if follows is None else keyed.since(follows),
                metadata={**about, ENDED_BY: heir} if ENDED_BY in about else about,
            )
        if new != item:
            changed_items.append(new)
    return changed_items


def _holds(item: MemoryItem) -> bool:
    return item.superseded_by is None and item.valid_to is None


async def _write(store: Records, gone: list[MemoryItem], back: list[MemoryItem]) -> None:
    writes: list[Any] = [Put(item=item, expect=item.version) for item in back]
    writes += [Delete(item.scope.space(item.tier), item.id) for item in gone]
    for at in range(0, len(writes), _TOGETHER):
        await store.write(*writes[at : at + _TOGETHER])


async def _versions_dropped(store: Records, space: Space, source: str) -> list[str]:
    """Versions of procedures that came from the source; the newest one that is left is in use again."""
    every = [item async for item in _every(store, space)]
    gone = [item for item in every if _is_of(item.source, source)]
    ids = {item.id for item in gone}
    writes: list[Any] = [Delete(space, item.id) for item in gone]
    for key in {item.key for item in gone if procedure_of(item).current}:
        left = [item for item in every if item.key == key and item.id not in ids]
        if left:
            newest = max(left, key=lambda item: int(item.metadata["number"]))
            current = changed(newest, replace(procedure_of(newest), standing="current"))
            writes.append(Put(item=replace(current, valid_to=None, superseded_by=None), expect=newest.version))
    if writes:
        await store.write(*writes)
    return sorted(ids)


async def _lines_dropped(log: Log, owner: Space, source: str) -> dict[Space, list[Entry]]:
    """The lines that hold the source's words, and the summaries that were made of them."""
    dropped: dict[Space, list[Entry]] = {}
    for space in await log.logs(owner):
        entries = await entire(log, space)
        ours = [entry for entry in entries if _tells(space, entry, source)]
        if not ours:
            continue
        first = ours[0].seq
        if space.tier == "conversation":
            ours += [entry for entry in entries if entry.kind not in ROLES and covers(entry) >= first]
        await log.write(Drop(space, tuple(entry.seq for entry in ours)))
        dropped[space] = ours
    return dropped


def _tells(space: Space, entry: Entry, source: str) -> bool:
    given = entry.metadata.get("given") if space.tier == "episodic" else entry.metadata
    if not isinstance(given, Mapping):
        return False
    return any(isinstance(given.get(name), str) and _is_of(given[name], source) for name in _NAMES)


async def _every(store: Records, space: Space) -> AsyncIterator[MemoryItem]:
    last: MemoryItem | None = None
    while page := await store.find(Where(space), limit=_PAGE, after=last):
        for item in page:
            yield item
        last = page[-1]
