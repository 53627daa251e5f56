"""The index of what was said, where the stores are servers: on PostgreSQL alone, and with the talk itself on Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.stores.ops import Drop
from tests.embedders import HashEmbedder
from tests.flows.conftest import indexed
from tests.flows.saying import REMARK, found, rows, small_talk
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
        assert {item.content for item in await rows(memory) if item.turn and item.turn.session == "home"} == {
            REMARK,
            "Poor you.",
        }
    async with AgentMemory.open(places, user="ada", session="home", embedder=HashEmbedder()) as memory:
        assert await found(memory) == [REMARK]
        await memory.conversation.clear()
        assert await found(memory) == []
        await indexed(memory)
        assert not any("cello" in item.content for item in await rows(memory))


async def test_on_postgres(postgres: Server):
    await talk_and_clear({"default": postgres.create("said")})


async def test_with_the_conversation_on_redis(postgres: Server, redis_server: RedisServer):
    await talk_and_clear({"default": postgres.create("said_apart"), "conversation": redis_server.url})


async def test_what_the_index_alone_still_has_was_never_found(tmp_path: Path, redis_server: RedisServer):
    """Two stores cannot be changed at one moment, and the log is the one that counts."""
    # Mutant: what the index has is told without a look into the log.
    places = {"default": str(tmp_path / "beside.db"), "conversation": redis_server.url}
    async with AgentMemory.open(places, user="ada", session="home", embedder=HashEmbedder()) as memory:
        await memory.record_turn(REMARK, "Poor you.")
        await small_talk(memory)
        await indexed(memory)
        assert await found(memory) == [REMARK]
        log, space = memory._parts.stores.log("conversation"), memory.conversation.space
        seqs = tuple(entry.seq for entry in await log.read(space) if entry.content == REMARK)
        await log.write(Drop(space, seqs))
        assert await found(memory) == []
