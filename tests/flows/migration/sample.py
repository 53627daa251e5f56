"""A store with data of every kind to migrate, and everything that the public API returns about it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, RecollectError, ResumableAgent
from recollect.stores.base import Tasks
from recollect.stores.factory import StoreLocation
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder

HOUR = timedelta(hours=1)
SCOPES = (
    {"tenant": "acme", "user": "ada", "agent": "helper", "session": "one"},
    {"tenant": "acme", "user": "ada", "agent": "helper", "session": "two/2"},
    {"tenant": "acme", "user": "bob", "agent": "clerk", "session": "one"},
    {"tenant": "globex", "user": "ada", "agent": "helper", "session": "one"},
)
QUERIES = ("Which units does Ada prefer?", "What happened to the export?", "deploy with a tag", "Where does she live?")


async def fill(place: StoreLocation, clock: ManualClock, fact_count: int = 300) -> None:
    """Store facts with histories, procedures, summarized conversations, episodes, and tasks in every state."""
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as root:
        for number, scope in enumerate(SCOPES):
            memory = root.scoped(**scope)
            await _talk(memory, clock, number)
            await _know(memory, clock, fact_count if number == 0 else 5)
            await _work(memory, clock)
            await memory.lifecycle.run_once()
            await memory.recall(QUERIES[0])
        # A session whose log is empty after expiry, and whose sequence numbers must continue.
        expired_session = root.scoped(**{**SCOPES[0], "session": "gone"})
        for n in range(7):
            await expired_session.episodic.store(f"Old news, number {n}.")
        await expired_session.lifecycle.run_once()
        clock.forward(30 * HOUR)
        await root.scoped(**SCOPES[2]).episodic.store("The newest of all.")
        await expired_session.lifecycle.run_once()


async def _talk(memory: AgentMemory, clock: ManualClock, number: int) -> None:
    for n in range(40 if number == 0 else 6):
        clock.forward(timedelta(seconds=30))
        await memory.record_turn(
            f"I live in town {n} and prefer metric units.", "Noted: \u202e漢字 👩‍👩‍👧", metadata={"n": n}
        )
    await memory.record_turn(
        "Look it up.", "Done.", tool_calls=[{"name": "look", "arguments": {"a": 1}, "result": "E1047"}]
    )
    await memory.episodic.store("The export failed.", kind="error", importance=0.9)


async def _know(memory: AgentMemory, clock: ManualClock, fact_count: int) -> None:
    for unit in ("imperial", "metric", "metric, always"):
        clock.forward(HOUR / 60)
        await memory.remember(f"Ada prefers {unit} units.", key="user.units", metadata={"a": {"b": [1, 0.5, None]}})
    await memory.semantic.add_many([{"content": f"Fact {n} is about subject {n % 17}."} for n in range(fact_count)])
    await memory.remember("A long text. " * 400, importance=0.25, trust=0.75, source="web")
    for body in ("Push a tag.", "Push a tag and wait."):
        await memory.procedural.save("deploy", body, tags=["release"])
        await memory.procedural.record_outcome("deploy", body == "Push a tag.", note="as told", seconds=1.5)


async def _work(memory: AgentMemory, clock: ManualClock) -> None:
    async def succeed(state: dict[str, Any]) -> str:
        return "first"

    async def fail(state: dict[str, Any]) -> None:
        raise ValueError("not today")

    for n in range(5):
        await memory.checkpoints.checkpoint("by hand", {"n": n})
    await memory.checkpoints.checkpoint("expires", {"n": 1}, ttl=60)
    agent = ResumableAgent(memory, max_attempts=1)
    await agent.run("done", [succeed])
    with pytest.raises(RecollectError, match="not today"):
        await agent.run("failed", [succeed, fail])
    await memory.start_task("Write the report")
    await memory.record_step("Begin.", "look", "nothing")


async def read_store(place: StoreLocation, clock: ManualClock, directory: Path) -> list[Any]:
    """Return everything that the public API returns about a store, and the bytes of its exports."""
    results: list[Any] = []
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as root:
        assert await root.check() == []
        for number, scope in enumerate(SCOPES):
            memory = root.scoped(**scope)
            path = directory / f"{number}.jsonl"
            await memory.export(path, overwrite=True)
            results.append(path.read_bytes())
            results += [await memory.conversation.export(), await memory.conversation.get_messages_for_llm()]
            results += [await memory.episodic.get_recent(50), await memory.procedural.history("deploy")]
            results += await _tasks(memory)
        for scope in SCOPES:
            memory = root.scoped(**scope)
            for query in QUERIES:
                context = await memory.recall(query)
                results.append((str(context), [(hit.item.id, hit.tier, hit.relevance, hit.score) for hit in context]))
            results.append((await memory.lifecycle.plan()).counts)
    return results


async def _tasks(memory: AgentMemory) -> list[Any]:
    store: Tasks = memory.checkpoints._store
    results: list[Any] = []
    for task in await memory.checkpoints.tasks():
        results += [task, await memory.checkpoints.history(task.id), await memory.checkpoints.restore(task.id)]
        results.append(await store.steps(memory.checkpoints._space, task.id))
    results += await store.expired(memory.checkpoints._space, memory.checkpoints.clock())
    return results
