"""Texts of strangers that give orders, or would change what is trusted more: kept apart until somebody reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from recollect.errors import BadInput, NotFound
from recollect.guard.instructions import held_back
from recollect.guard.policy import LONG_TO_LOOK_THROUGH
from recollect.stores.base import Records
from recollect.stores.ops import Delete, Put
from recollect.stores.where import Where
from recollect.tiers import keyed
from recollect.tiers.facts import Fact
from recollect.values import NOTHING, MemoryItem, Scope, Space

_MOST = 10_000

# What an item in quarantine carries: what the caller said of it, and what speaks against it. Apart, so that no name of
# theirs can be taken for one of ours.
_GIVEN, _WHY = "given", "why"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An item that is kept apart, and why. `item.metadata` is what it came with."""

    item: MemoryItem
    why: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.item.id


class Quarantine:
    """The items of one user that are kept apart. They are in a space of their own, without words or vectors.

    So nothing that searches, recalls, merges or promotes facts can come across one.
    """

    def __init__(
        self, store: Records, *, scope: Scope, keep: Callable[[Fact], Awaitable[MemoryItem]] | None = None
    ) -> None:
        self._store = store
        self._scope = scope
        self._keep = keep

    @property
    def space(self) -> Space:
        return self._scope.space("quarantine")

    async def list(self, limit: int = 100) -> list[Quarantined]:
        """What waits for somebody to read it, newest first."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise BadInput(f"limit is how many are wanted, a whole number from 0, not {limit!r:.80}")
        return [quarantined(item) for item in await self._store.find(Where(self.space), limit=min(limit, _MOST))]

    async def get(self, id: str) -> Quarantined | None:
        _check_id(id)
        found = await self._store.get(self.space, id)
        return quarantined(found[0]) if found else None

    async def approve(self, id: str, *, trust: float | None = None) -> MemoryItem:
        """Make it a fact: somebody has read it, and finds nothing wrong with it.

        It stays whose it is, and is trusted as before unless you say how far. Under a key whose value is trusted
        more you have to: that is what it then takes the place of.
        """
        held = await self._held(id)
        item = held.item
        worth = item.trust if trust is None else trust
        if item.key is not None:
            current = await trusted_more(self._store, self._scope.space("semantic"), item, worth)
            if current is not None:
                raise BadInput(
                    f"what is known under {item.key!r} is trusted {current.trust:g}, and this {worth:g}; "
                    f"approve it with trust={current.trust:g} to put it in its place"
                )
        assert self._keep is not None
        kept = await self._keep(_as_fact(item, worth))
        await self._store.write(Delete(self.space, id))
        return kept

    async def drop(self, id: str) -> bool:
        """Forget it unread; False when there is no such item."""
        _check_id(id)
        if not await self._store.get(self.space, id):
            return False
        await self._store.write(Delete(self.space, id))
        return True

    async def _held(self, id: str) -> Quarantined:
        held = await self.get(id)
        if held is None:
            raise NotFound(f"there is nothing with the id {id!r:.80} in quarantine; look at the list")
        return held


def _check_id(id: Any) -> None:
    if not isinstance(id, str):
        raise BadInput(f"an id is a text, not {type(id).__name__}")


def in_quarantine(item: MemoryItem, why: Sequence[str]) -> MemoryItem:
    """The item as it is kept apart."""
    return replace(item, tier="quarantine", metadata=MappingProxyType({_GIVEN: dict(item.metadata), _WHY: list(why)}))


def quarantined(item: MemoryItem) -> Quarantined:
    given: Mapping[str, Any] = item.metadata.get(_GIVEN) or NOTHING
    return Quarantined(replace(item, metadata=given), tuple(item.metadata.get(_WHY, ())))


async def objections(store: Records, space: Space, item: MemoryItem) -> tuple[str, ...]:
    """Why an item is not to be a fact at once; nothing where it may be.

    What is a fact in these words already, as said by somebody else or read by somebody, is so whoever repeats it.
    """
    if len(item.content) > LONG_TO_LOOK_THROUGH:
        why = await asyncio.to_thread(held_back, item.content, item.trust)
    else:
        why = held_back(item.content, item.trust)
    if why:
        known = await store.get(space, item.id)
        return () if known and known[0].superseded_by is None else why
    current = await trusted_more(store, space, item, item.trust) if item.key is not None else None
    return () if current is None else (f"would take the place of what is known under {item.key!r} and trusted more",)


async def trusted_more(store: Records, space: Space, item: MemoryItem, worth: float) -> MemoryItem | None:
    """The value of the item's key that it may not end, if there is one."""
    values = await keyed.open_values(store, space, item)
    return next((old for old in values if old.content != item.content and not keyed.may_end(worth, old)), None)


async def held(store: Records, items: Sequence[MemoryItem]) -> None:
    """Put items into quarantine; what is there already stays as it is."""
    if not items:
        return
    there = {item.id for item in await store.get(items[0].scope.space("quarantine"), *(item.id for item in items))}
    fresh = {item.id: item for item in items if item.id not in there}
    if fresh:
        await store.write(*(Put(item=item) for item in fresh.values()))


def _as_fact(item: MemoryItem, trust: float) -> Fact:
    return Fact(
        content=item.content,
        importance=item.importance,
        key=item.key,
        pinned=item.pinned or None,
        metadata=dict(item.metadata) or None,
        source=item.source,
        trust=trust,
        at=item.created_at,
        valid_from=item.valid_from,
        valid_to=item.valid_to,
        session=None if item.turn is None else item.turn.session,
        position=None if item.turn is None else item.turn.position,
        speaker=None if item.turn is None else item.turn.speaker,
    )
