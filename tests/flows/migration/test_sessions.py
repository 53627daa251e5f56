"""What was said in no session: its log and the items it is found by have one name, and both are moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, Conflict
from recollect.memory import migrate_store
from recollect.stores.connect import Place
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.conftest import indexed

LOGS = ("conversation", "episodic", "checkpoints")


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return tmp_path / "told.db"


async def tell(place: Place, clock: ManualClock) -> None:
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as memory:
        for town in ("Lisbon", "Porto", "Faro"):
            await memory.record_turn(f"I was in {town}.", "How was it?")
        await indexed(memory)


async def heard(place: Place, clock: ManualClock) -> tuple[Any, ...]:
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as memory:
        found = await memory.recall("Who was in Porto?")
        return await memory.conversation.export(), str(found), (await memory.stats()).tiers["conversation"]


async def test_a_conversation_in_no_session_is_moved(
    told: Path, tmp_path: Path, redis_url: str, database: Callable[[], str]
):
    # Mutant: `counted` without the logs that share their name with items, as it was.
    clock = ManualClock()
    await tell(told, clock)
    expected = await heard(told, clock)
    assert expected[2].items == 6
    routed = {"default": str(tmp_path / "facts.db"), **dict.fromkeys(LOGS, redis_url)}
    source: Place = told
    for target in (database(), tmp_path / "other.db", routed, tmp_path / "last.db"):
        report = await migrate_store(source, target)
        assert report.copied == report.held > 0
        assert await heard(target, clock) == expected
        source = target


async def test_a_place_that_is_taken_is_told_of_before_anything_is_written(told: Path, database: Callable[[], str]):
    # Mutant: no look at how far the target has counted.
    clock = ManualClock()
    await tell(told, clock)
    facts_first, together = database(), database()
    await migrate_store(told, {"semantic": facts_first})
    with pytest.raises(Conflict, match="before the facts or with them"):
        await migrate_store(told, {"conversation": facts_first})
    async with AgentMemory.open(facts_first, embedder=HashEmbedder(), clock=clock) as memory:
        assert await memory.conversation.get_last_n(9) == []
    for tier in ("conversation", "semantic"):
        await migrate_store(told, {tier: together})
    async with AgentMemory.open(together, embedder=HashEmbedder(), clock=clock) as memory:
        assert len(await memory.conversation.get_last_n(9)) == 6


async def test_an_empty_log_counts_on_also_where_its_tenant_has_nothing_else(tmp_path: Path, redis_url: str):
    """The notes of how far it was read are in another store, which stays."""
    # Mutant: the tenants of what is there alone.
    clock = ManualClock()
    second = redis_url.replace("/0", "/1")
    place = {"default": str(tmp_path / "facts.db"), "conversation": redis_url}
    await tell(place, clock)
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as memory:
        await memory.conversation.clear()
    await migrate_store(place, {"conversation": second})
    place["conversation"] = second
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as memory:
        await memory.record_turn("My sister is called Wilhelmina.", "Noted.")
        [message, _] = await memory.conversation.get_last_n(9)
        assert message.seq == 7
