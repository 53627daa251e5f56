"""Fuzzed queries and filters: results of the own scope only, or RecollectError, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recollect import AgentMemory
from recollect.errors import BadInput, BadQuery
from recollect.stores.filters import FILTER_FIELDS, Condition, Where, matches_where, parse_where
from recollect.stores.in_memory import InMemoryStore
from recollect.testing import ManualClock
from recollect.testing.factories import SPACE, list_ids, make_put
from tests.embedders import HashEmbedder
from tests.flows.bad_input.strange import SYNTAX
from tests.servers.postgres import Server

# The grammar of filters, and fragments of injection attempts.
QUOTES = ["'", '"', "\\", "`", ";", "--", "/*", "%", "_", "?", ":1", "$1", "%s", "{}", "\x00", ")", "(", "]", "\n"]
fragments = st.sampled_from([*QUOTES, " or 1=1 ", "union select ", "drop table records", "$.a", "[0]", "a", "b", "é"])
injections = st.lists(fragments, max_size=6).map("".join)
names = st.sampled_from(["a", "b", "deep.a", "metadata.a", "metadata.source", *sorted(FILTER_FIELDS)])
paths = names | injections | st.none() | st.integers() | st.text(max_size=8)
numbers = st.integers(-(2**64), 2**64) | st.floats() | st.sampled_from([2**63, -(2**63) - 1, 1e308, 10**30])
scalars = st.none() | st.booleans() | numbers | st.text(max_size=8) | injections
signs = (
    st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte", "in", "prefix", "has", "$gte", "==", "like", "or"])
    | injections
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(signs, inner, max_size=3))
wheres = st.dictionaries(paths, values | st.dictionaries(signs, values, max_size=3), max_size=4)


@pytest.mark.promise("S3")
@given(wheres)
def test_filter_is_rejected_or_names_only_known_fields(where: dict[Any, Any]):
    """Mutant: `_PATH` matches any text."""
    try:
        conditions = parse_where(where)
    except BadQuery:
        return
    for condition in conditions:
        assert condition.is_field or all(key.replace("-", "_").isidentifier() for key in condition.keys)
        assert condition.op in ("eq", "ne", "gt", "gte", "lt", "lte", "in", "prefix", "has")


OURS = make_put("mine", [1, 0, 0, 0], "apple", metadata={"a": 1, "deep": {"a": "x"}})
THEIRS = make_put("theirs", [1, 0, 0, 0], "apple", metadata={"a": 1}, scope=OURS.item.scope.__class__("acme", "eve"))


def iterate_injections() -> Iterator[Where]:
    """Yield filters with every SQL metacharacter in every text comparison."""
    texts = [*QUOTES, "' or 1=1 --", "x') or ('1'='1", "x' union select 1 --"]
    for path in ("source", "key", "session", "speaker", "agent", "a", "deep.a", "metadata.source"):
        for text, sign in product(texts, ("eq", "ne", "gt", "lte", "prefix", "in", "has")):
            if sign != "has" or path not in FILTER_FIELDS:
                yield Where(SPACE, conditions=parse_where({path: {sign: [text] if sign == "in" else text}}))
    for text in texts:
        yield Where(SPACE, key_prefix=text)


@pytest.mark.promise("S3")
@pytest.mark.parametrize("backend", ["sqlite", "postgres", "chroma"])
def test_filtered_search_matches_reference_and_leaks_nothing(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
):
    """Run the grammar on a backend. Mutants: the text of a field or a value of metadata is formatted into the
    statement instead of bound, so that a quote raises an error of the store."""
    with asyncio.Runner() as runner:
        store: Any = runner.run(_open_store(backend, request, tmp_path))
        reference = InMemoryStore(clock=ManualClock())
        for target in (store, reference):
            runner.run(target.write(OURS, THEIRS))

        @settings(
            max_examples=max(25, settings().max_examples // 4), phases=(Phase.explicit, Phase.reuse, Phase.generate)
        )
        @given(st.dictionaries(names, values | st.dictionaries(signs, values, max_size=2), max_size=3))
        def play(where: dict[Any, Any]) -> None:
            try:
                conditions = parse_where(where)
            except BadQuery:
                return
            asked = Where(SPACE, conditions=conditions)
            found = runner.run(store.find(asked))
            assert list_ids(found) == list_ids(runner.run(reference.find(asked)))
            assert "theirs" not in list_ids(found)
            assert runner.run(store.get(SPACE, "mine"))

        try:
            for asked in iterate_injections():
                found = runner.run(store.find(asked))
                assert list_ids(found) == list_ids(runner.run(reference.find(asked))), asked
            play()
        finally:
            runner.run(store.close())


async def _open_store(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    match backend:
        case "sqlite":
            from recollect.stores.sqlite import SqliteStore

            return SqliteStore.open(tmp_path / "a.db", readers=1)
        case "postgres":
            from recollect.stores.postgres import PostgresStore

            server: Server = request.getfixturevalue("postgres")
            return await PostgresStore.open(server.create("filters"), connections=2)
        case _:
            from recollect.stores.chroma import ChromaStore

            return await ChromaStore.open(f"chroma:{tmp_path / 'c'}")


@pytest.mark.promise("S3")
@pytest.mark.parametrize(("backend", "queries"), [("postgres", 200), ("chroma", 200)])
async def test_fuzzed_queries_raise_only_recollect_errors(
    backend: str, queries: int, request: pytest.FixtureRequest, tmp_path: Path
):
    """`tests/flows/bad_input` does the same in memory and on SQLite. Mutant: a term is not quoted."""
    if backend == "postgres":
        server: Server = request.getfixturevalue("postgres")
        place: Any = server.create("questions")
    else:
        place = {"semantic": f"chroma:{tmp_path / 'c'}", "default": str(tmp_path / "a.db")}
    chance = Random(f"{backend} {queries}")
    times = queries * max(1, settings().max_examples // 100)
    async with AgentMemory.open(place, user="ada", embedder=HashEmbedder(), clock=ManualClock()) as memory:
        await memory.remember("The cello is in the attic.", metadata={"room": {"floor": 3}})
        await memory.scoped(user="eve").remember("The cello of eve is in the attic.")
        answered = 0
        for _ in range(times):
            text = chance.choice(["", " "]).join(chance.choices(SYNTAX, k=chance.randint(1, 6)))
            try:
                hits = await memory.semantic.search(text, 5, min_relevance=0.0, mode=chance.choice(["hybrid", "text"]))
            except BadInput:
                continue
            answered += 1
            assert not any("eve" in hit.item.content for hit in hits)
        assert answered > times // 2
        assert (await memory.stats()).items == 1


def test_reference_compares_values_with_their_type():
    item = OURS.item
    assert matches_where(Where(SPACE, conditions=(Condition("a", "eq", 1),)), item)
    assert not matches_where(Where(SPACE, conditions=(Condition("a", "eq", "1"),)), item)
