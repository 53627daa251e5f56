"""A worker that runs tasks and notes every claim, every effect and every acknowledged step."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recollect import AgentMemory, ResumableAgent, StepContext, step
from recollect.clock import Clock, system_clock
from recollect.durable import TaskEvent
from recollect.errors import FencedOut, LeaseHeld, StoreUnavailable
from recollect.stores.sqlite import SqliteStore
from recollect.stores.writes import Lease
from tests.crash import mutants
from tests.crash.acknowledgments import note
from tests.crash.history_writer import checkpoint_often
from tests.crash.store_locations import tiers
from tests.crash.turn_history import SCOPE
from tests.embedders import HashEmbedder

SPACE = SCOPE.space("checkpoints")
EPISODES = SCOPE.space("episodic")
LEASE = 0.5
# More than the number of interruptions of a step, so that no worker gives up.
_ATTEMPTS = 100_000
# Longer than a page: of such a state only the changed pages are written.
_LONG_STATE = {"brief": "x" * 9000}

Effect = Callable[[str, str, str], None]


def open_memory(place: str | Path, clock: Clock = system_clock) -> Any:
    return AgentMemory.open(tiers(str(place)), tenant=SCOPE.tenant, embedder=HashEmbedder(), clock=clock)


def make_step_name(place: int) -> str:
    return f"step_{place}_effect"


def stores_episode(place: int) -> bool:
    """Return whether this step also stores an episode, with a new id on each run: every fourth does."""
    return place % 4 == 0


def make_steps(many: int, effect: Effect, *, troubled: bool = False) -> list[Callable[..., Any]]:
    """Return `many` steps that note an effect and count in the state.

    If `troubled`, the first attempt of one step fails and another step is slow.
    """

    def make_step(place: int) -> Callable[..., Any]:
        @step(backoff=0.01)
        async def effect_of(state: dict[str, Any], ctx: StepContext) -> int:
            effect(ctx.idempotency_key, ctx.task_id, ctx.step)
            state["count"] = state.get("count", 0) + 1
            if stores_episode(place):
                await ctx.memory.episodic.store(f"{ctx.task_id} {ctx.step}")
            if troubled and place == 1 and ctx.attempt == 1:
                raise ConnectionError("the first attempt fails")
            await asyncio.sleep(LEASE / 2 if troubled and place == 2 else 0.002)
            return place

        effect_of.__name__ = "effect"
        return effect_of

    return [make_step(place) for place in range(many)]


class Worker:
    """An agent whose claims, effects and finished steps are noted."""

    def __init__(self, memory: AgentMemory, notes: int) -> None:
        self._notes = notes
        self.store = memory.checkpoints._store
        claim = self.store.claim

        async def noted(*args: Any, **kwargs: Any) -> Lease:
            lease = await claim(*args, **kwargs)
            note(notes, "claim", lease.task, lease.fence)
            return lease

        setattr(self.store, "claim", noted)  # noqa: B010 - a method, which mypy would not have assigned
        self.agent = ResumableAgent(memory, lease_ttl=LEASE, max_attempts=_ATTEMPTS, on_event=self._note_event)

    def effect(self, key: str, task: str, name: str) -> None:
        note(self._notes, "effect", key, task, name)

    def _note_event(self, event: TaskEvent) -> None:
        if event.kind in ("finished", "lost"):
            note(self._notes, event.kind, event.task, event.step or "-")


async def compete(place: str, notes: int, seed: str, tasks: int, many: int, *, outages: bool = False) -> None:
    """Run all tasks in random order while other workers do the same; with `outages`, retry when the store is down."""
    rng = random.Random(seed)
    passing = (LeaseHeld, FencedOut, StoreUnavailable) if outages else (LeaseHeld, FencedOut)
    async with open_memory(place) as memory:
        worker = Worker(memory, notes)
        note(notes, "ready")
        steps = make_steps(many, worker.effect)
        left = [f"t{number}" for number in range(tasks)]
        while left:
            task = rng.choice(left)
            try:
                await worker.agent.run(task, steps)
            except passing:
                await asyncio.sleep(0.005)
            else:
                left.remove(task)


async def run(path: Path, notes: int, tasks: int, many: int, *, troubled: bool) -> None:
    """Run `tasks` tasks one after the other to their end."""
    async with open_memory(path) as memory:
        worker = Worker(memory, notes)
        assert isinstance(worker.store, SqliteStore)
        await checkpoint_often(worker.store)
        for number in range(tasks):
            begins = _LONG_STATE if number % 2 else None
            while True:
                try:
                    await worker.agent.run(f"t{number}", make_steps(many, worker.effect, troubled=troubled), begins)
                    break
                except (LeaseHeld, FencedOut):  # held by a killed worker, or expired on a slow machine
                    await asyncio.sleep(LEASE / 10)
    note(notes, "end")


def main(arguments: list[str]) -> None:
    mutants.apply()
    # Lost leases and unknown outcomes are expected here; errors are still printed.
    logging.disable(logging.WARNING)
    match arguments:
        case ["compete" | "retry" as how, place, notes, seed, tasks, many]:
            asyncio.run(compete(place, int(notes), seed, int(tasks), int(many), outages=how == "retry"))
        case ["run" | "flaky" as how, path, notes, tasks, many]:
            asyncio.run(run(Path(path), int(notes), int(tasks), int(many), troubled=how == "flaky"))


if __name__ == "__main__":
    main(sys.argv[1:])
