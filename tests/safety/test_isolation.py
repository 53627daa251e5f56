"""Isolation: no public method reads, changes, counts or reveals data of another scope, whatever names it is given."""

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
from tests.safety.isolated_stores import ALL, StorePair, TokenSequence, compare_calls, list_scopes, open_pair
from tests.safety.method_cases import CASES, PARTS, STORE_METHODS, WORKING_CASES, list_parts, list_public_methods
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

# More than a thousand calls in total; `make soak` makes twenty times as many.
CALLS = 50
EXAMPLES = {"memory": 10, "sqlite": 6, "postgres": 3, "redis and chroma": 2}
SCOPE_COUNT = len(list_scopes())
# Three in four calls reach a store.
calls = st.lists(
    st.tuples(st.sampled_from(sorted(CASES)) | st.sampled_from(sorted(ALL)), st.integers(0, 1 << 20)),
    min_size=CALLS,
    max_size=CALLS,
)


async def test_every_public_method_has_a_case_or_a_reason():
    """A new public method without a case fails this test."""
    async with AgentMemory.open("memory://", embedder=HashEmbedder(), clock=ManualClock()) as memory:
        assert list_parts(memory) == set(PARTS)
        assert sorted([*CASES, *WORKING_CASES, *STORE_METHODS]) == list_public_methods(memory)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> TokenSequence:
    made = TokenSequence()
    monkeypatch.setattr(secrets, "token_hex", made)
    return made


@pytest.fixture(params=EXAMPLES)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the location of a store for one scope, and of a store with other scopes too."""
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


@pytest.mark.promise("S1")
def test_results_do_not_depend_on_other_scopes(
    places: tuple[Any, Any], tokens: TokenSequence, tmp_path: Path, request: pytest.FixtureRequest
):
    """Mutants: any statement of any store without its space or its tenant. Run by hand: `get` in memory, on SQLite and
    on PostgreSQL; `speakers` on SQLite; keys of Redis without the agent; a filter of Chroma without the space."""
    kind = request.node.callspec.params["places"]
    with asyncio.Runner() as runner:
        pair = runner.run(open_pair(*places, tokens, tmp_path))

        # Without shrinking, which takes minutes: the failure names the call and its seed.
        @settings(
            max_examples=max(EXAMPLES[kind], EXAMPLES[kind] * settings().max_examples // 100),
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
        )
        @given(st.integers(0, SCOPE_COUNT - 1), calls)
        def play(scope_index: int, made: list[tuple[str, int]]) -> None:
            runner.run(compare_calls(pair, scope_index, made))

        try:
            play()
        finally:
            runner.run(_close(pair))


async def _close(pair: StorePair) -> None:
    await pair.alone.close()
    await pair.among_others.close()
