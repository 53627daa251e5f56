"""Whatever two people have told, erasing one changes nothing of the other: their exports are the same to the byte."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from recollect import AgentMemory
from recollect.testing import ManualClock
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
SAYING = st.tuples(st.sampled_from(USERS), st.sampled_from(["fact", "keyed", "turn", "task", "state", "live"]), TEXTS)


@settings(max_examples=12, deadline=None)
@given(st.lists(SAYING, min_size=3, max_size=14), st.sampled_from(["memory://", "file"]))
def test_erasing_one_user_changes_nothing_of_any_other(sayings: list[tuple[str, str, str]], place: str):
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_tried(sayings, place, Path(directory)))


async def _tried(sayings: list[tuple[str, str, str]], place: str, directory: Path) -> None:
    store = str(directory / "agent.db") if place == "file" else place
    clock = ManualClock()
    async with AgentMemory.open(store, embedder=HashEmbedder(), clock=clock) as memory:
        people = {user: memory.scoped(user=user, session="s") for user in USERS}
        for user, what, text in sayings:
            await _said(people[user], what, text)
        await memory.lifecycle.run_once(everybody=True)
        before = await _exports(people, directory, "before")
        states = await _states(people)
        receipt = await memory.erase(user="ada")
        assert receipt.complete
        assert await _exports(people, directory, "after") == before
        assert await _states(people) == states
        assert await memory.check() == []
        ada = await people["ada"].stats()
        assert sum(ada.tiers[tier].items for tier in ("semantic", "conversation", "episodic")) == 0


async def _said(memory: AgentMemory, what: str, text: str) -> None:
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


async def _exports(people: dict[str, AgentMemory], directory: Path, name: str) -> dict[str, bytes]:
    found = {}
    for user in USERS[1:]:
        path = directory / f"{name}-{user}.jsonl"
        await people[user].export(path)
        found[user] = path.read_bytes()
    return found


async def _states(people: dict[str, AgentMemory]) -> list[object]:
    return [await people[user].checkpoints.history(f"task of {user}") for user in USERS[1:]]
