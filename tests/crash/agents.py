"""A worker that runs tasks, and tells the oracle of every effect, every claim and every step it was told is done."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recollect import AgentMemory, ResumableAgent, step
from recollect.clock import Clock, system_clock
from recollect.errors import FencedOut, LeaseHeld, StoreUnavailable
from recollect.runtime import Event, StepContext
from recollect.stores.base import Lease
from recollect.stores.sqlite import SqliteStore
from tests.crash import mutants
from tests.crash.history import SCOPE
from tests.crash.ledger import note
from tests.crash.places import tiers
from tests.crash.scribe import checkpoint_often
from tests.embedders import HashEmbedder

SPACE = SCOPE.space("checkpoints")
EPISODES = SCOPE.space("episodic")
LEASE = 0.5
# More often than chaos can interrupt a step: here nobody gives up.
_ATTEMPTS = 100_000
# More than a page: of such a state only those pages are written that differ.
_LONG_STATE = {"brief": "x" * 9000}

Effect = Callable[[str, str, str], None]


def opened(place: str | Path, clock: Clock = system_clock) -> Any:
    return AgentMemory.open(tiers(str(place)), tenant=SCOPE.tenant, embedder=HashEmbedder(), clock=clock)


def name_of(place: int) -> str:
    return f"step_{place}_effect"


def remembers(place: int) -> bool:
    """Every fourth step also tells its memory something, under an id that is new each time it runs."""
    return place % 4 == 0


def steps_of(many: int, effect: Effect, *, troubled: bool = False) -> list[Callable[..., Any]]:
    """Steps that act outside, count in the state and take a moment; in a troubled plan one fails first, one is slow."""

    def made(place: int) -> Callable[..., Any]:
        @step(backoff=0.01)
        async def effect_of(state: dict[str, Any], ctx: StepContext) -> int:
            effect(ctx.idempotency_key, ctx.task_id, ctx.step)
            state["count"] = state.get("count", 0) + 1
            if remembers(place):
                await ctx.memory.episodic.store(f"{ctx.task_id} {ctx.step}")
            if troubled and place == 1 and ctx.attempt == 1:
                raise ConnectionError("the first attempt fails")
            await asyncio.sleep(LEASE / 2 if troubled and place == 2 else 0.002)
            return place

        effect_of.__name__ = "effect"
        return effect_of

    return [made(place) for place in range(many)]


class Worker:
    """An agent on a store, all of whose doings are noted."""

    def __init__(self, memory: AgentMemory, notes: int) -> None:
        self._notes = notes
        self.store = memory.checkpoints.store
        claim = self.store.claim

        async def noted(*given: Any, **more: Any) -> Lease:
            lease = await claim(*given, **more)
            note(notes, "claim", lease.task, lease.fence)
            return lease

        setattr(self.store, "claim", noted)  # noqa: B010 - a method, which mypy would not have assigned
        self.agent = ResumableAgent(memory, lease_ttl=LEASE, max_attempts=_ATTEMPTS, on_event=self._told)

    def effect(self, key: str, task: str, name: str) -> None:
        note(self._notes, "effect", key, task, name)

    def _told(self, event: Event) -> None:
        if event.kind in ("finished", "lost"):
            note(self._notes, event.kind, event.task, event.step or "-")


async def compete(place: str, notes: int, seed: str, tasks: int, many: int, *, outages: bool = False) -> None:
    """All tasks, in an order of its own, among others who do the same; where there are outages, through them."""
    chance = random.Random(seed)
    passing = (LeaseHeld, FencedOut, StoreUnavailable) if outages else (LeaseHeld, FencedOut)
    async with opened(place) as memory:
        worker = Worker(memory, notes)
        note(notes, "ready")
        steps = steps_of(many, worker.effect)
        left = [f"t{number}" for number in range(tasks)]
        while left:
            task = chance.choice(left)
            try:
                await worker.agent.run(task, steps)
            except passing:
                await asyncio.sleep(0.005)
            else:
                left.remove(task)


async def run(path: Path, notes: int, tasks: int, many: int, *, troubled: bool) -> None:
    """A few tasks, one after the other, to their end."""
    async with opened(path) as memory:
        worker = Worker(memory, notes)
        assert isinstance(worker.store, SqliteStore)
        await checkpoint_often(worker.store)
        for number in range(tasks):
            begins = _LONG_STATE if number % 2 else None
            while True:
                try:
                    await worker.agent.run(f"t{number}", steps_of(many, worker.effect, troubled=troubled), begins)
                    break
                except (LeaseHeld, FencedOut):  # by one who is dead, or lost on a machine that is very slow
                    await asyncio.sleep(LEASE / 10)
    note(notes, "end")


def main(arguments: list[str]) -> None:
    mutants.apply()
    # That leases are lost and outcomes unknown is what these runs are for; an error would still be printed.
    logging.disable(logging.WARNING)
    match arguments:
        case ["compete" | "endure" as how, place, notes, seed, tasks, many]:
            asyncio.run(compete(place, int(notes), seed, int(tasks), int(many), outages=how == "endure"))
        case ["run" | "troubled" as how, path, notes, tasks, many]:
            asyncio.run(run(Path(path), int(notes), int(tasks), int(many), troubled=how == "troubled"))


if __name__ == "__main__":
    main(sys.argv[1:])
