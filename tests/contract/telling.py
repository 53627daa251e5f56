"""Random lives of a memory of several people, and all that it tells of them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from recollect import AgentMemory, RecollectError, ResumableAgent
from recollect.stores.base import Tasks
from recollect.stores.connect import Place
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.conftest import indexed
from tests.flows.export.test_histories import ACTION, JSON, TEXT, act

# The first have no session: their logs have the name of the items that these are found by.
WHO: list[dict[str, str]] = [
    {"tenant": "acme", "user": "ada"},
    {"tenant": "acme", "user": "ada", "agent": "other", "session": "s1"},
    {"tenant": "globex", "user": "ada"},
    {"tenant": "globex", "user": "bob", "session": "ß 3"},
]
NAME = st.sampled_from(["job", "job 🦜"])

Action = tuple[Any, ...]
spoken = st.tuples(st.just("here"), TEXT, TEXT)
here = st.one_of(
    *(spoken, spoken, spoken),
    st.tuples(st.just("checkpoint"), NAME, JSON, st.sampled_from([None, 60.0, 1e9])),
    st.tuples(st.just("work"), NAME, st.lists(st.booleans(), min_size=1, max_size=3)),
    st.tuples(st.just("task at hand"), TEXT),
)
lives: st.SearchStrategy[list[tuple[int, Action]]] = st.lists(
    st.tuples(st.integers(0, len(WHO) - 1), ACTION | here), min_size=1, max_size=14
)


async def live(place: Place, clock: ManualClock, life: Sequence[tuple[int, Action]]) -> None:
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as root:
        for who, action in life:
            memory = root.scoped(**WHO[who])
            match action:
                case ("here", user, assistant):
                    await memory.record_turn(user, assistant)
                case ("checkpoint", name, state, seconds):
                    await memory.checkpoints.checkpoint(name, {"state": state}, ttl=seconds)
                case ("work", name, steps):
                    await _work(memory, name, steps)
                case ("task at hand", text):
                    await memory.start_task(text)
                    await memory.record_step(text, "look", text)
                case _:
                    await act(memory, clock, action)
        for scope in WHO:
            await indexed(root.scoped(**scope))


async def _work(memory: AgentMemory, name: str, steps: Sequence[bool]) -> None:
    """A run of some steps, each of which succeeds or does not."""

    def step(succeeds: bool) -> Any:
        async def body(state: dict[str, Any]) -> str:
            if not succeeds:
                raise ValueError("not today")
            return "done"

        return body

    plan = [step(succeeds) for succeeds in steps]
    for number, body in enumerate(plan):
        body.__name__ = f"step{number}"
    try:
        await ResumableAgent(memory, max_attempts=1).run(name, plan)
    except RecollectError:
        return  # the journal says how it ended


async def tell(place: Place, clock: ManualClock, directory: Path) -> list[Any]:
    """The exports, byte for byte, and what they leave out: tasks and what is recalled."""
    told: list[Any] = []
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as root:
        assert await root.check() == []
        for scope in WHO:
            memory = root.scoped(**scope)
            file = directory / "export.jsonl"
            await memory.export(file, overwrite=True)
            told += file.read_bytes().splitlines()
            told += [await memory.conversation.export(), await memory.episodic.get_recent(50)]
            told += await _tasks(memory)
        for scope in WHO:
            context = await root.scoped(**scope).recall("What was said about Lisbon?", min_relevance=0.0)
            told.append((str(context), [(hit.item.id, hit.tier, hit.score) for hit in context]))
    return told


async def _tasks(memory: AgentMemory) -> list[Any]:
    store: Tasks = memory.checkpoints.store
    told: list[Any] = []
    for task in await memory.checkpoints.tasks():
        told += [task, await memory.checkpoints.history(task.id)]
        told.append(await store.steps(memory.checkpoints.space, task.id))
    return [*told, *await store.expired(memory.checkpoints.space, memory.checkpoints.clock())]
