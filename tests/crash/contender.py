"""One of several workers on the same tasks, on a machine whose clock may be wrong."""

from __future__ import annotations

import asyncio
import json
import random
import time
from datetime import datetime, timedelta, tzinfo

from recollect import clock
from recollect.errors import FencedOut, LeaseHeld
from recollect.stores.ops import Save
from tests.crash import mutants
from tests.crash.history import TASKS
from tests.crash.ledger import note
from tests.crash.places import LogAndTasks, store_at

TASK_IDS = ("a", "b", "c")
LEASE = timedelta(seconds=0.1)
# Every third time a worker sleeps for longer than its lease, and wakes up as a zombie.
_PAUSES = (0.0, 0.005, 0.13)


def set_wrong(wrong: float, jump: float, seconds: float) -> None:
    """Have this machine's clock off by so many seconds; after half of the run by so many more.

    The machine's, and not one that the store is given: whether a store goes by it at all is its own affair.
    """
    right, began = clock.system_clock(), time.monotonic()
    half = began + seconds / 2

    class Wrong:
        @staticmethod
        def now(tz: tzinfo) -> datetime:
            off = wrong + (jump if time.monotonic() > half else 0)
            return right + timedelta(seconds=time.monotonic() - began + off)

    setattr(clock, "datetime", Wrong)  # noqa: B010 - a class, which mypy would not have assigned


async def contend(store: LogAndTasks, me: str, notes: int, seconds: float) -> None:
    """Count up in each task's state, under its lease, for a while and until it has counted at all."""
    chance = random.Random(me)
    deadline = time.monotonic() + seconds
    counted = False
    while time.monotonic() < deadline or not counted:
        task = chance.choice(TASK_IDS)
        try:
            lease = await store.claim(TASKS, task, me, LEASE)
        except LeaseHeld:
            await asyncio.sleep(chance.uniform(0, 0.01))
            continue
        newest = await store.checkpoint(TASKS, task)
        count = json.loads(newest.state)["count"] + 1 if newest else 1
        await asyncio.sleep(chance.choice(_PAUSES))
        try:
            # The fence alone has to keep a zombie out: the version it saw is not asked for.
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
    set_wrong(float(wrong), float(jump), float(seconds))
    asyncio.run(run(place, me, int(notes), float(seconds)))
