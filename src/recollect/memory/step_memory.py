"""The memory of a running step: what it is told waits for the step's completion and is committed with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Protocol, cast

from recollect.errors import SecretRefused
from recollect.guard.policy import Policy
from recollect.memory.parts import Parts
from recollect.memory.waiting import Waiting
from recollect.runtime.in_order import Share
from recollect.stores.base import Records, Store
from recollect.stores.connect import NEEDS, Stores
from recollect.stores.ops import Write
from recollect.tiers.working import WorkingMemory
from recollect.values import Tier


class Remembers(Protocol):
    """A memory, as far as a running task needs to know it."""

    working: WorkingMemory


class Minds:
    """Gives every run of a memory's tasks its mind. The first has the memory's own working memory for itself."""

    def __init__(self, owner: Remembers, parts: Parts, twin: Callable[[Parts], Any]) -> None:
        self._owner = owner
        self._parts = parts
        self._twin = twin
        self._taken = False

    def __call__(self) -> TaskMind:
        borrows, self._taken = not self._taken, True
        return TaskMind(self._owner if borrows else _Apart(self.blank()), self, borrows=borrows)

    def give_back(self) -> None:
        self._taken = False

    def blank(self) -> WorkingMemory:
        most = self._parts.settings.tier("working").max_items
        return WorkingMemory(max_items=most, llm=self._parts.llm, clock=self._parts.clock)

    def restored(self, snapshot: Mapping[str, Any]) -> WorkingMemory:
        return WorkingMemory.from_snapshot(snapshot, llm=self._parts.llm, clock=self._parts.clock)

    def without_secrets(self, snapshot: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Secrets blotted out as the settings say; where they are refused, what is in mind is not kept at all."""
        try:
            kept: Mapping[str, Any] = Policy.of(self._parts.settings).plain("what is in mind", snapshot).value
        except SecretRefused:
            return None
        return kept

    def twin(self, told: list[tuple[Store, list[Write]]], name: str) -> Any:
        """The same memory over stores that wait; what keeps the tasks themselves does not."""
        stores = self._parts.stores
        waiting = {id(store): Waiting(cast(Records, store), told) for store in stores.every}
        by_tier: dict[Tier, Store] = {
            tier: stores.tasks() if tier == "checkpoints" else cast(Store, waiting[id(stores.records(tier))])
            for tier in NEEDS
        }
        parts = replace(self._parts, stores=Stores(by_tier, self._parts.stores.urls))
        # In one store a failed attempt leaves nothing behind, and whatever is told again is told for the first time.
        return self._twin(replace(parts, act=_acts(name)) if len(waiting) > 1 else parts)


class _Apart:
    """Holds the working memory of a run that came while another had the memory's own."""

    def __init__(self, working: WorkingMemory) -> None:
        self.working = working


class TaskMind:
    """What one run has in mind; see `recollect.runtime.mind`."""

    def __init__(self, holder: Remembers, minds: Minds, *, borrows: bool) -> None:
        self._holder = holder
        self._minds = minds
        self._borrows = borrows
        self._seen: Mapping[str, Any] | None = None
        self._kept: Mapping[str, Any] | None = None

    @property
    def working(self) -> WorkingMemory:
        return self._holder.working

    def snapshot(self) -> Mapping[str, Any] | None:
        """As it may be kept: what is in mind passes no other door before it is in a checkpoint."""
        working = self._holder.working
        seen = working.snapshot() if _anything_in(working) else None
        if seen != self._seen:  # mostly it is as it was at the step before
            self._seen, self._kept = seen, None if seen is None else self._minds.without_secrets(seen)
        return self._kept

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        self._holder.working = self._minds.restored(snapshot)

    def attempt(self, name: str) -> StepThoughts:
        return StepThoughts(self, self._minds, name)

    def leave(self) -> None:
        if self._borrows:
            self._minds.give_back()


class StepThoughts:
    """The memory of one attempt, made when it is first asked for: most steps never ask."""

    def __init__(self, mind: TaskMind, minds: Minds, name: str) -> None:
        self._mind = mind
        self._minds = minds
        self._name = name
        self._told: list[tuple[Store, list[Write]]] = []
        self._memory: Any = None

    @property
    def memory(self) -> Any:
        if self._memory is None:
            self._memory = self._minds.twin(self._told, self._name)
            self._memory.working = self._mind.working
        return self._memory

    @property
    def working(self) -> WorkingMemory:
        return self._mind.working

    def collected(self) -> Sequence[Share]:
        return tuple(self._told)


def _acts(name: str) -> Callable[[], str]:
    """Names for what an attempt does, one after the other: the next attempt has the same ones in the same order."""
    counted = count()
    return lambda: hashlib.blake2b(f"{name} {next(counted)}".encode(), digest_size=12).hexdigest()


def _anything_in(working: WorkingMemory) -> bool:
    return bool(
        working.task
        or working.current_goal
        or working.subgoals
        or working.results
        or working.scratchpad
        or working.variables
        or working.items
        or working.summaries
    )
