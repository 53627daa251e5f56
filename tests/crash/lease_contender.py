"""One of several workers on the same tasks, with a system clock that may be wrong."""

from __future__ import annotations

import asyncio
import json
import random
import time
from datetime import datetime, timedelta, tzinfo

from recollect import clock
from recollect.errors import FencedOut, LeaseHeld
from recollect.stores.writes import Save
from tests.crash import mutants
from tests.crash.acknowledgments import note
from tests.crash.store_locations import LogAndTasks, store_at
from tests.crash.turn_history import TASKS

TASK_IDS = ("a", "b", "c")
LEASE = timedelta(seconds=0.1)
# In seconds. Every third pause is longer than the lease, so that the worker continues as a zombie.
_PAUSES = (0.0, 0.005, 0.13)


def set_clock_offset(wrong: float, jump: float, seconds: float) -> None:
    """Shift the system clock of this process by `wrong` seconds, and after half of the run by `jump` more.

    The shift applies to the system clock, not to a clock argument: a store may use the time of its server instead.
    """
    right, began = clock.system_clock(), time.monotonic()
    half = began + seconds / 2

    class ShiftedDatetime:
        @staticmethod
        def now(tz: tzinfo) -> datetime:
            off = wrong + (jump if time.monotonic() > half else 0)
            return right + timedelta(seconds=time.monotonic() - began + off)

    setattr(clock, "datetime", ShiftedDatetime)  # noqa: B010 - a class, which mypy would not have assigned


async def contend(store: LogAndTasks, me: str, notes: int, seconds: float) -> None:
    """Increment counters in task states under a lease, for `seconds` and until at least one increment succeeds."""
    rng = random.Random(me)
    deadline = time.monotonic() + seconds
    counted = False
    while time.monotonic() < deadline or not counted:
        task = rng.choice(TASK_IDS)
        try:
            lease = await store.claim(TASKS, task, me, LEASE)
        except LeaseHeld:
            await asyncio.sleep(rng.uniform(0, 0.01))
            continue
        newest = await store.checkpoint(TASKS, task)
        count = json.loads(newest.state)["count"] + 1 if newest else 1
        await asyncio.sleep(rng.choice(_PAUSES))
        try:
            # Without `expect`: only the fence can reject a zombie.
            await store.write(Save(space=TASKS, task=task, state=json.dumps({"count": count}), fence=lease.fence))
        except FencedOut:
            note(notes, "refused", me, task, lease.fence)
        else:
            counted = True
            note(notes, "saved", me, task, lease.fence, count)
            await store.release(lease)


async def run(place: str, me: str, notes: int, seconds: float) -> None:
    store = await store_at(place)
    await contend(store, me, notes, seconds)
    await store.close()


def main(arguments: list[str]) -> None:
    mutants.apply()
    place, me, notes, seconds, wrong, jump = arguments
    set_clock_offset(float(wrong), float(jump), float(seconds))
    asyncio.run(run(place, me, int(notes), float(seconds)))
