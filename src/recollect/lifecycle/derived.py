"""What follows from things that are to go: derived with them, told anew without them, or left as it is. Purely."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from recollect.lifecycle.forget import ENDED_BY
from recollect.stores.ops import Delete, Put, Write
from recollect.tiers.procedure import changed, procedure_of
from recollect.values import MemoryItem, Scope, Space


@dataclass(frozen=True, slots=True)
class Grounds:
    """What is known of the sources of facts."""

    gone: frozenset[str]
    """The ids of entries that go."""
    elsewhere: Mapping[str, Space]
    """Entries that stay, or have stayed until their time was up, each with its log."""


def facts_without(
    space: Space, items: Sequence[MemoryItem], owned: Callable[[MemoryItem], bool], grounds: Grounds
) -> list[Write]:
    """The writes that leave a space as if what is owned had never been said.

    What somebody else said too stays, as theirs. What was made of nothing else goes. What something owned had ended
    holds again, or ends where the next one began.
    """
    by_id = {item.id: item for item in items}
    mine = {item.id for item in items if owned(item)}
    stays = {item.id: found for item in items if item.id in mine and (found := _support(item, by_id, mine, grounds))}
    erased = mine - stays.keys()
    while more := {
        item.id
        for item in items
        if item.id not in erased and item.id not in mine and _rests_on(item, by_id, erased, grounds)
    }:
        erased |= more
    writes: list[Write] = []
    for item in items:
        if item.id in erased:
            writes.append(Delete(space, item.id, expect=item.version))
            continue
        left = _without(item, by_id, erased, grounds)
        if item.id in stays:
            left = _rehomed(left, stays[item.id], grounds)
        if left != item:
            writes.append(Put(item=left, expect=item.version))
    return writes


def procedures_without(
    space: Space, items: Sequence[MemoryItem], owned: Callable[[MemoryItem], bool], authors: frozenset[str]
) -> list[Write]:
    """Versions that are owned, or were restored from one, go; of those that stay, the newest is in use again.

    Notes of trials made for somebody who goes are taken out; that the trial was made stays counted.
    """
    writes: list[Write] = []
    by_key: dict[str | None, list[MemoryItem]] = {}
    for item in items:
        by_key.setdefault(item.key, []).append(item)
    for versions in by_key.values():
        versions.sort(key=lambda item: procedure_of(item).version)
        erased: set[str] = set()
        numbers: set[int] = set()
        for item in versions:
            procedure = procedure_of(item)
            if owned(item) or procedure.restored_from in numbers:
                erased.add(item.id)
                numbers.add(procedure.version)
        kept = [item for item in versions if item.id not in erased]
        in_use = any(procedure_of(item).current for item in versions if item.id in erased)
        for item in versions:
            if item.id in erased:
                writes.append(Delete(space, item.id, expect=item.version))
                continue
            left = _unlinked(item, {one.id: one for one in versions}, erased)
            if in_use and item is kept[-1]:
                left = replace(changed(left, replace(procedure_of(left), standing="current")), valid_to=None)
            left = _without_notes(left, authors)
            if left != item:
                writes.append(Put(item=left, expect=item.version))
    return writes


def _without_notes(item: MemoryItem, authors: frozenset[str]) -> MemoryItem:
    procedure = procedure_of(item)
    notes = tuple(note for note in procedure.outcomes.notes if not authors & {*note.by})
    if notes == procedure.outcomes.notes:
        return item
    return changed(item, replace(procedure, outcomes=replace(procedure.outcomes, notes=notes)))


def _support(item: MemoryItem, by_id: Mapping[str, MemoryItem], mine: set[str], grounds: Grounds) -> tuple[str, ...]:
    """The sources of an item that stay: what others said, and facts of others that it was made of."""
    return tuple(
        id
        for id in item.derived_from
        if id in grounds.elsewhere or (id in by_id and id not in mine and not _is_copy_of(by_id[id], item))
    )


def _rests_on(item: MemoryItem, by_id: Mapping[str, MemoryItem], erased: set[str], grounds: Grounds) -> bool:
    """Whether an item was made of nothing but what goes. What was merged into it is no part of its words."""
    made_of = [id for id in item.derived_from if not (id in by_id and _is_copy_of(by_id[id], item))]
    return bool(made_of) and all(id in erased or id in grounds.gone for id in made_of)


def _is_copy_of(other: MemoryItem, item: MemoryItem) -> bool:
    return other.superseded_by == item.id


def _without(item: MemoryItem, by_id: Mapping[str, MemoryItem], erased: set[str], grounds: Grounds) -> MemoryItem:
    kept = tuple(id for id in item.derived_from if id not in erased and id not in grounds.gone)
    return _unlinked(item if kept == item.derived_from else replace(item, derived_from=kept), by_id, erased)


def _unlinked(item: MemoryItem, by_id: Mapping[str, MemoryItem], erased: set[str]) -> MemoryItem:
    """The item with another end, if what ended it goes: that of the next one which stays, or none."""
    heir = item.superseded_by
    if heir not in erased:
        return item
    passed: set[str] = set()
    while heir in erased and heir not in passed:
        passed.add(heir)
        heir = by_id[heir].superseded_by if heir in by_id else None
    told = {name: value for name, value in item.metadata.items() if name != ENDED_BY}
    if heir is None or heir in erased or heir not in by_id:
        return replace(item, superseded_by=None, valid_to=None, metadata=MappingProxyType(told))
    after = by_id[heir]
    if ENDED_BY in item.metadata:
        told[ENDED_BY] = heir
    since = after.valid_from or after.created_at
    ends = since if item.valid_from is None or item.valid_from <= since else item.valid_from
    return replace(item, superseded_by=heir, valid_to=ends, metadata=MappingProxyType(told))


def _rehomed(item: MemoryItem, support: tuple[str, ...], grounds: Grounds) -> MemoryItem:
    """The item as that of somebody else who said the same."""
    logs = [grounds.elsewhere[id] for id in support if id in grounds.elsewhere]
    agent, session = (logs[0].agent, logs[0].session or None) if logs else (item.scope.agent, None)
    told = {name: value for name, value in item.metadata.items() if name != "session"}
    if session is not None and "session" in item.metadata:
        told["session"] = session
    kind, _, place = item.source.partition(":")
    source = item.source if place != item.scope.session else f"{kind}:{session}" if session else kind
    scope = Scope(item.scope.tenant, item.scope.user, agent, session)
    return replace(item, scope=scope, source=source, derived_from=support, metadata=MappingProxyType(told))
