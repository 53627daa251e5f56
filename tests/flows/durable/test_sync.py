"""Blocking checkpoints and agents."""

from __future__ import annotations

import inspect
import threading

import pytest

from recollect import durable, step, sync
from recollect.errors import TaskPoisoned
from tests.embedders import HashEmbedder
from tests.flows.durable.working import Killed, Waits


@pytest.fixture
def blocking(place: str):
    with sync.AgentMemory.open(place, embedder=HashEmbedder()) as opened:
        yield opened


@pytest.mark.parametrize("name", ["Checkpoints", "ResumableAgent"])
def test_every_coroutine_has_a_blocking_method(name: str):
    twin = getattr(sync, name)
    for method, function in inspect.getmembers(getattr(durable, name), inspect.iscoroutinefunction):
        if not method.startswith("_"):
            assert inspect.signature(getattr(twin, method)) == inspect.signature(function)
            assert getattr(twin, method).__doc__ == function.__doc__


def test_plain_functions_run_as_steps_in_threads(blocking: sync.AgentMemory):
    threads = set()

    def quote(state):
        threads.add(threading.current_thread())
        return 42

    @step(retries=2)
    def charge(state, ctx):
        # Writes to ctx.memory need no await, and are committed with the completion.
        ctx.memory.remember(f"The quote was {state['results']['step_0_quote']}.")
        ctx.working.add_thought("charged")
        assert blocking.stats().items == 0
        return ctx.idempotency_key[:4]

    async def notify(state, ctx):
        await ctx.memory.remember("The customer was told.")

    agent = sync.ResumableAgent(blocking, _timing=Waits().pace)
    state = agent.run("invoice-42", [quote, charge, notify])
    assert state["results"]["step_0_quote"] == 42
    assert threading.main_thread() not in threads
    assert blocking.stats().items == 2
    assert blocking.working.scratchpad == ["charged"]
    assert agent.run("invoice-42", [quote, charge, notify]) == state


def test_blocking_agent_recovers_from_a_crash_and_a_poisoned_step(blocking: sync.AgentMemory):
    ran = []

    def deadly(state, ctx):
        ran.append(ctx.attempt)
        raise Killed if ctx.attempt == 1 else OSError("busy")

    agent = sync.ResumableAgent(blocking, max_attempts=2, _timing=Waits().pace)
    with pytest.raises(Killed):
        agent.run("t", [deadly])
    with pytest.raises(TaskPoisoned):
        agent.run("t", [deadly])
    assert ran == [1, 2]
    assert [task.id for task in blocking.checkpoints.tasks("poisoned")] == ["t"]
    assert blocking.checkpoints.retry("t")
    assert blocking.checkpoints.delete("t")
