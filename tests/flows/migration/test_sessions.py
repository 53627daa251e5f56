"""Conversations without a session: the log and its index items share a space name, and both are migrated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import Conflict
from recollect.portability.migration import migrate_store
from recollect.stores.factory import StoreLocation
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.conftest import indexed

LOGS = ("conversation", "episodic", "checkpoints")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    return tmp_path / "filled.db"


async def record_turns(place: StoreLocation, clock: ManualClock) -> None:
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as memory:
        for town in ("Lisbon", "Porto", "Faro"):
            await memory.record_turn(f"I was in {town}.", "How was it?")
        await indexed(memory)


async def read_conversation(place: StoreLocation, clock: ManualClock) -> tuple[Any, ...]:
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as memory:
        found = await memory.recall("Who was in Porto?")
        return await memory.conversation.export(), str(found), (await memory.stats()).tiers["conversation"]


async def test_conversation_without_session_is_migrated(
    filled: Path, tmp_path: Path, redis_url: str, database: Callable[[], str]
):
    # Mutant: logs that share their name with items are not counted.
    clock = ManualClock()
    await record_turns(filled, clock)
    expected = await read_conversation(filled, clock)
    assert expected[2].items == 6
    routed = {"default": str(tmp_path / "facts.db"), **dict.fromkeys(LOGS, redis_url)}
    source: StoreLocation = filled
    for target in (database(), tmp_path / "other.db", routed, tmp_path / "last.db"):
        report = await migrate_store(source, target)
        assert report.copied == report.held > 0
        assert await read_conversation(target, clock) == expected
        source = target


async def test_conflicting_target_raises_before_any_write(filled: Path, database: Callable[[], str]):
    # Mutant: the sequence counter of the target is not checked.
    clock = ManualClock()
    await record_turns(filled, clock)
    facts_first, together = database(), database()
    await migrate_store(filled, {"semantic": facts_first})
    with pytest.raises(Conflict, match="before the facts or with them"):
        await migrate_store(filled, {"conversation": facts_first})
    async with AgentMemory.open(facts_first, embedder=HashEmbedder(), clock=clock) as memory:
        assert await memory.conversation.get_last_n(9) == []
    for tier in ("conversation", "semantic"):
        await migrate_store(filled, {tier: together})
    async with AgentMemory.open(together, embedder=HashEmbedder(), clock=clock) as memory:
        assert len(await memory.conversation.get_last_n(9)) == 6


async def test_sequence_of_empty_log_continues_after_migration(tmp_path: Path, redis_url: str):
    """The read position of the lifecycle is in another store, which is not migrated."""
    # Mutant: only the tenants of existing entries are migrated.
    clock = ManualClock()
    second = redis_url.replace("/0", "/1")
    place = {"default": str(tmp_path / "facts.db"), "conversation": redis_url}
    await record_turns(place, clock)
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as memory:
        await memory.conversation.clear()
    await migrate_store(place, {"conversation": second})
    place["conversation"] = second
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock) as memory:
        await memory.record_turn("My sister is called Wilhelmina.", "Noted.")
        [message, _] = await memory.conversation.get_last_n(9)
        assert message.seq == 7
