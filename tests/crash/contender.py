"""One of several workers on the same tasks, with a clock of its own that may be wrong."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from recollect.clock import system_clock
from recollect.errors import FencedOut, LeaseHeld
from recollect.stores.ops import Save
from recollect.stores.sqlite import SqliteStore
from tests.crash import mutants
from tests.crash.history import TASKS
from tests.crash.ledger import note

TASK_IDS = ("a", "b", "c")
LEASE = timedelta(seconds=0.1)
# Every third time a worker sleeps for longer than its lease, and wakes up as a zombie.
_PAUSES = (0.0, 0.005, 0.13)


class WrongClock:
    """The machine's time, off by so many seconds; after half of the run off by so many more."""

    def __init__(self, wrong: float, jump: float, seconds: float) -> None:
        self._wrong = timedelta(seconds=wrong)
        self._jump = timedelta(seconds=jump)
        self._half = time.monotonic() + seconds / 2

    def __call__(self) -> datetime:
        return system_clock() + self._wrong + (self._jump if time.monotonic() > self._half else timedelta())


async def contend(store: SqliteStore, me: str, notes: int, seconds: float) -> None:
    """Count up in each task's state, under its lease."""
    chance = random.Random(me)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
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
            note(notes, "saved", me, task, lease.fence, count)
            await store.release(lease)


async def main(path: Path, me: str, notes: int, seconds: float, clock: WrongClock) -> None:
    store = SqliteStore.open(path, readers=1, clock=clock)
    await contend(store, me, notes, seconds)
    await store.close()


if __name__ == "__main__":
    mutants.apply()
    file, name, pipe, lasting, off, leap = sys.argv[1:]
    own = WrongClock(float(off), float(leap), float(lasting))
    asyncio.run(main(Path(file), name, int(pipe), float(lasting), own))
