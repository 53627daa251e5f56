"""Nobody reads, changes, counts or is told of what is somebody else's, by any public method and with any name."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recollect import AgentMemory
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.safety.doors import CASES, IN_MIND, OF_THE_STORE, PARTS, parts_of, public
from tests.safety.worlds import ALL, Tokens, Worlds, open_worlds, people, tried
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

# A thousand calls and more in all; `make soak` makes twenty times as many.
CALLS = 50
EXAMPLES = {"memory": 10, "sqlite": 6, "postgres": 3, "redis and chroma": 2}
KINDS = len(people())
# Three in four are calls that reach a store.
calls = st.lists(
    st.tuples(st.sampled_from(sorted(CASES)) | st.sampled_from(sorted(ALL)), st.integers(0, 1 << 20)),
    min_size=CALLS,
    max_size=CALLS,
)


async def test_every_public_method_has_a_case_or_a_reason():
    """A new method that nobody thought of here fails this test."""
    async with AgentMemory.open("memory://", embedder=HashEmbedder(), clock=ManualClock()) as memory:
        assert parts_of(memory) == set(PARTS)
        assert sorted([*CASES, *IN_MIND, *OF_THE_STORE]) == public(memory)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Tokens:
    made = Tokens()
    monkeypatch.setattr(secrets, "token_hex", made)
    return made


@pytest.fixture(params=EXAMPLES)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Where one is alone, and where others are too."""
    match request.param:
        case "memory":
            yield "memory://", "memory://"
        case "sqlite":
            yield str(tmp_path / "alone.db"), str(tmp_path / "among.db")
        case "postgres":
            server: Server = request.getfixturevalue("postgres")
            yield server.create("alone"), server.create("among")
            for name in ("alone", "among"):
                server.drop(name)
        case _:
            redis: RedisServer = request.getfixturevalue("redis_server")
            with redis.client() as client:
                client.flushall()
            alone, among = (
                {
                    **dict.fromkeys(("conversation", "episodic", "checkpoints"), redis.url.removesuffix("0") + str(n)),
                    **dict.fromkeys(("semantic", "procedural"), f"chroma:{tmp_path / str(n)}"),
                }
                for n in range(2)
            )
            yield alone, among


def test_whoever_is_among_others_sees_what_they_would_see_alone(
    places: tuple[Any, Any], tokens: Tokens, tmp_path: Path, request: pytest.FixtureRequest
):
    """Mutants: any statement of any store without its space, or without its tenant. Run by hand: `get` in memory, on
    SQLite and on PostgreSQL; who speaks, on SQLite; keys of Redis without the agent; collections of Chroma without
    the tenant."""
    kind = request.node.callspec.params["places"]
    with asyncio.Runner() as runner:
        worlds = runner.run(open_worlds(*places, tokens, tmp_path))

        # Not made smaller when one fails, for that takes minutes: the call that differs is named with its seed.
        @settings(
            max_examples=max(EXAMPLES[kind], EXAMPLES[kind] * settings().max_examples // 100),
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
        )
        @given(st.integers(0, KINDS - 1), calls)
        def play(whose: int, made: list[tuple[str, int]]) -> None:
            runner.run(tried(worlds, whose, made))

        try:
            play()
        finally:
            runner.run(_closed(worlds))


async def _closed(worlds: Worlds) -> None:
    await worlds.alone.close()
    await worlds.among_others.close()
