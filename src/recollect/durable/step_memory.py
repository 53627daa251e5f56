"""The memory of a running task: the writes of a step are buffered and committed together with its completion."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, groupby, islice
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

from recollect.clock import Clock
from recollect.durable.failpoints import reach_failpoint
from recollect.errors import SecretRefused
from recollect.models.llm import LanguageModel
from recollect.security.redaction import RedactionPolicy
from recollect.settings import Settings
from recollect.stores.base import Log, Records, Store
from recollect.stores.factory import TIER_PROTOCOLS, TierStores
from recollect.stores.overlay import BufferedStore
from recollect.stores.writes import Append, Entry, Write
from recollect.tiers.working import WorkingMemory
from recollect.types import Tier

StoreT = TypeVar("StoreT")
WriteT = TypeVar("WriteT")

StoreWrites = tuple[Store, Sequence[Write]]
"""A store and the writes for it."""

NextActionId = Callable[[], str | None]
"""Returns the id of the next write that a step makes."""

_BUSY_OWNERS: WeakSet[Any] = WeakSet()
"""Memories whose working memory a run uses."""


async def write_in_order(*parts: StoreWrites) -> None:
    """Write to several stores in order; consecutive parts for the same store are one transaction.

    A crash between two stores leaves the earlier parts without the later ones. Callers therefore name a source before
    what is derived from it, give every write a stable id, and repeat the whole call after a crash.
    """
    for store, batch in _merge_parts(parts):
        await store.write(*batch)


async def append_in_order(*parts: tuple[Log, Sequence[Append]]) -> list[list[Entry]]:
    """Append to several logs as `write_in_order` does; return the stored entries of each part."""
    stored: list[Entry | None] = []
    for log, batch in _merge_parts(parts):
        stored += await log.append(*batch)
    entries = iter(stored)
    return [[entry for entry in islice(entries, len(appends)) if entry is not None] for _, appends in parts]


def _merge_parts(parts: Sequence[tuple[StoreT, Sequence[WriteT]]]) -> Iterator[tuple[StoreT, list[WriteT]]]:
    for index, (_, group) in enumerate(groupby((part for part in parts if part[1]), key=lambda part: id(part[0]))):
        if index:
            reach_failpoint("stores.between")
        same_store = list(group)
        yield same_store[0][0], [write for _, writes in same_store for write in writes]


class EngineParts(Protocol):
    """The parts of an open memory that running steps need."""

    @property
    def stores(self) -> TierStores: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def llm(self) -> LanguageModel | None: ...
    @property
    def clock(self) -> Clock: ...


class RunMemory:
    """The memory of one task run. The first run of `owner` uses its working memory; parallel runs get their own."""

    def __init__(
        self, owner: Any, engine: EngineParts, open_twin: Callable[[TierStores, NextActionId | None], Any]
    ) -> None:
        self._owner = owner
        self._engine = engine
        self._open_twin = open_twin
        self._borrows = owner not in _BUSY_OWNERS
        _BUSY_OWNERS.add(owner)
        max_items = engine.settings.tier("working").max_items
        self._own_working = WorkingMemory(max_items=max_items, llm=engine.llm, clock=engine.clock)
        self._last_snapshot: Mapping[str, Any] | None = None
        self._redacted_snapshot: Mapping[str, Any] | None = None

    @property
    def working(self) -> WorkingMemory:
        return cast(WorkingMemory, self._owner.working) if self._borrows else self._own_working

    def snapshot(self) -> Mapping[str, Any] | None:
        """Return working memory for a checkpoint, without secrets; None if it is empty or must not be stored."""
        current = None if self.working.is_empty else self.working.snapshot()
        if current != self._last_snapshot:  # redaction is slow, and most steps change nothing
            self._last_snapshot, self._redacted_snapshot = current, None
            policy = RedactionPolicy.from_settings(self._engine.settings)
            with suppress(SecretRefused):
                self._redacted_snapshot = policy.redact_json("working memory", current).value if current else None
        return self._redacted_snapshot

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Set working memory to the snapshot of a checkpoint."""
        restored = WorkingMemory.from_snapshot(snapshot, llm=self._engine.llm, clock=self._engine.clock)
        if self._borrows:
            self._owner.working = restored
        else:
            self._own_working = restored

    def open_twin(self, writes: list[tuple[Store, list[Write]]], write_ids: str) -> Any:
        """Open the same memory for one attempt at a step; its writes go to the list. Checkpoints are written directly.

        `write_ids` is the same for every attempt at a step, so that repeated writes get the same ids.
        """
        stores = self._engine.stores
        buffered = {id(store): BufferedStore(cast(Records, store), writes) for store in stores.all_stores}
        by_tier: dict[Tier, Store] = {
            tier: stores.tasks() if tier == "checkpoints" else cast(Store, buffered[id(stores.records(tier))])
            for tier in TIER_PROTOCOLS
        }
        # With one store, a failed attempt leaves nothing behind, so its ids need not repeat.
        counter = count()

        def build_next_id() -> str:
            return hashlib.blake2b(f"{write_ids} {next(counter)}".encode(), digest_size=12).hexdigest()

        twin = self._open_twin(TierStores(by_tier, stores.urls), build_next_id if len(buffered) > 1 else None)
        twin.working = self.working
        return twin

    def end_run(self) -> None:
        """Release the working memory of the owner."""
        if self._borrows:
            _BUSY_OWNERS.discard(self._owner)
