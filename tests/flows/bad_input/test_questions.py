"""Bad queries: an answer or a recollect error, and no data is lost."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput, BadQuery
from tests.cases import Case
from tests.embedders import HashEmbedder
from tests.flows.bad_input.strange import EAST, SYNTAX, WORDS, is_answered

# All tests of a store share one memory: rejected input writes nothing, which each test checks.
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_invalid_query_raises(furnished: AgentMemory):
    queries: list[Any] = [
        "",
        "   ",
        "\n\t",
        None,
        5,
        b"bytes",
        [],
        ["list", ""],
        ["list", 5],
        [str(at) for at in range(17)],
    ]
    failures: list[str] = []
    for query in queries:
        with Case(failures, query), pytest.raises(BadQuery):
            await furnished.recall(query)
    assert not failures, "\n".join(failures)


async def test_query_of_100_000_words_raises(furnished: AgentMemory):
    with pytest.raises(BadQuery, match="characters"):
        await furnished.recall("cello " * 100_000)


async def test_long_query_is_answered(furnished: AgentMemory):
    hits = await furnished.semantic.search("cello attic " + "unrelated words follow here " * 600, min_relevance=0.0)
    assert hits


async def test_query_syntax_is_searched_as_text(furnished: AgentMemory):
    failures: list[str] = []
    for query in SYNTAX:
        with Case(failures, query):
            for mode in ("hybrid", "text"):
                for text in (query, f"cello {query}", f'{query}cello"{query}'):
                    await is_answered(furnished, text, mode=mode)
        with Case(failures, query):
            assert (await furnished.stats()).items == 3
    assert not failures, "\n".join(failures)


async def test_query_with_a_lone_surrogate_raises(furnished: AgentMemory):
    for mode in ("hybrid", "dense", "text"):
        with pytest.raises(BadInput, match="surrogate"):
            await furnished.semantic.search("cello \ud800", mode=mode)


async def test_quoted_terms_are_found(furnished: AgentMemory):
    hits = await furnished.semantic.search('"cello" AND NOT (attic*)', mode="text", min_relevance=0.0)
    assert hits[0].item.content == "The cello is in the attic."


async def test_query_of_stop_words_returns_nothing(furnished: AgentMemory):
    assert await furnished.semantic.search("who are you", mode="text", min_relevance=0.0) == []


async def test_invalid_n_raises(furnished: AgentMemory):
    numbers: list[Any] = [-1, "5", 2.0, True, float("inf")]
    failures: list[str] = []
    for n in numbers:
        with Case(failures, n), pytest.raises(BadQuery, match="n must be a whole number"):
            await furnished.recall("cello", n)
    assert not failures, "\n".join(failures)


async def test_n_may_be_zero_or_larger_than_the_store(furnished: AgentMemory):
    assert await furnished.semantic.search("cello", 0) == []
    assert not await furnished.recall("cello", 0)
    assert len(await furnished.semantic.search("cello", 10**6, min_relevance=0.0)) == 3
    with pytest.raises(BadQuery, match="from 0 to 1,000,000"):
        await furnished.semantic.search("cello", 10**30, min_relevance=0.0)


async def test_invalid_option_raises(furnished: AgentMemory):
    invalid: list[dict[str, Any]] = [
        {"min_relevance": 2},
        {"min_relevance": -0.1},
        {"min_relevance": float("nan")},
        {"min_relevance": "0.5"},
        {"budget": 0},
        {"budget": -1},
        {"budget": "100"},
        {"budget": 1.5},
        {"budget": True},
        {"tiers": "semantic"},
        {"tiers": ["sematnic"]},
        {"tiers": [["semantic"]]},
        {"tiers": 5},
        {"as_of": "2020-01-01"},
        {"as_of": 2020},
        {"as_of": datetime.min.replace(tzinfo=EAST)},
        {"where": "room = 3"},
        {"where": [("room", 3)]},
    ]
    failures: list[str] = []
    for options in invalid:
        with Case(failures, options), pytest.raises(BadInput):
            await furnished.recall("cello", **options)
    assert not failures, "\n".join(failures)


async def test_invalid_mode_raises(furnished: AgentMemory):
    modes: list[Any] = ["fuzzy", "", None, 3]
    failures: list[str] = []
    for mode in modes:
        with Case(failures, mode), pytest.raises(BadQuery, match="mode"):
            await furnished.semantic.search("cello", mode=mode)
    assert not failures, "\n".join(failures)


async def test_invalid_id_raises(furnished: AgentMemory):
    ids: list[Any] = [None, 5, b"x", ["x"]]
    failures: list[str] = []
    for id in ids:
        for use in (furnished.semantic.get, furnished.forget, furnished.semantic.history):
            with Case(failures, id, use.__name__), pytest.raises(BadInput):
                await use(id)
    assert not failures, "\n".join(failures)


async def test_unknown_id_returns_nothing(furnished: AgentMemory):
    failures: list[str] = []
    for id in ("", "no such id", "' or 1=1 --", "\x00", "x" * 10_000):
        with Case(failures, id):
            assert await furnished.semantic.get(id) is None
            assert not await furnished.forget(id)
            assert await furnished.semantic.history(id) == []
            assert (await furnished.stats()).items == 3
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_fuzzed_queries_raise_only_recollect_errors(tmp_path: Path, backend: str):
    """Text mode tests the full-text index without the cost of embeddings."""
    chance = random.Random(f"{backend} 20 000")
    store = "memory://" if backend == "memory" else tmp_path / "fuzz.db"
    async with AgentMemory.open(store, embedder=HashEmbedder(dim=8)) as memory:
        await memory.semantic.add_many(
            {"content": f"{chance.choice(WORDS)} cello {n}", "session": "s", "speaker": f"({n % 3}"} for n in range(6)
        )
        queries = [generate_query(chance) for _ in range(10_000)]

        async def ask(some: list[str]) -> int:
            return sum([await is_answered(memory, query, mode="text", min_relevance=0.9) for query in some])

        counts = await asyncio.gather(*(ask(queries[start::4]) for start in range(4)))
        assert sum(counts) > 5_000  # most of them are valid queries
        assert (await memory.stats()).items == 6
        assert await memory.check() == []


def generate_query(chance: random.Random) -> str:
    parts = chance.choices(SYNTAX, k=chance.randrange(1, 6))
    parts += ["".join(map(chr, chance.choices(range(0x2FF), k=chance.randrange(0, 8))))]
    return chance.choice(("", " ", '" "')).join(chance.sample(parts, len(parts)))[: chance.choice((50, 500, 30_000))]
