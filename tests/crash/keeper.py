"""A loop of somebody's own on tasks that others have too: it keeps states with the default ttl."""

from __future__ import annotations

import asyncio
import random
import time

from recollect import AgentMemory
from tests.crash import mutants
from tests.crash.agents import opened
from tests.crash.contender import TASK_IDS, set_wrong
from tests.crash.ledger import note

_LOOKS = 8


async def keep(memory: AgentMemory, me: str, notes: int, seconds: float) -> None:
    """Checkpoint and look what is there, and now and then have the lifecycle look what may go.

    For a while, and until the lifecycle has looked a few times since the clocks leapt, however slow the machine.
    """
    chance = random.Random(me)
    half, deadline = time.monotonic() + seconds / 2, time.monotonic() + seconds
    looks = 0
    while time.monotonic() < deadline or looks < _LOOKS:
        task = chance.choice(TASK_IDS)
        version = await memory.checkpoints.checkpoint(task, {"by": me})
        note(notes, "kept", me, task, version)
        kept = [one.version for one in await memory.checkpoints.history(task)]
        note(notes, "history", me, task, version, *kept)
        if chance.random() < 0.2:
            await memory.lifecycle.run_once()
            looks += time.monotonic() > half
        await asyncio.sleep(chance.uniform(0, 0.01))


async def run(place: str, me: str, notes: int, seconds: float) -> None:
    async with opened(place) as memory:
        await keep(memory, me, notes, seconds)


def main(arguments: list[str]) -> None:
    mutants.apply()
    place, me, notes, seconds, leap = arguments
    set_wrong(0, float(leap), float(seconds))
    asyncio.run(run(place, me, int(notes), float(seconds)))
