"""Erasing one user never changes another: their exports stay byte-identical for random histories."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from recollect import AgentMemory
from recollect.testing import ManualClock
from tests.budgets import limit_examples
from tests.embedders import HashEmbedder

USERS = ("ada", "bob", "cem")
TEXTS = st.sampled_from(
    [
        "I live in Lisbon.",
        "I prefer tea to coffee.",
        "Remember that I am allergic to peanuts.",
        "The project is due in June.",
        "My dog is called Rex.",
    ]
)
ACTION = st.tuples(st.sampled_from(USERS), st.sampled_from(["fact", "keyed", "turn", "task", "state", "live"]), TEXTS)


@limit_examples(0.12)
@given(st.lists(ACTION, min_size=3, max_size=14), st.sampled_from(["memory://", "file"]))
def test_erase_user_changes_nothing_of_other_users(actions: list[tuple[str, str, str]], place: str):
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_run_actions(actions, place, Path(directory)))


async def _run_actions(actions: list[tuple[str, str, str]], place: str, directory: Path) -> None:
    store = str(directory / "agent.db") if place == "file" else place
    clock = ManualClock()
    async with AgentMemory.open(store, embedder=HashEmbedder(), clock=clock) as memory:
        memories = {user: memory.scoped(user=user, session="s") for user in USERS}
        for user, what, text in actions:
            await _apply(memories[user], what, text)
        await memory.lifecycle.run_once(all_users=True)
        before = await _exports(memories, directory, "before")
        states = await _states(memories)
        receipt = await memory.erase(user="ada")
        assert receipt.complete
        assert await _exports(memories, directory, "after") == before
        assert await _states(memories) == states
        assert await memory.check() == []
        ada = await memories["ada"].stats()
        assert sum(ada.tiers[tier].items for tier in ("semantic", "conversation", "episodic")) == 0


async def _apply(memory: AgentMemory, what: str, text: str) -> None:
    match what:
        case "fact":
            await memory.remember(text, metadata={"from": memory.scope.user})
        case "keyed":
            await memory.remember(text, key="one.thing")
        case "turn":
            await memory.record_turn(text, "Noted.")
        case "task":
            await memory.start_task(text)
            await memory.record_step("think", "act", "done")
            await memory.end_task(True, "it worked")
        case "state":
            await memory.checkpoints.checkpoint(f"task of {memory.scope.user}", {"text": text}, ttl=None)
        case _:
            await memory.lifecycle.run_once()


async def _exports(memories: dict[str, AgentMemory], directory: Path, name: str) -> dict[str, bytes]:
    found = {}
    for user in USERS[1:]:
        path = directory / f"{name}-{user}.jsonl"
        await memories[user].export(path)
        found[user] = path.read_bytes()
    return found


async def _states(memories: dict[str, AgentMemory]) -> list[object]:
    return [await memories[user].checkpoints.history(f"task of {user}") for user in USERS[1:]]
