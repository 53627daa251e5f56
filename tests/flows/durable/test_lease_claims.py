"""Cancellation during a lease claim: the lease is released, so the next worker does not wait for its expiry."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import LeaseHeld
from recollect.stores.base import Tasks
from recollect.stores.writes import Lease

MINUTE = timedelta(minutes=1)


class Slow:
    """Store that delays the response to a claim."""

    def __init__(self, real: Tasks) -> None:
        self._real = real
        self.taken = asyncio.Event()
        self.go = asyncio.Event()
        self.released = asyncio.Event()

    async def claim(self, *given: Any, **named: Any) -> Lease:
        try:
            return await self._real.claim(*given, **named)
        finally:
            self.taken.set()
            await self.go.wait()

    async def release(self, lease: Lease) -> None:
        await self._real.release(lease)
        self.released.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def slow(memory: AgentMemory) -> Slow:
    slow_store = Slow(memory.checkpoints._store)
    memory.checkpoints._store = slow_store
    return slow_store


async def owner(memory: AgentMemory) -> str | None:
    task = await memory.checkpoints.task("t")
    assert task is not None
    return task.owner


async def test_run_cancelled_during_the_claim_releases_the_lease(memory: AgentMemory, slow: Slow, agent, trail):
    # Mutant: a plain `await store.claim(…)` without protection.
    run = asyncio.create_task(agent().run("t", trail.steps("a")))
    await slow.taken.wait()
    assert await owner(memory) is not None
    run.cancel()
    slow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await owner(memory) is None
    await agent().run("t", trail.steps("a"))  # without waiting: the clock does not advance
    assert trail.ran == ["a"]


async def test_run_cancelled_twice_during_the_claim_releases_the_lease(memory: AgentMemory, slow: Slow, agent, trail):
    # Mutant: the second cancellation stops the release.
    run = asyncio.create_task(agent().run("t", trail.steps("a")))
    await slow.taken.wait()
    for _ in range(2):
        run.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await run
    slow.go.set()
    async with asyncio.timeout(60):
        await slow.released.wait()
    assert await owner(memory) is None


async def test_retry_cancelled_during_the_claim_releases_the_lease(memory: AgentMemory, slow: Slow):
    await memory.checkpoints.checkpoint("t", {})
    retry = asyncio.create_task(memory.checkpoints.retry("t"))
    await slow.taken.wait()
    retry.cancel()
    slow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await retry
    assert await owner(memory) is None


async def test_run_cancelled_during_the_claim_keeps_the_lease_of_another_worker(
    memory: AgentMemory, slow: Slow, agent, trail
):
    other = await slow._real.claim(memory.checkpoints._space, "t", "another", MINUTE)
    run = asyncio.create_task(agent().run("t", trail.steps("a")))
    await slow.taken.wait()
    run.cancel()
    slow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await owner(memory) == "another"
    with pytest.raises(LeaseHeld):
        await agent().run("t", trail.steps("a"))
    await memory.checkpoints._store.release(other)


async def test_cancelled_step_releases_the_lease(memory: AgentMemory, agent):
    begun = asyncio.Event()

    async def long(state):
        begun.set()
        await asyncio.Event().wait()

    run = asyncio.create_task(agent().run("t", [long]))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await owner(memory) is None
