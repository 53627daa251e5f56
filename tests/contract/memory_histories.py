"""Random actions on a memory of several users, and all its answers afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from recollect import AgentMemory, RecollectError, ResumableAgent
from recollect.stores.base import Tasks
from recollect.stores.factory import StoreLocation
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.conftest import indexed
from tests.flows.export.test_histories import ACTION, JSON, TEXT, act

# Scopes without a session have logs in the same space as their items.
SCOPES: list[dict[str, str]] = [
    {"tenant": "acme", "user": "ada"},
    {"tenant": "acme", "user": "ada", "agent": "other", "session": "s1"},
    {"tenant": "globex", "user": "ada"},
    {"tenant": "globex", "user": "bob", "session": "ß 3"},
]
NAME = st.sampled_from(["job", "job 🦜"])

Action = tuple[Any, ...]
turns = st.tuples(st.just("here"), TEXT, TEXT)
here = st.one_of(
    *(turns, turns, turns),
    st.tuples(st.just("checkpoint"), NAME, JSON, st.sampled_from([None, 60.0, 1e9])),
    st.tuples(st.just("work"), NAME, st.lists(st.booleans(), min_size=1, max_size=3)),
    st.tuples(st.just("task at hand"), TEXT),
)
action_lists: st.SearchStrategy[list[tuple[int, Action]]] = st.lists(
    st.tuples(st.integers(0, len(SCOPES) - 1), ACTION | here), min_size=1, max_size=14
)


async def run_actions(place: StoreLocation, clock: ManualClock, actions: Sequence[tuple[int, Action]]) -> None:
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as root:
        for scope_index, action in actions:
            memory = root.scoped(**SCOPES[scope_index])
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
        for scope in SCOPES:
            await indexed(root.scoped(**scope))


async def _work(memory: AgentMemory, name: str, steps: Sequence[bool]) -> None:
    """Run a task whose steps succeed or fail."""

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
        return  # the journal has the result


async def read_answers(
    place: StoreLocation, clock: ManualClock, directory: Path, *, is_exact: bool = True
) -> list[Any]:
    """Return the exports, the tasks, and the answers of recall: their scores if the search of all stores is exact."""
    result: list[Any] = []
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as root:
        assert await root.check() == []
        for scope in SCOPES:
            memory = root.scoped(**scope)
            file = directory / "export.jsonl"
            await memory.export(file, overwrite=True)
            result += file.read_bytes().splitlines()
            result += [await memory.conversation.export(), await memory.episodic.get_recent(50)]
            result += await _tasks(memory)
        for scope in SCOPES:
            context = await root.scoped(**scope).recall("What was said about Lisbon?", min_relevance=0.0)
            hits = [(hit.item.id, hit.tier, hit.score) for hit in context]
            result.append((str(context), hits) if is_exact else bool(hits))
    return result


async def _tasks(memory: AgentMemory) -> list[Any]:
    store: Tasks = memory.checkpoints._store
    result: list[Any] = []
    for task in await memory.checkpoints.tasks():
        result += [task, await memory.checkpoints.history(task.id)]
        result.append(await store.steps(memory.checkpoints._space, task.id))
    return [*result, *await store.expired(memory.checkpoints._space, memory.checkpoints.clock())]
