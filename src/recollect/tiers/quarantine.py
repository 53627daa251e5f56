"""Quarantine for untrusted text that looks like instructions or would supersede a fact that is trusted more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from recollect.errors import BadInput, NotFound
from recollect.security.injection import find_quarantine_reasons
from recollect.stores.base import Records
from recollect.stores.filters import Where
from recollect.stores.writes import Delete, Put
from recollect.tiers.facts import Fact, can_supersede, check_string, find_open_values
from recollect.tiers.indexing import call_with_text
from recollect.types import EMPTY_MAPPING, MemoryItem, Scope, Space
from recollect.validation import check_count

_MAX_LISTED = 10_000

# Metadata keys of a quarantined item. The caller's metadata is nested, so its keys cannot collide with these.
_ORIGINAL_METADATA_KEY, _REASONS_KEY = "given", "why"


@dataclass(frozen=True, slots=True)
class QuarantinedItem:
    """A quarantined item with its original metadata, and the reasons."""

    item: MemoryItem
    why: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.item.id


class Quarantine:
    """Quarantined items of one user, as `AgentMemory.quarantine`. Search, recall and promotion do not find them."""

    def __init__(self, store: Records, *, scope: Scope, keep: Callable[[Fact], Awaitable[MemoryItem]]) -> None:
        self._store = store
        self._scope = scope
        self._store_fact = keep
        self._space = scope.space("quarantine")

    async def list(self, limit: int = 100) -> list[QuarantinedItem]:
        """Return the quarantined items, newest first."""
        limit = min(check_count("limit", limit), _MAX_LISTED)
        return [parse_quarantined_item(item) for item in await self._store.find(Where(self._space), limit=limit)]

    async def get(self, id: str) -> QuarantinedItem | None:
        items = await self._store.get(self._space, check_string("id", id))
        return parse_quarantined_item(items[0]) if items else None

    async def approve(self, id: str, *, trust: float | None = None) -> MemoryItem:
        """Store a quarantined item as a fact, and return the fact.

        It keeps its source, and its trust unless `trust` is given. To supersede a value that is trusted more, `trust`
        must be at least that value's.
        """
        quarantined = await self.get(id)
        if quarantined is None:
            raise NotFound(f"there is no item {id!r:.80} in quarantine; see `list()`")
        item = quarantined.item
        new_trust = item.trust if trust is None else trust
        current = await _find_more_trusted(self._store, self._scope.space("semantic"), item, new_trust)
        if current is not None:
            raise BadInput(
                f"the value of {item.key!r} is trusted {current.trust:g}, and this item {new_trust:g}; approve it with "
                f"trust={current.trust:g} to supersede the value"
            )
        fact = await self._store_fact(_to_fact(item, new_trust))
        await self._store.write(Delete(self._space, id))
        return fact

    async def drop(self, id: str) -> bool:
        """Delete a quarantined item; return False if there is no such item."""
        if await self.get(id) is None:
            return False
        await self._store.write(Delete(self._space, id))
        return True


def to_quarantine_item(item: MemoryItem, why: Sequence[str]) -> MemoryItem:
    """Return the item as it is stored in quarantine."""
    metadata = {_ORIGINAL_METADATA_KEY: dict(item.metadata), _REASONS_KEY: list(why)}
    return replace(item, tier="quarantine", metadata=MappingProxyType(metadata))


def parse_quarantined_item(item: MemoryItem) -> QuarantinedItem:
    metadata: Mapping[str, Any] = item.metadata.get(_ORIGINAL_METADATA_KEY) or EMPTY_MAPPING
    return QuarantinedItem(replace(item, metadata=metadata), tuple(item.metadata.get(_REASONS_KEY, ())))


async def find_objections(store: Records, space: Space, item: MemoryItem) -> tuple[str, ...]:
    """Return the reasons to quarantine an item; none if its content is a fact already."""
    if why := await call_with_text(len(item.content), find_quarantine_reasons, item.content, item.trust):
        known = await store.get(space, item.id)
        return () if known and known[0].superseded_by is None else why
    if await _find_more_trusted(store, space, item, item.trust) is None:
        return ()
    return (f"would supersede the value of {item.key!r}, which is trusted more",)


async def write_new_items(store: Records, items: Sequence[MemoryItem]) -> int:
    """Write items of one space without terms and vectors. Return how many are new; the others stay as they are."""
    if not items:
        return 0
    space = items[0].scope.space(items[0].tier)
    known = {item.id for item in await store.get(space, *(item.id for item in items))}
    new = {item.id: item for item in items if item.id not in known}
    if new:
        await store.write(*(Put(item=item) for item in new.values()))
    return len(new)


async def _find_more_trusted(store: Records, space: Space, item: MemoryItem, trust: float) -> MemoryItem | None:
    """Return the current value of the item's key that this trust may not supersede, if any."""
    values = [] if item.key is None else await find_open_values(store, space, item)
    return next((value for value in values if value.content != item.content and not can_supersede(trust, value)), None)


def _to_fact(item: MemoryItem, trust: float) -> Fact:
    names = ("content", "importance", "key", "source", "valid_from", "valid_to")
    options: dict[str, Any] = {name: getattr(item, name) for name in names}
    if item.turn is not None:
        options |= asdict(item.turn)  # session, position and speaker
    metadata = dict(item.metadata) or None
    return Fact(**options, pinned=item.pinned or None, metadata=metadata, trust=trust, at=item.created_at)
