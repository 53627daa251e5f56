"""A worker that saves checkpoints with a ttl of an hour in tasks that it shares with other workers."""

from __future__ import annotations

import asyncio
import random
import time

from recollect import AgentMemory
from tests.crash import mutants
from tests.crash.acknowledgments import note
from tests.crash.lease_contender import TASK_IDS, set_clock_offset
from tests.crash.task_worker import open_memory

_LOOKS = 8


async def save_checkpoints(memory: AgentMemory, me: str, notes: int, seconds: float) -> None:
    """Save checkpoints, note the history after each, and run the lifecycle now and then.

    Stop after `seconds`, but not before the lifecycle has run `_LOOKS` times since the clocks jumped.
    """
    rng = random.Random(me)
    half, deadline = time.monotonic() + seconds / 2, time.monotonic() + seconds
    looks = 0
    while time.monotonic() < deadline or looks < _LOOKS:
        task = rng.choice(TASK_IDS)
        version = await memory.checkpoints.checkpoint(task, {"by": me}, ttl=3600)
        note(notes, "kept", me, task, version)
        versions = [entry.version for entry in await memory.checkpoints.history(task)]
        note(notes, "history", me, task, version, *versions)
        if rng.random() < 0.2:
            await memory.lifecycle.run_once()
            looks += time.monotonic() > half
        await asyncio.sleep(rng.uniform(0, 0.01))


async def run(place: str, me: str, notes: int, seconds: float) -> None:
    async with open_memory(place) as memory:
        await save_checkpoints(memory, me, notes, seconds)


def main(arguments: list[str]) -> None:
    mutants.apply()
    place, me, notes, seconds, leap = arguments
    set_clock_offset(0, float(leap), float(seconds))
    asyncio.run(run(place, me, int(notes), float(seconds)))
