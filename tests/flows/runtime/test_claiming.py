"""Whoever is cancelled while a lease is being taken leaves none behind: the next worker need not wait for its end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import LeaseHeld
from recollect.stores.base import Lease, Tasks

MINUTE = timedelta(minutes=1)


class Slow:
    """A store whose answer to a claim takes its time on the way."""

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
    made = Slow(memory.checkpoints.store)
    memory.checkpoints.store = made
    return made


async def owner(memory: AgentMemory) -> str | None:
    task = await memory.checkpoints.task("t")
    assert task is not None
    return task.owner


async def test_a_run_that_is_cancelled_while_it_claims_gives_the_lease_back(
    memory: AgentMemory, slow: Slow, agent, trail
):
    # Mutant: a plain `await store.claim(…)`.
    run = asyncio.create_task(agent().run("t", trail.steps("a")))
    await slow.taken.wait()
    assert await owner(memory) is not None
    run.cancel()
    slow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await owner(memory) is None
    await agent().run("t", trail.steps("a"))  # at once: the clock stands still
    assert trail.ran == ["a"]


async def test_one_who_is_cancelled_twice_does_not_wait_and_the_lease_is_given_back(
    memory: AgentMemory, slow: Slow, agent, trail
):
    # Mutant: a giving back that the second cancellation ends.
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


async def test_a_retry_that_is_cancelled_gives_the_lease_back(memory: AgentMemory, slow: Slow):
    await memory.checkpoints.checkpoint("t", {})
    retry = asyncio.create_task(memory.checkpoints.retry("t"))
    await slow.taken.wait()
    retry.cancel()
    slow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await retry
    assert await owner(memory) is None


async def test_the_lease_of_another_stays_theirs(memory: AgentMemory, slow: Slow, agent, trail):
    other = await slow._real.claim(memory.checkpoints.space, "t", "another", MINUTE)
    run = asyncio.create_task(agent().run("t", trail.steps("a")))
    await slow.taken.wait()
    run.cancel()
    slow.go.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await owner(memory) == "another"
    with pytest.raises(LeaseHeld):
        await agent().run("t", trail.steps("a"))
    await memory.checkpoints.store.release(other)


async def test_a_step_that_is_cancelled_gives_the_lease_back(memory: AgentMemory, agent):
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
