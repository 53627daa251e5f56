"""A store with something of everything in it, for migrations to move, and all that can be seen of it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, RecollectError, ResumableAgent
from recollect.stores.base import Tasks
from recollect.stores.connect import Place
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


async def fill(place: Place, clock: ManualClock, many: int = 300) -> None:
    """Facts with histories, procedures, conversations that were summed up, episodes, and tasks in every state."""
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as root:
        for number, scope in enumerate(SCOPES):
            memory = root.scoped(**scope)
            await _talk(memory, clock, number)
            await _know(memory, clock, many if number == 0 else 5)
            await _work(memory, clock)
            await memory.lifecycle.run_once()
            await memory.recall(QUERIES[0])
        # A session whose log is empty by now, and which goes on where it had stopped.
        gone = root.scoped(**{**SCOPES[0], "session": "gone"})
        for n in range(7):
            await gone.episodic.store(f"Old news, number {n}.")
        await gone.lifecycle.run_once()
        clock.forward(30 * HOUR)
        await root.scoped(**SCOPES[2]).episodic.store("The newest of all.")
        await gone.lifecycle.run_once()


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


async def _know(memory: AgentMemory, clock: ManualClock, many: int) -> None:
    for unit in ("imperial", "metric", "metric, always"):
        clock.forward(HOUR / 60)
        await memory.remember(f"Ada prefers {unit} units.", key="user.units", metadata={"a": {"b": [1, 0.5, None]}})
    await memory.semantic.add_many([{"content": f"Fact {n} is about subject {n % 17}."} for n in range(many)])
    await memory.remember("A long text. " * 400, importance=0.25, trust=0.75, source="web")
    for body in ("Push a tag.", "Push a tag and wait."):
        await memory.procedural.save("deploy", body, tags=["release"])
        await memory.procedural.record_outcome("deploy", body == "Push a tag.", note="as told", seconds=1.5)


async def _work(memory: AgentMemory, clock: ManualClock) -> None:
    async def one(state: dict[str, Any]) -> str:
        return "first"

    async def fails(state: dict[str, Any]) -> None:
        raise ValueError("not today")

    for n in range(5):
        await memory.checkpoints.checkpoint("by hand", {"n": n})
    await memory.checkpoints.checkpoint("expires", {"n": 1}, ttl=60)
    agent = ResumableAgent(memory, max_attempts=1)
    await agent.run("done", [one])
    with pytest.raises(RecollectError, match="not today"):
        await agent.run("failed", [one, fails])
    await memory.start_task("Write the report")
    await memory.record_step("Begin.", "look", "nothing")


async def seen(place: Place, clock: ManualClock, directory: Path) -> list[Any]:
    """Everything that the public calls tell of a store, and the bytes of its exports."""
    told: list[Any] = []
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as root:
        assert await root.check() == []
        for number, scope in enumerate(SCOPES):
            memory = root.scoped(**scope)
            path = directory / f"{number}.jsonl"
            await memory.export(path, overwrite=True)
            told.append(path.read_bytes())
            told += [await memory.conversation.export(), await memory.conversation.get_messages_for_llm()]
            told += [await memory.episodic.get_recent(50), await memory.procedural.history("deploy")]
            told += await _tasks(memory)
        for scope in SCOPES:
            memory = root.scoped(**scope)
            for query in QUERIES:
                context = await memory.recall(query)
                told.append((str(context), [(hit.item.id, hit.tier, hit.relevance, hit.score) for hit in context]))
            told.append((await memory.lifecycle.plan()).counts)
    return told


async def _tasks(memory: AgentMemory) -> list[Any]:
    store: Tasks = memory.checkpoints.store
    told: list[Any] = []
    for task in await memory.checkpoints.tasks():
        told += [task, await memory.checkpoints.history(task.id), await memory.checkpoints.restore(task.id)]
        told.append(await store.steps(memory.checkpoints.space, task.id))
    told += await store.expired(memory.checkpoints.space, memory.checkpoints.clock())
    return told
