"""Claims go by the time at which the file was theirs, not by that at which they began to wait for it."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from recollect.errors import LeaseHeld
from recollect.stores.leases import Claim
from recollect.stores.sqlite import SqliteStore, tasks
from recollect.testing import ManualClock
from recollect.testing.samples import SPACE

TTL = timedelta(seconds=30)


async def test_who_waited_for_the_file_does_not_take_a_lease_that_was_given_meanwhile(tmp_path: Path):
    clock = ManualClock()
    ours = SqliteStore.open(tmp_path / "store.db", clock=clock)
    others = SqliteStore.open(tmp_path / "store.db", clock=clock)
    has_the_file, go_on = threading.Event(), threading.Event()

    def claimed_late(connection: apsw.Connection) -> object:
        has_the_file.set()
        assert go_on.wait(20)
        return tasks.claim(connection, Claim(SPACE, "job", "other", TTL, None), clock())

    other = others._writer.queue(claimed_late, durable=True)
    assert await asyncio.to_thread(has_the_file.wait, 20)
    waiting = asyncio.create_task(ours.claim(SPACE, "job", "us", TTL))
    await asyncio.sleep(0)  # it has begun, and waits
    clock.forward(timedelta(seconds=5))
    go_on.set()
    with pytest.raises(LeaseHeld):
        await waiting
    await asyncio.to_thread(other.result)
    await ours.close()
    await others.close()
