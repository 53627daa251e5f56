"""The turn index on servers: PostgreSQL alone, and with the conversation on Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.stores.writes import Drop
from tests.embedders import HashEmbedder
from tests.flows.conftest import indexed
from tests.flows.conversation_fixtures import REMARK, load_index, search_turns, small_talk
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


async def talk_and_clear(places: dict[str, str]) -> None:
    async with AgentMemory.open(places, user="ada", session="home", embedder=HashEmbedder()) as memory:
        await memory.record_turn(REMARK, "Poor you.")
        await memory.record_turn("Between us: I hate the cello.")
        await small_talk(memory)
        await indexed(memory)
        assert {item.content for item in await load_index(memory) if item.turn and item.turn.session == "home"} == {
            REMARK,
            "Poor you.",
        }
    async with AgentMemory.open(places, user="ada", session="home", embedder=HashEmbedder()) as memory:
        assert await search_turns(memory) == [REMARK]
        await memory.conversation.clear()
        assert await search_turns(memory) == []
        await indexed(memory)
        assert not any("cello" in item.content for item in await load_index(memory))


async def test_turn_index_on_postgres(postgres: Server):
    await talk_and_clear({"default": postgres.create("said")})


async def test_turn_index_with_the_conversation_on_redis(postgres: Server, redis_server: RedisServer):
    await talk_and_clear({"default": postgres.create("said_apart"), "conversation": redis_server.url})


async def test_indexed_turn_missing_from_the_log_is_not_returned(tmp_path: Path, redis_server: RedisServer):
    """Two stores cannot change in one transaction, so the log decides."""
    # Mutant: indexed turns are returned without a check of the log.
    places = {"default": str(tmp_path / "beside.db"), "conversation": redis_server.url}
    async with AgentMemory.open(places, user="ada", session="home", embedder=HashEmbedder()) as memory:
        await memory.record_turn(REMARK, "Poor you.")
        await small_talk(memory)
        await indexed(memory)
        assert await search_turns(memory) == [REMARK]
        log, space = memory._engine.stores.log("conversation"), memory.conversation._space
        seqs = tuple(entry.seq for entry in await log.read(space) if entry.content == REMARK)
        await log.write(Drop(space, seqs))
        assert await search_turns(memory) == []
