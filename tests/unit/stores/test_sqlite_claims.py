"""Claims use the time at which the transaction starts, not the time at which it was queued."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from recollect.errors import LeaseHeld
from recollect.stores.leases import LeaseRequest
from recollect.stores.sqlite import SqliteStore, tasks
from recollect.testing import ManualClock
from recollect.testing.factories import SPACE

TTL = timedelta(seconds=30)


async def test_claim_waiting_for_the_writer_does_not_take_a_newer_lease(tmp_path: Path):
    clock = ManualClock()
    ours = SqliteStore.open(tmp_path / "store.db", clock=clock)
    others = SqliteStore.open(tmp_path / "store.db", clock=clock)
    has_the_file, go_on = threading.Event(), threading.Event()

    def claimed_late(connection: apsw.Connection) -> object:
        has_the_file.set()
        assert go_on.wait(20)
        return tasks.claim_task(connection, LeaseRequest(SPACE, "job", "other", TTL, None), clock())

    other = others._writer.enqueue(claimed_late, durable=True)
    assert await asyncio.to_thread(has_the_file.wait, 20)
    waiting = asyncio.create_task(ours.claim(SPACE, "job", "us", TTL))
    await asyncio.sleep(0)  # it has started, and waits
    clock.forward(timedelta(seconds=5))
    go_on.set()
    with pytest.raises(LeaseHeld):
        await waiting
    await asyncio.to_thread(other.result)
    await ours.close()
    await others.close()
